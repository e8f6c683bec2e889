"""All shards of one process share the process's descriptors and shared memory."""

import os
from pathlib import Path

from leftovers import descriptors
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper


def _pid(_item: int) -> int:
    return os.getpid()


def _regions(pid: int) -> int:
    return len({line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line})


def _held(splits: int) -> dict[str, list[int]]:
    pipe = IterableWrapper(range(splits * 4)).sharding_filter().map(_pid)
    with DataLoader2(pipe, num_workers=2, splits=splits) as loader:
        iterator = iter(loader)
        workers = sorted({next(iterator), next(iterator)})
        pids = [os.getpid(), *workers]
        return {"files": [*map(descriptors, pids)], "regions": [*map(_regions, pids)]}


def test_neither_descriptors_nor_shared_memory_grow_with_the_number_of_shards() -> None:
    assert _held(2) == _held(64)
