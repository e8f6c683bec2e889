"""A row of the table of pipes, and shared code of the modules that contain rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper

Source = Callable[[], Any]

#: (constructor call, exception, pattern of the message)
BadArgument = tuple[Callable[[], Any], type[Exception], str]


@dataclass(frozen=True)
class Row:
    """One pipe (or small pipeline) of the table."""

    #: The name, which appears in the test's name.
    name: str
    #: A function from a function that creates a source, and parameters, to the pipe. Every call creates one source.
    build: Callable[..., Any]
    #: A function from the source's items and the same parameters to the list of the pipe's items.
    model: Callable[..., list[Any]]
    #: Strategies for the parameters.
    params: dict[str, Any] = field(default_factory=dict)
    #: Parameters of the tests that hypothesis does not draw.
    example: dict[str, Any] = field(default_factory=dict)
    #: None if `len()` is the number of items; otherwise the number, or a part of the TypeError's message.
    length: int | str | None = None
    #: Whether the pipe reads items from its source.
    reads_items: bool = True
    #: Whether its items depend on a seed.
    random: bool = False
    #: Why the pipe needs more memory for more items, or why its memory is not tested; empty if the memory is constant.
    grows: str = ""
    #: Why two workers, each with a share of the source, yield other items than the model; empty if they do not.
    not_in_workers: str = ""


def ints() -> IterableWrapper[int]:
    """Returns a source for rows of bad arguments."""
    return IterableWrapper(range(3))


def seed(pipe: Any, value: int) -> Any:
    """Sets the seed of every random pipe of a graph, and returns the graph's end."""
    for member in walk(pipe):
        if hasattr(member, "set_seed"):
            member.set_seed(value)
    return pipe
