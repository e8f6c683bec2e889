"""Names of pipes in statistics: their class, the user's function, and where that stands.

Role: pure text about a graph. Runs in every process that holds pipes, once per graph.
"""

from __future__ import annotations

import enum
import inspect
import os
import sys
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from torchdata._reporting import PACKAGE, name_of
from torchdata.datapipes._pipe.graph.graph import graph_of
from torchdata.datapipes.datapipe import IterDataPipe, token_of

if TYPE_CHECKING:
    from torchdata._native import IterationToken

__all__ = ["Flag", "describe_pipes", "location_of"]


class Flag(enum.IntFlag):
    """The role of a pipe in statistics."""

    #: It yields each item that it reads, some later: what it read and did not yield, it holds.
    HOLDS = 1
    #: Its items come from another process: its own time is waiting.
    INPUT = 2
    #: It is read by index, and so not counted.
    UNCOUNTED = 4
    #: It reads its source in a thread.
    THREAD = 8
    #: It yields one item for each that it reads, before it reads the next.
    ONE_TO_ONE = 16


#: By class name: pipes that yield each item that they read. A class that derives from one counts as that one.
_HOLDERS = {
    "_PrefetchBase": Flag.HOLDS | Flag.THREAD,
    "Shuffler": Flag.HOLDS,
    "FullSync": Flag.HOLDS,
    "DispatchedSource": Flag.INPUT,
    "WorkerOutput": Flag.INPUT,
}


def describe_pipes(datapipe: Any, full: bool) -> list[tuple[IterationToken, str, str, int | None, int, int]]:
    """The pipes of a graph that are counted, sources first: token, name, place, number of the reader, flags, capacity.

    Args:
        datapipe: the last pipe, or the graph.
        full: whether their time is taken.
    """
    graph = graph_of(datapipe)
    pipes = [pipe for pipe in graph if isinstance(pipe, IterDataPipe) and hasattr(pipe, "__dict__")]
    numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
    readers: dict[int, int] = {}
    for number, pipe in enumerate(pipes):
        for source in graph.sources(pipe):
            if id(source) in numbers:
                readers.setdefault(numbers[id(source)], number)
    described = []
    for number, pipe in enumerate(pipes):
        flags = _flags(pipe)
        capacity = getattr(pipe, "buffer_size", 0) if flags & Flag.HOLDS else 0
        described.append(
            (
                token_of(pipe),
                name_of(pipe),
                location_of(pipe) or "",
                readers.get(number),
                int(flags),
                capacity if isinstance(capacity, int) and 0 <= capacity < 1 << 63 else 0,
            )
        )
    return described


def _flags(pipe: Any) -> Flag:
    for cls in type(pipe).__mro__:
        if cls.__name__ in _HOLDERS and cls.__module__.startswith("torchdata."):
            return _HOLDERS[cls.__name__]
    return Flag.ONE_TO_ONE if getattr(pipe, "one_to_one", False) is True else Flag(0)


def location_of(pipe: Any) -> str | None:
    """Where the user's function that the pipe calls stands, as `file:line`; or the user's class.

    None if all is ours.
    """
    for attribute, value in vars(pipe).items():
        if attribute.endswith("fn") and callable(value):
            code = _code_of(value)
            if code is not None and not code.co_filename.startswith(PACKAGE):
                return f"{_short(code.co_filename)}:{code.co_firstlineno}"
    iterate = inspect.unwrap(type(pipe).__iter__)
    code = getattr(iterate, "__code__", None)
    if isinstance(code, CodeType) and not code.co_filename.startswith(PACKAGE):
        return f"{_short(code.co_filename)}:{code.co_firstlineno}"
    return None


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = vars(type(function)).get("__call__", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _short(path: str) -> str:
    """A path relative to the program's folder, or to the working directory, if it lies below; else its
    last two parts.
    """
    for root in (os.getcwd(), os.path.dirname(getattr(sys.modules.get("__main__"), "__file__", "") or "")):
        if root and path.startswith(root.rstrip(os.sep) + os.sep):
            return os.path.relpath(path, root)
    return os.sep.join(path.split(os.sep)[-2:]) if os.path.isabs(path) else path
