"""The row of the table of pipes, and the common parts of the modules that hold rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper

Source = Callable[[], Any]

#: (what is wrong, constructor call, exception, part of the message)
BadArgument = tuple[str, Callable[[], Any], type[Exception], str]


@dataclass(frozen=True)
class Row:
    """One pipe (or small pipeline) of the table."""

    #: Shown in the test's name.
    name: str
    #: From a function that makes a source, and parameters, to the pipe. Every call makes one source.
    build: Callable[..., Any]
    #: From the source's items and the same parameters to the list of what the pipe yields.
    model: Callable[..., list[Any]]
    #: Strategies for the parameters.
    params: dict[str, Any] = field(default_factory=dict)
    #: Parameters of the tests that are not drawn by hypothesis.
    example: dict[str, Any] = field(default_factory=dict)
    #: None where `len()` is the number of items; else the number, or a part of the TypeError's message.
    length: int | str | None = None
    #: Whether the pipe takes items from its source.
    reads_items: bool = True
    #: Whether what it yields depends on a seed.
    random: bool = False
    #: Why it needs more memory for more items, or why that is not tried here; empty: it does not.
    grows: str = ""
    #: Why two workers with a sharded source each do not yield what the model says of their shares; empty: they do.
    not_in_workers: str = ""


def ints() -> IterableWrapper[int]:
    """A source for rows of bad arguments."""
    return IterableWrapper(range(3))


def seed(pipe: Any, value: int) -> Any:
    """Sets the seed of every random pipe of a graph, and returns the graph's end."""
    for member in walk(pipe):
        if hasattr(member, "set_seed"):
            member.set_seed(value)
    return pipe
