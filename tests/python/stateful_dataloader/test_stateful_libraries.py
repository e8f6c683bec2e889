"""Libraries that use StatefulDataLoader: each trains a small model, is stopped in mid-epoch, and goes on exactly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from process_checks import children, shared_mappings  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))

#: Warnings of the libraries' own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert (children(), shared_mappings()) == ([], 0)


@pytest.fixture
def name_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution `torchdata`, as its wheel installs it."""
    import zipfile

    import name_wheel

    with zipfile.ZipFile(name_wheel.build(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


class Samples(torch.utils.data.Dataset[Any]):
    """Inputs that name their index, and labels."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index), 1.0]) / 24, "labels": torch.tensor([float(index % 3)])}


class Model(torch.nn.Module):
    """A model that notes which samples it has seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: Any, labels: Any = None, **_: Any) -> Any:
        self.seen.append([round(float(one) * 24) for one in x[:, 0]])
        logits = self.layer(x)
        return {"loss": (logits - labels).square().mean(), "logits": logits}


# -- accelerate --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("name_installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_saves_and_goes_on_in_mid_epoch(tmp_path: Path, workers: int) -> None:
    accelerate = pytest.importorskip("accelerate", reason="it is what is tried here")
    from accelerate.utils import DataLoaderConfiguration, is_torchdata_stateful_dataloader_available

    assert is_torchdata_stateful_dataloader_available()

    def prepared() -> Any:
        accelerator = accelerate.Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
        )
        loader = torch.utils.data.DataLoader(Samples(), batch_size=4, shuffle=True, num_workers=workers)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return accelerator, *accelerator.prepare(model, optimizer, loader)

    def train(accelerator: Any, model: Any, optimizer: Any, loader: Any, stop: int | None = None) -> None:
        for number, batch in enumerate(loader, 1):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if number == stop:
                accelerator.save_state(str(tmp_path / "state"))

    torch.manual_seed(4)
    accelerator, model, optimizer, loader = prepared()
    assert isinstance(loader.base_dataloader, StatefulDataLoader)
    train(accelerator, model, optimizer, loader, stop=2)
    first = len(model.seen)
    train(accelerator, model, optimizer, loader)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    torch.manual_seed(99)
    accelerator, again, optimizer, loader = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    train(accelerator, again, optimizer, loader)
    assert again.seen == model.seen[2:first]
    train(accelerator, again, optimizer, loader)
    assert again.seen == model.seen[2:]
    assert again.layer.weight.tolist() == model.layer.weight.tolist()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


# -- transformers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainer_of_transformers_saves_and_goes_on_in_mid_epoch(tmp_path: Path, workers: int) -> None:
    transformers = pytest.importorskip("transformers", reason="it is what is tried here")

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        loader: Any = None

        def get_train_dataloader(self) -> Any:
            if self.loader is None:
                self.loader = StatefulDataLoader(Samples(), batch_size=4, shuffle=True, num_workers=workers)
            return self.loader

        def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
            super()._save_checkpoint(*arguments, **options)
            folder = tmp_path / f"checkpoint-{self.state.global_step}"
            torch.save(self.loader.state_dict(), folder / "loader.pt")

    def trainer(model: Any) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            learning_rate=0.1,
            save_steps=4,
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            ignore_data_skip=True,  # the loader goes on by itself
        )
        return Trainer(model=model, args=arguments, train_dataset=Samples())

    whole = Model()
    trainer(whole).train()
    assert len(whole.seen) == 12
    again, folder = Model(), tmp_path / "checkpoint-4"
    later = trainer(again)
    later.get_train_dataloader().load_state_dict(torch.load(folder / "loader.pt", weights_only=True))
    later.train(resume_from_checkpoint=str(folder))
    assert again.seen == whole.seen[4:]
    assert again.layer.weight.tolist() == whole.layer.weight.tolist()


# -- Lightning ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_saves_and_goes_on_in_mid_epoch(tmp_path: Path, workers: int) -> None:
    lightning = pytest.importorskip("lightning", reason="it is what is tried here")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, save_at: int | None = None) -> None:
            super().__init__()
            self.model, self.save_at = Model(), save_at

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == self.save_at:
                self.trainer.save_checkpoint(tmp_path / "middle.ckpt")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(module: Any, checkpoint: str | None = None) -> None:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        generator = torch.Generator().manual_seed(6)
        loader = StatefulDataLoader(Samples(), batch_size=4, shuffle=True, num_workers=workers, generator=generator)
        trainer.fit(module, loader, ckpt_path=checkpoint)

    whole = Module(save_at=3)
    fit(whole)
    assert len(whole.model.seen) == 12
    again = Module()
    fit(again, str(tmp_path / "middle.ckpt"))
    assert again.model.seen == whole.model.seen[3:]
    assert again.model.layer.weight.tolist() == whole.model.layer.weight.tolist()


# -- datasets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 3])
def test_an_iterable_dataset_of_huggingface_keeps_its_own_place(workers: int, taken: int) -> None:
    datasets = pytest.importorskip("datasets", reason="it is what is tried here")

    def rows(shards: list[int]) -> Iterator[dict[str, int]]:
        for shard in shards:
            for number in range(10):
                yield {"n": 10 * shard + number}

    def loader() -> Any:
        dataset = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
        dataset = dataset.with_format("torch")
        return StatefulDataLoader(dataset, batch_size=3, num_workers=workers)

    whole = [batch["n"].tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    head = [next(iterator)["n"].tolist() for _ in range(taken)]
    state = first.state_dict()
    later = loader()
    later.load_state_dict(state)
    rest = [batch["n"].tolist() for batch in later]
    assert (head, rest) == (whole[:taken], whole[taken:])
