"""The shards of one process send over one link, and their reader takes them apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from torchdata._native import BellBoard, Collector, Link, MemoryCopy, Sender
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

WINDOW = 100


class Ends:
    """Both ends of links with several shards, in one process: nothing that is sent fills them."""

    def __init__(self, shards: int, *, in_order: bool = True) -> None:
        bells = BellBoard(2)
        self.link = Link(1 << 20)
        self.sender = Sender([self.link], bells, 1, [0], None, shards)
        self.collector = Collector([self.link], bells, 0, [1], print, in_order=in_order, shards=shards)

    def received(self, *items: list[Any], turn: int = 0, starts: Any = None) -> list[Any]:
        self.collector.start_epoch(1, WINDOW)
        self.sender.start_epoch(1, 1, starts, turn)
        assert self.sender.pump(tuple(map(iter, items)))
        return list(self.collector)


def test_each_shard_is_accounted_for_by_itself() -> None:
    ends, alone = Ends(2), Ends(1)
    ends.received([1, 2, 3], ["a"])
    alone.sender.start_epoch(1)
    alone.collector.start_epoch(1, WINDOW)
    alone.sender.pump(iter([1, 2, 3]))
    assert ends.sender.accounts()[0] == alone.sender.accounts()[0]
    assert [items for items, _ in ends.sender.accounts()] == [3, 1]
    assert ends.sender.made() == (1, 4)


def test_arrays_of_all_shards_lie_in_one_arena() -> None:
    ends = Ends(2)
    arrays = [numpy.full(10_000, number, "u1") for number in range(6)]
    found = ends.received(arrays[::2], arrays[1::2])
    assert [int(array[-1]) for array in found] == list(range(6))
    assert len(ends.sender.arena_usage()) == 1


def test_shards_send_over_one_link_only() -> None:
    bells, links = BellBoard(3), [Link(0), Link(0)]
    with pytest.raises(ValueError, match="over one link"):
        Sender(links, bells, 0, [1, 2], None, 2)
    with pytest.raises(ValueError, match="over each link"):
        Collector(links, bells, 0, [1, 2], print, shards=1)
    with pytest.raises(ValueError, match="one iterator for each"):
        Ends(2).sender.pump(iter(()))


def test_memory_is_saved_and_loaded() -> None:
    one, two = bytearray(b"abc"), bytearray(b"defg")
    copy = MemoryCopy([memoryview(one), memoryview(two)])
    one[:], two[:] = b"ABC", b"DEFG"
    copy.load()
    assert (one, two) == (b"abc", b"defg")
    one[:1] = b"A"
    copy.save()
    one[:] = b"..."
    copy.load()
    assert (one, two) == (b"Abc", b"defg")


def _pid(_item: int) -> int:
    return os.getpid()


def _regions(pid: int) -> int:
    """Memory files that a process has mapped."""
    return len({line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line})


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _held(splits: int) -> dict[str, list[int]]:
    pipe = IterableWrapper(range(splits * 4)).sharding_filter().map(_pid)
    with DataLoader2(pipe, num_workers=2, splits=splits) as loader:
        iterator = iter(loader)
        workers = sorted({next(iterator), next(iterator)})
        pids = [os.getpid(), *workers]
        return {"files": [*map(_files, pids)], "regions": [*map(_regions, pids)]}


def test_neither_descriptors_nor_shared_memory_grow_with_the_number_of_shards() -> None:
    assert _held(2) == _held(64)
