"""Compares torch-style loaders of this project, PyTorch and upstream 0.11, over datasets with and without a state.

All contenders have the same dataset and arguments. Rates and times are measured per batch of 64 samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from comparison import items

SAMPLES = 64
"""The number of samples in a batch."""

WEIGHT = 200_000
"""The number of values in the state of a stream. Pickling this state takes some milliseconds, like pickling a buffer of
samples.
"""


class Indexed(Dataset[Any]):
    def __init__(self, kind: str, length: int) -> None:
        self.kind, self.length = kind, length
        wide = kind == "wide"
        self.tensors = torch.rand(8 if wide else 512, items.ARRAY_BYTES // 4 if wide else 16)
        self.arrays = numpy.random.default_rng(0).random((64, 3, 1024), dtype=numpy.float32)
        self.batch = [self.tensors[:SAMPLES].clone(), torch.arange(SAMPLES)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.kind == "arrays":
            return self.arrays[index % len(self.arrays)]
        if self.kind == "images":
            return items.decoded(index)
        tensor = self.tensors[index % len(self.tensors)]
        return {"image": tensor, "label": index} if self.kind == "pairs" else tensor


class Ready(Indexed):
    """A dataset that returns an existing batch, so that only the transport of batches is measured."""

    def __getitems__(self, indices: list[int]) -> Any:
        return self.batch


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.tensor = torch.rand(64)

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is not None
        while True:
            yield self.tensor


class Weighty(Stream):
    """An endless stream of samples with a state that takes some milliseconds to compute."""

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": list(range(WEIGHT))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _touch(batch: Any) -> None:
    while not isinstance(batch, (torch.Tensor, numpy.ndarray)):
        batch = batch["image"] if isinstance(batch, dict) else batch[0]
    batch.flatten()[0]


def consume(share: Any) -> None:
    for batch in share:
        _touch(batch)


def loader(order: dict[str, Any], length: int) -> Any:
    """Returns the contender's loader over a dataset with `length` samples."""
    cls: Any
    if order["contender"] == "torch-indexed":
        from torch.utils.data import DataLoader as cls
    else:
        from torchdata.stateful_dataloader import StatefulDataLoader as cls
    kind, options = order["item"], order["options"]
    more: dict[str, Any] = {}
    dataset: Any
    if kind in ("stream", "weighty"):
        dataset = Weighty() if kind == "weighty" else Stream()
    else:
        dataset = Ready(kind, length) if kind == "ready" else Indexed(kind, length)
    if kind in ("ready", "images"):
        more["collate_fn"] = items.same
    return cls(
        dataset,
        batch_size=SAMPLES,
        num_workers=order["workers"],
        multiprocessing_context=order["start_method"],
        persistent_workers=bool(options.get("persistent")),
        **more,
    )
