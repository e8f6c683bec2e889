"""Compose: combines several functions into one, for a mapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchdata.datapipes._pipe.checks import check_callable

__all__ = ["Compose"]


class Compose:
    """Calls functions in sequence, each with the result of the previous function.

    Args:
        fns: the functions, in calling order.

    Raises:
        ValueError: no function is given.
        TypeError: one of the functions cannot be called.

    Example:
        >>> from torchdata.nodes import Compose, IterableWrapper, Mapper
        >>> list(Mapper(IterableWrapper(["1", "2"]), Compose([int, float])))
        [1.0, 2.0]
    """

    def __init__(self, fns: Sequence[Callable[[Any], Any]]) -> None:
        if not fns:
            raise ValueError("Compose: fns must have at least one function, but is empty")
        self.fns = list(fns)
        for number, function in enumerate(self.fns):
            check_callable("Compose", f"fns[{number}]", function)

    def __call__(self, x: Any) -> Any:
        for function in self.fns:
            x = function(x)
        return x

    def __repr__(self) -> str:
        return f"Compose({self.fns!r})"
