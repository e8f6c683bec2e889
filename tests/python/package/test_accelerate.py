"""The guide's statements about Hugging Face's accelerate are true on two ranks, including the effect of `prepare()`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import doc_blocks
from needing import needs
from ranks import torchrun

needs("torch", reason="accelerate is a library for it")
needs("accelerate", reason="it is what is tried here")

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/from-dataloader.md"

#: A program that runs on each rank, and writes the items of the rank's loaders to a separate file.
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


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def on_two_ranks(code: str, folder: Path) -> list[str]:
    (folder / "program.py").write_text(code)
    return torchrun(folder / "program.py")


def test_the_guide_s_program_gives_each_rank_its_share(tmp_path: Path) -> None:
    [code] = [one.block.code for one in doc_blocks.examples(GUIDE) if "import Accelerator" in one.block.code]
    for rank, printed in enumerate(on_two_ranks(code, tmp_path)):
        assert re.findall(r"rank \d of \d saw \d samples", printed) == [f"rank {rank} of 2 saw 4 samples"]


def test_prepare_does_to_loaders_what_the_guide_says(tmp_path: Path) -> None:
    on_two_ranks(PREPARING, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))

    def of_both(what: str) -> list[Any]:
        return [first[what], second[what]]

    assert of_both("indexed") == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    assert of_both("readers") == [[[0, 0], [0, 0]]] * 2, "rank 0 reads for all"
    assert of_both("dispatched") == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert of_both("same") == [True, True]
    assert of_both("ours") == [[0, 1, 2]] * 2, "it shares nothing out"
    assert of_both("syncs of ours") == [[False, True, False] + [True, False, True]] * 2
    assert of_both("syncs of accelerate's") == [[False, True, True] * 2] * 2
