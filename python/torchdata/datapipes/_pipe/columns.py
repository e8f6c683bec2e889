"""Applies a function to columns of an item, for `map`, `filter` and `flatmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from itertools import islice
from typing import Any

from torchdata._reporting import add_note


def chosen(*columns: Any) -> Any:
    return columns[0] if len(columns) == 1 else columns


def on_columns(function: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    if input_col is None:
        return function
    if isinstance(input_col, (list, tuple)):
        columns = tuple(input_col)

        def with_columns(item: Any) -> Any:
            try:
                values = [item[column] for column in columns]
            except (LookupError, TypeError) as error:
                _note_columns(error, item, input_col)
                raise
            return function(*values)

        return with_columns

    def with_column(item: Any) -> Any:
        try:
            value = item[input_col]
        except (LookupError, TypeError) as error:
            _note_columns(error, item, input_col)
            raise
        return function(value)

    return with_column


def _note_columns(error: Exception, item: Any, input_col: Any) -> None:
    if isinstance(item, Mapping):
        has = f"a {type(item).__name__} with the keys {', '.join(map(repr, islice(item, 20))) or 'none'}"
    elif isinstance(item, Sized) and not isinstance(item, (str, bytes)):
        has = f"a {type(item).__name__} of length {len(item)}"
    else:
        has = f"of type {type(item).__name__}, which has no columns"
    add_note(error, f"input_col={input_col!r} asks for a column that the item lacks: the item is {has}.")


def replacing_columns(function: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[[Any], Any]:
    """Returns a function that applies `function` to the input columns of an item and stores the result in the item.

    If `output_col` is None, the result replaces the first input column, and the remaining input columns are removed. If
    `output_col` is -1, the result is appended to the item. Items are modified and not copied, except tuples, which are
    replaced by new tuples.
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
