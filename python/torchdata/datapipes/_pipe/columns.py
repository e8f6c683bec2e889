"""Applying a function to columns of an item, as `map`, `filter` and `flatmap` do.

Role: builds, once per iteration, the cheapest function from item to result for given columns. Runs in the
process that iterates the pipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def chosen(*columns: Any) -> Any:
    """Returns the columns of an item as pipes hand them on: one column, or the item, as it is, several as a tuple."""
    return columns[0] if len(columns) == 1 else columns


def on_columns(function: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    """A function of an item that calls `function` with its columns `input_col` (None: with the item)."""
    if input_col is None:
        return function
    if isinstance(input_col, (list, tuple)):
        columns = tuple(input_col)

        def with_columns(item: Any) -> Any:
            return function(*[item[column] for column in columns])

        return with_columns

    def with_column(item: Any) -> Any:
        return function(item[input_col])

    return with_column


def replacing_columns(function: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[[Any], Any]:
    """A function of an item that puts `function`'s result over the item's columns into the item.

    It goes to `output_col` (-1 appends, as far as the item is a sequence); without one to the first input
    column, and the other input columns are removed. Tuples come out as new tuples, other items are changed in place.
    """
    apply = on_columns(function, input_col)
    many = isinstance(input_col, (list, tuple))
    target = output_col if output_col is not None else input_col[0] if many else input_col
    surplus = sorted(input_col[1:], reverse=True) if many and output_col is None else ()
    append = output_col is not None and output_col == -1

    def replaced(item: Any) -> Any:
        result = apply(item)
        changed = list(item) if isinstance(item, tuple) else item
        if append:
            changed.append(result)
        else:
            changed[target] = result
            for column in surplus:
                del changed[column]
        return tuple(changed) if isinstance(item, tuple) else changed

    return replaced
