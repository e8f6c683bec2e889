"""Programs of the guides that need several ranks, a bucket or other libraries work."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import doc_blocks
import rank_forkserver
from archive_bytes import tar_of
from fresh_processes import run_python
from needing import needs
from ranks import gloo_job, torchrun
from s3_server import ENVIRONMENT, fill, s3_server

DOCS = Path(__file__).resolve().parents[3] / "docs"
pytestmark = pytest.mark.alone


def blocks(page: str) -> list[str]:
    return [one.code for one in doc_blocks.blocks(DOCS / page) if one.language == "python"]


def block(page: str, words: str) -> str:
    [code] = [code for code in blocks(page) if words in code]
    return code


def on_two_ranks(code: str, folder: Path) -> list[str]:
    (folder / "train.py").write_text(code)
    return torchrun(folder / "train.py")


def run(code: str, folder: Path, **environment: str) -> str:
    (folder / "train.py").write_text(code)
    ended = run_python("-W", "ignore", "train.py", folder=folder, OMP_NUM_THREADS="1", **environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_ranks_make_equally_many_steps(tmp_path: Path) -> None:
    needs("torch", reason="the recipe trains with torch")
    code = block("recipes/training.md", "DistributedDataParallel(torch")
    steps = re.findall(r"rank (\d): (\d) steps", "".join(on_two_ranks(code, tmp_path)))
    assert sorted(rank for rank, _ in steps) == ["0", "0", "1", "1"]
    assert len({count for _, count in steps}) == 1


def test_lightning_and_the_trainer_of_transformers_take_their_loaders_from_the_recipes(tmp_path: Path) -> None:
    needs("lightning", reason="a recipe uses lightning")
    needs("transformers", reason="a recipe uses transformers")
    both = block("recipes/training.md", "lightning.Trainer") + block("recipes/training.md", "MyTrainer")
    resuming = "".join(blocks("guides/checkpoints.md")[:2]) + block("guides/checkpoints.md", "import lightning")
    printed = run(f"{both}{resuming}print('it resumed')\n", tmp_path)
    assert re.findall(r"(\d+) steps", printed) == ["16", "8"]
    assert "it resumed" in printed


CONTENTS = {".txt": b"text", ".cls": b"7"}


def shard(keys: list[str]) -> bytes:
    return tar_of((f"{key}{end}", text) for key in keys for end, text in CONTENTS.items())


def test_shards_are_read_from_a_bucket(tmp_path: Path) -> None:
    needs("moto", reason="moto simulates an S3 server")
    needs("obstore", reason="the recipe reads from S3")
    shards = {f"train/{number}.tar": shard([f"{number}0", f"{number}1"]) for number in range(3)}
    with s3_server() as endpoint:
        fill(endpoint, {"bucket": shards}).close()
        printed = run(block("recipes/data.md", "list_files_by_s3"), tmp_path, **ENVIRONMENT, AWS_ENDPOINT_URL=endpoint)
    keys = re.findall(r"train/\d\.tar/(\d\d) text 7", printed)
    assert sorted(keys) == ["00", "01", "10", "11", "20", "21"]


def test_ranks_save_and_load_one_distributed_checkpoint(tmp_path: Path) -> None:
    needs("torch", reason="the recipe saves checkpoints with torch")
    recipe = block("guides/checkpoints.md", "class LoaderState")
    classes = recipe[: recipe.index('if __name__ == "__main__":')]
    body = f"""
{classes}
def build():
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter().map(identity)
    service = SequentialReadingService(DistributedReadingService(30), MultiProcessingReadingService(2))
    loader = DataLoader2(pipe, reading_service=service)
    loader.seed(7)
    return loader

def main(rank):
    folder = {str(tmp_path / "checkpoint")!r}
    with build() as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        dcp.save({{"data": LoaderState(loader, rank)}}, checkpoint_id=folder)
        rest, following = list(iterator), list(loader)
    with build() as loader:
        dcp.load({{"data": LoaderState(loader, rank)}}, checkpoint_id=folder)
        return got, rest == list(loader), following == list(loader), rest
"""
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    assert [(same, later) for _, same, later, _ in outcomes] == [(True, True)] * 2
    assert sorted(item for got, *_, rest in outcomes for item in got + rest) == list(range(60))


PREPARING = """
import json
import os
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

accelerator = Accelerator(gradient_accumulation_steps=2)
rank = accelerator.process_index
model = accelerator.prepare(torch.nn.Linear(1, 1))


def syncs(loader):
    found = []
    for epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                found.append(accelerator.sync_gradients)
    return found


def prepared(dataset, batch_size):
    return accelerator.prepare(DataLoader(dataset, batch_size=batch_size))


ours = DataLoader2(IterableWrapper(range(3)))
outcome = {
    "indexed": [batch.tolist() for batch in prepared(torch.arange(10), 2)],
    "readers": [batch.tolist() for batch in prepared(IterableWrapper(range(8)).map(lambda item: rank), 2)],
    "dispatched": [batch.tolist() for batch in prepared(IterableWrapper(range(8)), 2)],
    "same": accelerator.prepare(ours) is ours,
    "ours": list(ours),
    "syncs of ours": syncs(ours),
    "syncs of accelerate's": syncs(prepared(torch.arange(6.0), 1)),
}
ours.shutdown()
with open(os.path.join(os.path.dirname(__file__), f"{rank}.json"), "w") as file:
    json.dump(outcome, file)
accelerator.end_training()
"""


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch", reason="accelerate needs torch")
    needs("accelerate", reason="the recipe uses accelerate")
    rank_forkserver.imports("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.mark.usefixtures("accelerate")
def test_the_guide_s_program_gives_each_rank_its_share(tmp_path: Path) -> None:
    code = block("guides/from-dataloader.md", "import Accelerator")
    for rank, printed in enumerate(on_two_ranks(code, tmp_path)):
        assert re.findall(r"rank \d of \d saw \d samples", printed) == [f"rank {rank} of 2 saw 4 samples"]


@pytest.mark.usefixtures("accelerate")
def test_prepare_changes_loaders_as_the_guide_states(tmp_path: Path) -> None:
    on_two_ranks(PREPARING, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))

    def of_both(what: str) -> list[Any]:
        return [first[what], second[what]]

    assert of_both("indexed") == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    assert of_both("readers") == [[[0, 0], [0, 0]]] * 2, "rank 0 reads for all"
    assert of_both("dispatched") == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert of_both("same") == [True, True]
    assert of_both("ours") == [[0, 1, 2]] * 2, "the loader divides no items among ranks"
    assert of_both("syncs of ours") == [[False, True, False] + [True, False, True]] * 2
    assert of_both("syncs of accelerate's") == [[False, True, True] * 2] * 2
