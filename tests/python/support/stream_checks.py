"""Checks that pipes that read files resume exactly, close their files and raise clear errors."""

import gc
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

from torchdata.datapipes.state import load_state, save_state


def open_files(*, sockets: bool = True) -> int:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("torchdata-threadpool"):
            thread.join(60)
    names = os.listdir("/proc/self/fd")
    return len(names) if sockets else sum(map(_is_open_file, names))


def _is_open_file(descriptor: str) -> bool:
    try:
        # Sockets, anonymous inodes and pipes do not count as open files, because some libraries keep them open.
        return not os.readlink(f"/proc/self/fd/{descriptor}").startswith(("socket:", "anon_inode:", "pipe:"))
    except FileNotFoundError:  # the listing's own descriptor, for example, was closed meanwhile
        return False


def read(item: Any) -> Any:
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
    files: bool = True,
) -> list[Any]:
    epoch = sorted if seeded else list

    def count() -> int:
        return open_files(sockets=sockets) if files else 0

    before = count()
    whole = [keep(item) for item in build()]
    assert count() == before
    for position in range(len(whole) + 1):
        pipe = build()
        items = iter(pipe)
        assert [keep(next(items)) for _ in range(position)] == whole[:position]
        running = pickle.dumps(save_state(pipe))
        del items
        assert seeded or count() == before, "no file stays open while the pipe exists"
        abandoned = pickle.dumps(save_state(pipe))
        assert epoch(map(keep, pipe)) == epoch(whole), "a second iteration starts at the first item"
        items = iter(pipe)
        load_state(again := build(), pickle.loads(pickle.dumps(save_state(pipe))))
        assert epoch(map(keep, again)) == epoch(whole), "restored where a later epoch begins"
        del items, again
        del pipe
        assert count() == before
        loaded = pickle.loads(running)
        # A state can be loaded twice, because each pipe copies the streams in the state.
        for state in (pickle.loads(abandoned), loaded, loaded)[: 2 if seeded else 3]:
            load_state(other := build(), state)
            assert [keep(item) for item in other] == whole[position:], position
        assert epoch(map(keep, other)) == epoch(whole), "the epoch after the restored epoch is complete"
        del other, state, loaded
        assert count() == before
    return whole
