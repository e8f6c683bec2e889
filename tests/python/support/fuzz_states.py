"""Gives manipulated states, counters and messages of ranks to their readers (see `fuzz_files`)."""

import contextlib
import copy
import fcntl
import functools
import itertools
import os
import random
import socket
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fuzz_files import Target, mutated
from torchdata._native import Meeting, StatsBoard
from torchdata._observe.stats.reading import read_board, summarise
from torchdata._plain_pickles import dumps_plain, is_sealed, loads_plain, seal, unseal
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService, describe
from torchdata.dataloader2.state.layout import checksums
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import load_state, save_state

__all__ = ["TARGETS"]

#: A number that is greater than the number of items of any pipeline in this module.
_MOST = 200

_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 1 << 20, 1 << 31, 1 << 32, 10**9, 10**12, 1 << 46, 1 << 63, 1 << 64, 10**30),
    *(-(1 << 63), 0.5, float("nan"), float("inf"), "", "x", "\x1b]0;x\x07", "restore", "begin", b"", b"\0" * 40),
    *([], {}, (), [0], (0, 0), {"a": 1}, [[[]]], {1: 2}, "__nested__", b"\x80\x05N."),
]


def _pipeline() -> Any:
    pipe = IterableWrapper([[number] for number in range(40)]).shuffle(buffer_size=6).sharding_filter()
    return pipe.map(_first).prefetch(2)


def _first(item: list[int]) -> int:
    return item[0]


def _graph() -> Any:
    first, second = IterableWrapper(range(30)).fork(2)
    return first.zip(second.map(_same)).shuffle(buffer_size=4).batch(3).unbatch().cycle(2)


def _same(item: Any) -> Any:
    return item


@functools.cache
def _states() -> list[dict[str, Any]]:
    found = []
    for service in (InProcessReadingService(), MultiProcessingReadingService(2)):
        with DataLoader2(_pipeline(), reading_service=service) as loader:
            loader.seed(5)
            found.append(loader.state_dict())
            iterator = iter(loader)
            list(itertools.islice(iterator, 9))
            found.append(loader.state_dict())
            list(iterator)
            found.append(loader.state_dict())
    with DataLoader2(_pipeline(), reading_service=MultiProcessingReadingService(3)) as loader:
        loader.load_state_dict(found[4])
        list(itertools.islice(iter(loader), 4))
        found.append(loader.state_dict())
    return found


@functools.cache
def _graph_states() -> list[dict[str, Any]]:
    pipe = _graph()
    found = [save_state(pipe)]
    for _ in itertools.islice(iter(pipe), 7):
        found.append(save_state(pipe))
    return found


def _inside(value: Any) -> Any:
    if is_sealed(value):
        return unseal(value, "it"), seal
    if isinstance(value, bytes) and value[:2] == b"\x80\x05":
        try:
            return loads_plain(value), lambda inside: dumps_plain(inside) or b""
        except ValueError:
            return None
    return None


def _changed(rng: random.Random, value: Any) -> Any:
    opened = _inside(value)
    if opened is not None and rng.random() < 0.9:
        inside, close = opened
        return close(_changed(rng, inside))
    if isinstance(value, (dict, list, tuple)) and value and rng.random() < 0.93:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(list(keys))
        if isinstance(value, dict):
            if rng.random() < 0.05:
                return {name: part for name, part in value.items() if name != key}
            return {**value, key: _changed(rng, value[key])}
        return type(value)([*value[:key], _changed(rng, value[key]), *value[key + 1 :]])
    if isinstance(value, bytes) and rng.random() < 0.5:
        return mutated(rng, value)
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 7, 1 << 16))
    return copy.deepcopy(rng.choice(_ODD))


def _with_checksums(state: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**state, "checksums": checksums(state)}
    except Exception:
        return state


def _resume(make: Callable[[], Iterator[Any]]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in itertools.islice(make(), _MOST):
                pass
    except (ValueError, TypeError, RuntimeError):  # pipes raise TypeError if they receive unexpected items
        pass


def _of_loader(state: Any) -> None:
    with contextlib.suppress(ValueError, TypeError):
        describe(state)
    loader = DataLoader2(_pipeline(), reading_service=InProcessReadingService())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loader.load_state_dict(state, allow_pickle=False)
        except (ValueError, TypeError):
            return
    with loader:
        _resume(lambda: iter(loader))


def _loader_bytes(rng: random.Random) -> None:
    state = dict(rng.choice(_states()))
    field = rng.choice(list(state))
    state[field] = _mutated(rng, state[field])
    _of_loader(state)


def _mutated(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bytes):
        return mutated(rng, value)
    if isinstance(value, (list, tuple)) and value:
        offset = rng.randrange(len(value))
        return type(value)([*value[:offset], _mutated(rng, value[offset]), *value[offset + 1 :]])
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        return {**value, name: _mutated(rng, value[name])}
    return _changed(rng, value)


def _graph_value(rng: random.Random) -> None:
    state = _changed(rng, rng.choice(_graph_states()))
    if isinstance(state, dict) and rng.random() < 0.8:
        state.pop("checksums", None)
    pipe = _graph()
    try:
        load_state(pipe, state, allow_pickle=False)
    except (ValueError, TypeError):
        return
    _resume(lambda: iter(pipe))


def _plain_pickle(rng: random.Random) -> None:
    whole = dumps_plain([{"a": [1, 2.5, b"x" * 30, ("s", None)]}, {1, 2}, 1 << 80])
    with contextlib.suppress(ValueError):
        loads_plain(mutated(rng, whole or b""))


@functools.cache
def _board() -> bytes:
    board = StatsBoard(3, 2, 4, True)
    board.adopt(0, 1, 0)
    board.adopt(1, 2, 0)
    return os.pread(board.fileno(), 1 << 24, 0)


def _of_board(rng: random.Random) -> None:
    changed = mutated(rng, _board(), 8)
    with open(os.memfd_create("torchdata-stats", os.MFD_ALLOW_SEALING), "wb") as file:
        file.write(changed)
        file.flush()
        if rng.random() < 0.95:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            summarise(read_board(StatsBoard.observe(f"/proc/self/fd/{file.fileno()}")))


def _of_hub(rng: random.Random) -> None:
    hello, welcome = b"h" * 16, b"w" * 16
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    meeting = Meeting.host(listener.detach(), 2, hello, welcome)
    frames = [struct.pack("<BH16sI", 1, 20, hello, rank) for rank in (0, 1, 1, 1, 2, 1 << 31)]
    frames += [struct.pack("<BHQq", 3, 16, number, -number) for number in (0, 1, 5)]
    frames += [struct.pack("<BHBI4s", 9, 9, fault, 1, b"\1\0\0\0") for fault in (0, 5, 6, 255)]
    frames += [bytes([kind, 0, 0]) for kind in (5, 7, 8)]
    content = b"".join(rng.choice(frames) for _ in range(rng.randint(1, 6)))
    with socket.create_connection(address) as stranger:
        stranger.sendall(content if rng.random() < 0.3 else mutated(rng, content))
        try:
            meeting.open(0.002)
        finally:
            meeting.close()


TARGETS: dict[str, Target] = {
    "loader_value": lambda rng: _of_loader(_with_checksums(_changed(rng, rng.choice(_states())))),
    "loader_bytes": _loader_bytes,
    "graph_value": _graph_value,
    "plain_pickle": _plain_pickle,
    "board": _of_board,
    "hub": _of_hub,
}
