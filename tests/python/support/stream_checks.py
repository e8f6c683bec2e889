"""Checks that hold for every pipe over files and stores: exact restore, no file left open, errors that say why."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchdata.datapipes.iter import IterDataPipe
from torchdata.datapipes.state import load_state, save_state


def open_files(*, sockets: bool = True) -> int:
    """Number of open file descriptors of this process, with or without sockets."""
    gc.collect()
    names = os.listdir("/proc/self/fd")
    return len(names) if sockets else sum(map(_is_open_file, names))


def _is_open_file(descriptor: str) -> bool:
    try:
        return not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except FileNotFoundError:  # that of the listing itself, or a socket that a thread has closed meanwhile
        return False


def read(item: Any) -> Any:
    """An item with its stream read, so that items can be compared."""
    if isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read"):
        with item[1] as stream:
            return item[0], stream.read()
    return item


def check_restore(
    build: Callable[[], Any],
    *,
    keep: Callable[[Any], Any] = read,
    seeded: bool = False,
    sockets: bool = True,
) -> list[Any]:
    """Restores `build()`'s pipe at every position, while and after it is iterated; returns all its items.

    Items are compared by what `keep` makes of them. Further epochs of a `seeded` pipe come in another order, and a
    buffer of such a pipe keeps its streams when the iteration is dropped. Other pipes keep no file open then.
    Where a library keeps connections for later, `sockets` are not counted.
    """
    epoch = sorted if seeded else list
    before = open_files(sockets=sockets)
    whole = [keep(item) for item in build()]
    assert open_files(sockets=sockets) == before
    for position in range(len(whole) + 1):
        pipe = build()
        items = iter(pipe)
        assert [keep(next(items)) for _ in range(position)] == whole[:position]
        running = pickle.dumps(save_state(pipe))
        del items
        assert seeded or open_files(sockets=sockets) == before, "no file stays open, though the pipe lives on"
        abandoned = pickle.dumps(save_state(pipe))
        assert epoch(map(keep, pipe)) == epoch(whole), "a second iteration starts anew"
        items = iter(pipe)
        load_state(again := build(), pickle.loads(pickle.dumps(save_state(pipe))))
        assert epoch(map(keep, again)) == epoch(whole), "restored where a later epoch begins"
        del items, again
        del pipe
        assert open_files(sockets=sockets) == before
        loaded = pickle.loads(running)
        # The pipes over files copy the streams of a state they load, so that it can be loaded again.
        for state in (pickle.loads(abandoned), loaded, loaded)[: 2 if seeded else 3]:
            load_state(other := build(), state)
            assert [keep(item) for item in other] == whole[position:], position
        assert epoch(map(keep, other)) == epoch(whole), "the epoch after the restored one is whole"
        del other, state, loaded
        assert open_files(sockets=sockets) == before
    return whole


class Breaking(IterDataPipe[Any]):
    """Yields some items and fails."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        yield from self.items
        raise RuntimeError("the source broke")


def check_broken_source(make: Callable[[IterDataPipe[Any]], Any], item: Any, *, sockets: bool = True) -> None:
    """A pipe passes on its source's error as it is, can be iterated again, and leaves no file open."""
    before = open_files(sockets=sockets)
    pipe = make(Breaking([item]))
    for _ in range(2):
        items = iter(pipe)
        assert next(items) is not None
        with pytest.raises(RuntimeError, match="the source broke"):
            next(items)
    del items
    assert open_files(sockets=sockets) == before
