"""Names pipes in statistics by their class, the user's function, and its location."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import TYPE_CHECKING, Any

from torchdata._reporting import PACKAGE, name_of
from torchdata._users_code import INDEXED, ITERATED, UsersCode, code_location, code_of, codes_of_dataset
from torchdata.datapipes._pipe.blaming import codes_read_by
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.unloaded import can_wait
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe, token_of

if TYPE_CHECKING:
    from torchdata._native import IterationToken


class Flag:
    """Bits that describe a pipe. They are plain integers, because a new worker computes them before its first item."""

    #: The pipe yields each item that it reads, possibly after buffering it.
    HOLDS = 1
    #: The pipe receives items from another process, so its time is spent waiting.
    INPUT = 2
    THREAD = 8
    #: The pipe yields one item for each item that it reads, before it reads the next item.
    ONE_TO_ONE = 16
    #: The pipe delays its work on an item until a later `sharding_filter` has selected the item.
    PUT_OFF = 32


#: The `Flag` of a pipe, by the name of its class or of a base class.
_HOLDERS = {
    "_PrefetchBase": Flag.HOLDS | Flag.THREAD,
    "Shuffler": Flag.HOLDS,
    "FullSync": Flag.HOLDS,
    "DispatchedSource": Flag.INPUT,
    "WorkerOutput": Flag.INPUT,
}


def describe_pipes(datapipe: Any, full: bool) -> list[tuple[IterationToken, str, str, int | None, int, int]]:
    """Returns (token, name, location, index of the reading pipe, flags, capacity) for each counted pipe, sources
    first."""
    graph = graph_of(datapipe)
    put_off = _put_off(graph)
    pipes = [pipe for pipe in graph if hasattr(pipe, "__dict__") and _is_counted(pipe, graph, full)]
    numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
    readers: dict[int, int] = {}
    for number, pipe in enumerate(pipes):
        for source in graph.sources(pipe):
            if id(source) in numbers:
                readers.setdefault(numbers[id(source)], number)
    described = []
    for number, pipe in enumerate(pipes):
        flags = _flags(pipe) | (Flag.PUT_OFF if id(pipe) in put_off else 0)
        name, location = name_of(pipe), (location_of(pipe) or "") if isinstance(pipe, IterDataPipe) else ""
        if codes := _codes_of(pipe, full):
            name, location = codes[0].name, codes[0].location
        capacity = getattr(pipe, "buffer_size", 0) if flags & Flag.HOLDS else 0
        capacity = capacity if isinstance(capacity, int) and 0 <= capacity < 1 << 63 else 0
        described.append((token_of(pipe), name, location, readers.get(number), flags, capacity))
    return described


def _codes_of(pipe: Any, full: bool) -> list[UsersCode]:
    """Returns the user's functions that a pipe calls, if the pipe only reads a dataset; otherwise, an empty list.

    Map-style pipes are timed only if `full` is True. If `full` is False, the pipe that reads a map-style pipe is named
    after the functions of this map-style pipe.
    """
    if not isinstance(pipe, IterDataPipe):
        return codes_of_dataset(pipe, INDEXED)
    if not full and len(codes := codes_read_by(pipe)) == 1:
        return codes
    return codes_of_dataset(pipe, ITERATED) if type(pipe).__name__ == "IterableWrapper" else []


def _is_counted(pipe: Any, graph: Graph, full: bool) -> bool:
    """Returns True for an iterable pipe and, if `full` is True, for a map-style pipe with timed user code."""
    if isinstance(pipe, IterDataPipe):
        return True
    return full and isinstance(pipe, MapDataPipe) and bool(_codes_of(pipe, full)) and _is_timed(pipe, graph)


def _is_timed(pipe: Any, graph: Graph) -> bool:
    readers = [other for other in graph if any(source is pipe for source in graph.sources(other))]
    return any(
        isinstance(reader, IterDataPipe) or (hasattr(reader, "_getter") and _is_timed(reader, graph))
        for reader in readers
    )


def _put_off(graph: Graph) -> set[int]:
    found: set[int] = set()
    for pipe in graph:
        if hasattr(type(pipe), "apply_sharding"):
            for source in graph.sources(pipe):
                if can_wait(source):
                    found.update(id(one) for one in graph_of(source))
    return found


def _flags(pipe: Any) -> int:
    for cls in type(pipe).__mro__:
        if cls.__name__ in _HOLDERS and cls.__module__.startswith("torchdata."):
            return _HOLDERS[cls.__name__]
    return Flag.ONE_TO_ONE if getattr(pipe, "one_to_one", False) is True else 0


def location_of(pipe: Any) -> str | None:
    """Returns `file:line` of the user's function or class, or None if all code belongs to this package."""
    for attribute, value in vars(pipe).items():
        if attribute.endswith("fn") and callable(value):
            code = code_of(value)
            if code is not None and not code.co_filename.startswith(PACKAGE):
                return code_location(code)
    iterate = inspect.unwrap(type(pipe).__iter__)
    code = getattr(iterate, "__code__", None)
    if isinstance(code, CodeType) and not code.co_filename.startswith(PACKAGE):
        return code_location(code)
    return None
