"""Trains a model with real libraries, each in a separate process, over a StatefulDataLoader."""

import contextlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from torchdata.stateful_dataloader import StatefulDataLoader

EPOCHS, STEPS = 5, 4


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = [float(torch.rand(())), random.random(), float(numpy.random.random())]
        return {"x": torch.tensor([index / 14, *drawn]), "labels": torch.tensor([float(index % 3)])}


class Stopped(Exception):
    """Raised to end the training program at its planned stop."""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[Any] = []

    def forward(self, x: Any, labels: Any = None, **_: Any) -> Any:
        self.seen.append([[round(float(one[0]) * 14), *(round(float(part), 6) for part in one[1:])] for one in x])
        logits = self.layer(x)
        return {"loss": (logits - labels).square().mean(), "logits": logits}


def loader_of(workers: int, cls: Any = StatefulDataLoader) -> Any:
    context = {"multiprocessing_context": "fork"} if workers else {}
    return cls(Samples(), batch_size=4, shuffle=True, num_workers=workers, **context)


def state_of(loader: Any, steps: int) -> dict[str, Any]:
    state: dict[str, Any] = loader.state_dict()
    return state | {"_iterator_finished": steps % STEPS == 0}


def train(library: str, workers: int, folder: str, stop: int | None = None, resumes: bool = False) -> dict[str, Any]:
    sys.path.insert(0, folder)
    random.seed(42)
    numpy.random.seed(42)
    torch.manual_seed(42)
    model = Model()
    with contextlib.suppress(Stopped):
        globals()[library](model, workers, Path(folder) / "checkpoint", stop, resumes)
    return {"seen": model.seen, "weights": model.layer.weight.tolist()}


def accelerate(model: Model, workers: int, checkpoint: Path, stop: int | None, resumes: bool) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(workers, DataLoader))
    assert isinstance(loader.base_dataloader, StatefulDataLoader)
    steps = 0
    if resumes:
        accelerator.load_state(str(checkpoint))
        steps = int((checkpoint / "steps").read_text())
    for _ in range(steps // STEPS, EPOCHS):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == stop:
                accelerator.save_state(str(checkpoint))
                (checkpoint / "steps").write_text(str(steps))
                raise Stopped


def transformers(model: Model, workers: int, checkpoint: Path, stop: int | None, resumes: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class WithLoader(Trainer):  # type: ignore[misc]
        loader = loader_of(workers)

        def get_train_dataloader(self) -> Any:
            return self.loader

        def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
            super()._save_checkpoint(*arguments, **options)
            step = self.state.global_step
            torch.save(state_of(self.loader, step), checkpoint / f"checkpoint-{step}/loader.pt")

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_save(self, *_: Any, **__: Any) -> None:
            raise Stopped

    arguments = TrainingArguments(
        output_dir=str(checkpoint),
        num_train_epochs=EPOCHS,
        learning_rate=0.1,
        save_strategy="no" if not stop else "steps" if stop % STEPS else "epoch",
        save_steps=stop or 1000,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ignore_data_skip=True,  # The Trainer must not skip batches, because the loader already resumes.
    )
    trainer = WithLoader(model=model, args=arguments, train_dataset=Samples(), callbacks=[Stop()] if stop else [])
    if resumes:
        [folder] = checkpoint.glob("checkpoint-*")
        trainer.loader.load_state_dict(torch.load(folder / "loader.pt", weights_only=True))
        trainer.train(resume_from_checkpoint=str(folder))
    else:
        trainer.train()


def lightning(model: Model, workers: int, checkpoint: Path, stop: int | None, resumes: bool) -> None:
    from lightning import LightningModule, Trainer

    loader = loader_of(workers)

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == stop and stop % STEPS:
                self.save()

        def on_train_epoch_end(self) -> None:
            if self.global_step == stop:
                self.save()

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["loader"] = state_of(loader, self.global_step)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            loader.load_state_dict(checkpoint["loader"])

        def save(self) -> None:
            self.trainer.save_checkpoint(checkpoint)
            raise Stopped

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=checkpoint.parent,
    )
    trainer.fit(Module(), loader, ckpt_path=str(checkpoint) if resumes else None)
