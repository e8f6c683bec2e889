"""Pipes that yield some of their source's items: Filter, Header."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from torchdata._native import FilterIterator
from torchdata.datapipes._pipe.checks import (
    check_callable,
    check_input_col,
    check_optional_int,
    check_source,
    no_length,
    warn_of_length,
)
from torchdata.datapipes._pipe.columns import on_columns
from torchdata.datapipes._pipe.streams import PLAIN_TYPES, close_dropped
from torchdata.datapipes.datapipe import IterDataPipe, T_co, token_of

if TYPE_CHECKING:
    from numpy import bool_

__all__ = ["Filter", "Header"]


class Filter(IterDataPipe[T_co]):
    """Yields an item if a function returns True for it. The filter closes the streams in items that it does not yield.

    Args:
        datapipe: the pipe to read.
        filter_fn: a function from an item (or its columns) to a bool.
        input_col: the parts of an item that `filter_fn` receives. If `input_col` is None (the default), `filter_fn`
            receives the item itself. If `input_col` is an index or key, `filter_fn` receives this part of the item. If
            `input_col` is a list or tuple of indices or keys, `filter_fn` receives these parts of the item as
            arguments.

    Raises:
        TypeError: `filter_fn` is not a function.
        ValueError: the number of arguments of `filter_fn` differs from the number of input columns; while iterating,
            `filter_fn` returned something other than a bool.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(5)).filter(lambda n: n % 2 == 0))
        [0, 2, 4]
    """

    iteration_state = ()

    @overload
    def __init__(
        self, datapipe: Iterable[T_co], filter_fn: Callable[[T_co], bool | bool_], input_col: None = None
    ) -> None: ...

    @overload
    def __init__(self, datapipe: Iterable[T_co], filter_fn: Callable[..., bool | bool_], input_col: Any) -> None: ...

    def __init__(self, datapipe: Iterable[T_co], filter_fn: Callable[..., Any], input_col: Any = None) -> None:
        self.datapipe = check_source("Filter", datapipe)
        check_callable("Filter", "filter_fn", filter_fn)
        check_input_col("Filter", filter_fn, input_col)
        self.filter_fn = filter_fn
        self.input_col = input_col

    def __iter__(self) -> Iterator[T_co]:
        predicate = on_columns(self.filter_fn, self.input_col)
        return FilterIterator(iter(self.datapipe), predicate, _PLAIN, close_dropped, _to_bool)

    def __len__(self) -> int:
        raise no_length(self, "A Filter cannot know how many items it keeps; put .set_length(n) after it")


_NO_LENGTH = "The length of this HeaderIterDataPipe cannot be determined."

_PLAIN: tuple[type, ...] = tuple(PLAIN_TYPES)


def _to_bool(keep: Any) -> bool:
    if type(keep).__name__ in ("bool_", "bool") and type(keep).__module__ == "numpy":
        return bool(keep)
    raise ValueError(
        f"Filter: filter_fn must return a bool, but returned {keep!r} of type {type(keep).__name__}; "
        "wrap the result in bool(). Boolean output is required for `filter_fn` of FilterIterDataPipe, got "
        f"{type(keep)}"
    )


class Header(IterDataPipe[T_co]):
    """Yields only the first items.

    Args:
        source_datapipe: the pipe to read.
        limit: number of items, 10 by default; None for all.

    Raises:
        ValueError: `limit` is negative.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(10)).header(3))
        [0, 1, 2]
    """

    iteration_state = ()

    def __init__(self, source_datapipe: Iterable[T_co], limit: int | None = 10) -> None:
        self.source_datapipe = check_source("Header", source_datapipe, "source_datapipe")
        self.limit = check_optional_int("Header", "limit", limit, least=0)

    def __iter__(self) -> Iterator[T_co]:
        source = iter(self.source_datapipe)
        return source if self.limit is None else islice(source, max(0, self.limit - token_of(self).yielded))

    def __len__(self) -> int:
        try:
            length = len(self.source_datapipe)  # type: ignore[arg-type]
        except TypeError as error:
            if self.limit is None:
                raise no_length(self, f"{_NO_LENGTH} There is no limit, and the source has no length") from error
            warn_of_length(
                "The length of this HeaderIterDataPipe is inferred to be equal to its limit, because its source does "
                "not know its own; it is smaller where the source ends earlier."
            )
            return self.limit
        return length if self.limit is None else min(length, self.limit)
