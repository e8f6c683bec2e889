"""Pipes that call the user's function on every item: Mapper, FlatMapper, Collator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, Literal, overload

from torchdata.datapipes._pipe.checks import (
    check_callable,
    check_input_col,
    check_output_col,
    check_source,
    no_length,
    wrong_type,
)
from torchdata.datapipes._pipe.columns import chosen, on_columns, replacing_columns
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.unfolding import Unfolding
from torchdata.datapipes._pipe.unloaded import Load, PipeStep, begin_unloaded, can_wait
from torchdata.datapipes.datapipe import IterDataPipe, R, T, T_co
from torchdata.datapipes.utils.collate import collate_columns, default_collate

__all__ = ["Collator", "FlatMapper", "Mapper"]


class Mapper(ItemByItem[T_co]):
    """Applies a function to every item, or to columns of it.

    Args:
        datapipe: the pipe to read.
        fn: the function. Lambdas and local functions also work with worker processes.
        input_col: the parts of an item that `fn` receives. If `input_col` is None (the default), `fn` receives the item
            itself. If `input_col` is an index or key, `fn` receives this part of the item. If `input_col` is a list or
            tuple of indices or keys, `fn` receives these parts of the item as arguments.
        output_col: where the result is stored: an index or key, or -1 to append the result. Requires `input_col`. If
            `output_col` is None (the default), the result replaces the first input column, and all further input
            columns are removed.

    Raises:
        TypeError: `fn` is not a function.
        ValueError: the number of arguments of `fn` differs from the number of input columns, `output_col` is given
            without `input_col`, or `output_col` contains several columns.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(1, 2), (3, 4)]).map(lambda a, b: a + b, input_col=[0, 1], output_col=-1))
        [(1, 2, 3), (3, 4, 7)]
    """

    @overload
    def __init__(
        self: Mapper[R], datapipe: Iterable[T], fn: Callable[[T], R], input_col: None = None, output_col: None = None
    ) -> None: ...

    @overload
    def __init__(
        self: Mapper[Any], datapipe: Iterable[Any], fn: Callable[..., Any], input_col: Any, output_col: Any = None
    ) -> None: ...

    def __init__(
        self, datapipe: Iterable[Any], fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        name = type(self).__name__
        self.datapipe = check_source(name, datapipe)
        check_callable(name, "fn", fn)
        self.fn = fn
        self.input_col = input_col
        self.output_col = check_output_col(name, fn, input_col, output_col)

    def _function(self) -> Callable[[Any], Any]:
        return self.fn if self.input_col is None else replacing_columns(self.fn, self.input_col, self.output_col)

    def _can_wait(self) -> bool:
        return can_wait(self.datapipe)

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        indices, load = begin_unloaded(self.datapipe)
        return indices, PipeStep(self, self._function(), load)

    def _loads(self) -> Load:
        return PipeStep(self, self._function(), self.datapipe._loads())  # type: ignore[attr-defined]


class Collator(Mapper[T_co]):
    """Converts each batch to arrays, or to tensors if PyTorch is imported, with the items along the first dimension.

    Args:
        datapipe: the pipe to read, of batches.
        conversion: how to collate: a function of the batch; a dict from column name to function, for batches of dicts
            (each function receives the list of its column's values) or batches of one data frame (each function
            receives its column, and the result is a named tuple); or a list with a function for each column, for
            batches of tuples or lists. Columns without a function (by default, all columns) are collated by
            `default_collate`.
        collate_fn: a function that converts a whole batch, used instead of `conversion`; None by default.
        to: the kind of results of `default_collate`: "numpy" for arrays, "torch" for tensors, whether or not PyTorch is
            imported. If `to` is None (the default), the logger `torchdata` reports once at level INFO that batches
            become tensors.

    Raises:
        TypeError: a conversion is not a function, a dict or a list.
        ValueError: `to` has an unsupported value, or is given with your own function.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(4)).batch(2).collate())
        [array([0, 1]), array([2, 3])]
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        conversion: Any = default_collate,
        collate_fn: Callable[..., Any] | None = None,
        *,
        to: Literal["numpy", "torch"] | None = None,
    ) -> None:
        if to is not None:
            if to not in ("numpy", "torch"):
                raise ValueError(f"Collator: to must be 'numpy', 'torch' or None, but got {to!r}")
            if collate_fn is not None or conversion is not default_collate:
                raise ValueError("Collator: to works only with the default function; convert in your own function")
            collate_fn = partial(default_collate, to=to)
        elif collate_fn is None:
            if conversion is default_collate and "torch" in sys.modules:
                _log_tensors()
            if callable(conversion):
                collate_fn = conversion
            else:
                _check_conversion(conversion)
                collate_fn = partial(collate_columns, conversion)
        else:
            check_callable("Collator", "collate_fn", collate_fn)
        super().__init__(datapipe, fn=collate_fn)


@cache
def _log_tensors() -> None:
    """Logs that batches become tensors, because users may not expect this if another library has imported PyTorch."""
    import logging

    logging.getLogger("torchdata").info(
        "collate() makes tensors, because PyTorch is loaded; collate(to='numpy') makes arrays, and collate(to='torch') "
        "makes tensors without this message"
    )


def _check_conversion(conversion: Any) -> None:
    if not isinstance(conversion, (dict, list, tuple)):
        wanted = "a function, a dict from column to function or a list of functions"
        raise wrong_type("Collator", "conversion", wanted, conversion)
    for column, function in conversion.items() if isinstance(conversion, dict) else enumerate(conversion):
        check_callable("Collator", f"the conversion of column {column!r}", function)


class FlatMapper(Unfolding, IterDataPipe[T_co]):
    """Applies a function to every item and yields the members of its results one after another.

    Args:
        datapipe: the pipe to read.
        fn: a function from an item (or its columns) to an iterable. If `fn` is None (the default), the items
            themselves, or their columns `input_col`, are the iterables. If the function returns a generator, a resumed
            run calls the function again for the current item.
        input_col: the parts of an item that `fn` receives, as for `map`.

    Raises:
        TypeError: `fn` is not a function.
        ValueError: the number of arguments of `fn` differs from the number of input columns.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([1, 2]).flatmap(lambda n: [n, 10 * n]))
        [1, 10, 2, 20]
    """

    @overload
    def __init__(
        self: FlatMapper[R], datapipe: Iterable[T], fn: Callable[[T], Iterable[R]], input_col: None = None
    ) -> None: ...

    @overload
    def __init__(self: FlatMapper[Any], datapipe: Iterable[Any], fn: None = None, input_col: Any = None) -> None: ...

    @overload
    def __init__(self: FlatMapper[Any], datapipe: Iterable[Any], fn: Callable[..., Any], input_col: Any) -> None: ...

    def __init__(self, datapipe: Iterable[Any], fn: Callable[..., Any] | None = None, input_col: Any = None) -> None:
        self.datapipe = check_source("FlatMapper", datapipe)
        function = chosen if fn is None else fn
        check_callable("FlatMapper", "fn", function)
        check_input_col("FlatMapper", function, input_col)
        self.fn: Callable[..., Any] = function
        self.input_col = input_col

    def __iter__(self) -> Iterator[T_co]:
        return self._unfold(iter(self.datapipe), on_columns(self.fn, self.input_col))

    def __len__(self) -> int:
        raise no_length(self, "FlatMapper's length relies on the output of its function")
