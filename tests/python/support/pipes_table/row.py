"""The class `Row` of the table of pipes, and helpers for the modules that define rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper

Source = Callable[[], Any]

#: A call with wrong arguments: the function, the exception, and a pattern of the message.
BadArgument = tuple[Callable[[], Any], type[Exception], str]


@dataclass(frozen=True)
class Row:
    name: str
    #: A function that creates the pipe. Its arguments are a function that creates a source, and the parameters.
    build: Callable[..., Any]
    #: A function that computes the expected items. Its arguments are the items of the source and the parameters.
    model: Callable[..., list[Any]]
    #: For each parameter, a strategy of hypothesis, and the value for tests without hypothesis.
    params: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    #: The expected length of the pipe. None stands for the number of items. A string is part of the TypeError's message
    #: if the pipe has no length.
    length: int | str | None = None
    reads_items: bool = True
    random: bool = False
    #: The reason why the pipe needs more memory for more items, or why its memory is not tested. An empty string means
    #: that the pipe needs the same memory for any number of items.
    grows: str = ""
    #: The reason why two workers, each with a shard of the source, do not yield the items of the model. An empty string
    #: means that the workers yield the items of the model.
    not_in_workers: str = ""

    @property
    def example(self) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.params.items()}


def ints() -> IterableWrapper[int]:
    return IterableWrapper(range(3))


def seed(pipe: Any, value: int) -> Any:
    """Sets the seed of every random pipe in a graph, and returns the graph's last pipe."""
    for member in walk(pipe):
        if hasattr(member, "set_seed"):
            member.set_seed(value)
    return pipe
