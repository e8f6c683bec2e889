"""Defines the class `Row` of the table of pipes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper

Source = Callable[[], Any]

BadArgument = tuple[Callable[[], Any], type[Exception], str]


@dataclass(frozen=True)
class Row:
    name: str
    #: Creates the pipe from a function that creates a source, and from `params`.
    build: Callable[..., Any]
    #: Computes the items that the pipe must yield from the source's items and `params`.
    model: Callable[..., list[Any]]
    #: For each parameter of the pipe: a Hypothesis strategy, and a fixed value.
    params: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    #: The expected `len(pipe)`: an int, None for the number of items, or a text that `len` must raise as a TypeError.
    length: int | str | None = None
    reads_items: bool = True
    random: bool = False
    #: The reason why the pipe needs more memory for more items, or why its memory is not tested.
    grows: str = ""
    #: The reason why two workers together do not yield the items of `model`.
    not_in_workers: str = ""

    @property
    def example(self) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.params.items()}


UnsizedRow = partial(Row, length="valid length|has no len")


def ints() -> IterableWrapper[int]:
    return IterableWrapper(range(3))


def seed(pipe: Any, value: int) -> Any:
    for member in walk(pipe):
        if hasattr(member, "set_seed"):
            member.set_seed(value)
    return pipe
