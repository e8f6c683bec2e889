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
    #: The name of the row, which becomes part of the test's name.
    name: str
    #: Creates the pipe. The arguments are a function that creates a source, and the parameters. Every call creates one
    #: source.
    build: Callable[..., Any]
    #: Returns the list of the expected items. The arguments are the source's items and the parameters.
    model: Callable[..., list[Any]]
    #: Hypothesis's strategies for the parameters.
    params: dict[str, Any] = field(default_factory=dict)
    #: The parameters for tests without hypothesis.
    example: dict[str, Any] = field(default_factory=dict)
    #: The expected length. None stands for the number of items. A text is a part of the TypeError's message.
    length: int | str | None = None
    #: Whether the pipe reads items from its source.
    reads_items: bool = True
    #: Whether the pipe's items depend on a seed.
    random: bool = False
    #: Why the pipe needs more memory for more items, or why its memory is not tested. Empty if the memory is constant.
    grows: str = ""
    #: Why two workers, each with a shard of the source, do not yield the items of the model. Empty if they do.
    not_in_workers: str = ""


def ints() -> IterableWrapper[int]:
    return IterableWrapper(range(3))


def seed(pipe: Any, value: int) -> Any:
    """Sets the seed of every random pipe in a graph, and returns the graph's last pipe."""
    for member in walk(pipe):
        if hasattr(member, "set_seed"):
            member.set_seed(value)
    return pipe
