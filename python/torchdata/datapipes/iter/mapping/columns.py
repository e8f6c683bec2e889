"""Pipes that select or unfold columns of each item: Flattener, Slicer, Dropper.

Items are tuples or lists with numbered columns, or dicts with the columns as keys. If an item lacks a requested column,
the pipe warns and yields the item without this column.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any

from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_hashable, check_optional_int, check_source
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes.datapipe import T_co

__all__ = ["Dropper", "Flattener", "Slicer"]


_LENGTHS = 256


def _lacks(pipe: str, item: Any, columns: Iterable[Any]) -> bool:
    """Returns whether an item lacks one of the columns. Negative indices do not count from the end, so a tuple or list
    always lacks columns with negative indices."""
    for column in columns:
        try:
            item[column]
        except (IndexError, KeyError):
            return True
        except TypeError as error:
            advice = "; pass several columns as a list" if isinstance(column, tuple) else ""
            raise TypeError(
                f"{pipe}: an item of type {type(item).__name__} has no column {column!r}: {error}{advice}"
            ) from error
        if isinstance(column, int) and column < 0 and not isinstance(item, dict):
            return True
    return False


def _warn_of_missing(pipe: str, columns: Any) -> None:
    warn_outside(
        f"{pipe}: at least one of the columns {columns!r} is not present in an item; the resulting item may lack "
        "columns or keys."
    )


def _warn_of_type(pipe: str, item: Any) -> None:
    warn_outside(
        f"{pipe}: an item of type {type(item).__name__} is not a tuple, list or dict; it is passed on unchanged. "
        "The next item was not an iterable and cannot be filtered, please be aware that no filter was done or new item "
        "created."
    )


def _selecting(pipe: str, columns: Sequence[Any], chosen: Callable[[Any], bool]) -> Callable[[Any], Any]:
    @lru_cache(maxsize=_LENGTHS)
    def selectors(kind: type, length: int) -> tuple[list[bool], bool]:
        return list(map(chosen, range(length))), _lacks(pipe, kind((None,) * length), columns)

    def selected(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            kind = tuple if isinstance(item, tuple) else list
            keep, missing = selectors(kind, len(item))
            kept: Any = kind(compress(item, keep))
        elif isinstance(item, dict):
            kept = {key: value for key, value in item.items() if chosen(key)}
            missing = _lacks(pipe, item, columns)
        else:
            _warn_of_type(pipe, item)
            kept, missing = item, _lacks(pipe, item, columns)
        if missing:
            _warn_of_missing(pipe, columns)
        return kept

    return selected


class Dropper(ItemByItem[T_co]):
    """Removes columns from every item.

    Args:
        datapipe: the pipe to read, of tuples, lists or dicts.
        indices: the column to remove, or a list of columns. Columns are keys of dicts, or indices from 0; negative
            indices do not count from the end. A missing column causes a warning.

    Raises:
        TypeError: a column is not hashable; or, while iterating, the column does not fit the item, for example a name
            if the item is a tuple.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(0, 10, 100), (1, 11, 101)]).drop([0, 2]))
        [(10,), (11,)]
        >>> list(IterableWrapper([{"image": 1, "label": 2}]).drop("image"))
        [{'label': 2}]
    """

    def __init__(self, datapipe: Iterable[Any], indices: Hashable | list[Hashable]) -> None:
        self.datapipe = check_source("Dropper", datapipe)
        columns = indices if isinstance(indices, list) else [indices]
        check_hashable("Dropper", "indices", columns)
        self.indices: set[Hashable] = set(columns)

    def _function(self) -> Callable[[Any], Any]:
        dropped = self.indices
        return _selecting("Dropper", list(dropped), lambda column: column not in dropped)


class Slicer(ItemByItem[T_co]):
    """Keeps some columns of every item.

    Args:
        datapipe: the pipe to read, of tuples, lists or dicts.
        index: the start of a slice of each item (for dicts, the key to keep), or a list of columns to keep, in the
            order of the item. A missing column or key causes a warning. If `index` is a key that a dict lacks, the dict
            is yielded unchanged.
        stop: the end of the slice; not used if the items are dicts, or if `index` is a list.
        step: the step of the slice; not used if the items are dicts, or if `index` is a list.

    Raises:
        ValueError: `step` is 0.
        TypeError: `stop` or `step` is not an integer, or a column is not hashable; or, while iterating, the column does
            not fit the item, for example a name if the item is a tuple.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(0, 10, 100), (1, 11, 101)]).slice(0, 2))
        [(0, 10), (1, 11)]
        >>> list(IterableWrapper([{"image": 1, "label": 2, "name": 3}]).slice(["image", "name"]))
        [{'image': 1, 'name': 3}]
    """

    def __init__(self, datapipe: Iterable[Any], index: Any, stop: int | None = None, step: int | None = None) -> None:
        self.datapipe = check_source("Slicer", datapipe)
        check_hashable("Slicer", "index", index if isinstance(index, list) else [index])
        for argument, value in (("stop", stop), ("step", step)):
            check_optional_int("Slicer", argument, value)
        if step == 0:
            raise ValueError("Slicer: step must not be 0")
        if isinstance(index, list) and (stop or step):
            warn_outside(
                "Slicer: A list of indices was passed as well as a stop or step for the slice, these arguments can't "
                "be used together so only the indices list will be used."
            )
        self.index = index
        self.stop = stop
        self.step = step

    def _function(self) -> Callable[[Any], Any]:
        if isinstance(self.index, list):
            return _selecting("Slicer", self.index, frozenset(self.index).__contains__)
        return self._sliced

    def _sliced(self, item: Any) -> Any:
        index = self.index
        if isinstance(item, (tuple, list)):
            try:
                return item[index : self.stop : self.step]
            except TypeError as error:
                raise TypeError(
                    f"Slicer: an item of type {type(item).__name__} cannot be sliced from {index!r}: {error}; "
                    "pass several columns as a list"
                ) from error
        if isinstance(item, dict):
            if index in item:
                return {index: item[index]}
            warn_outside(
                f"Slicer: a dict has no key {index!r}, and dicts are not sliced by position; it is passed on as it is. "
                "Pass the keys to keep as a list. Dictionaries are not sliced by steps, only direct index. Please be "
                "aware that no filter was done or new item created."
            )
            return item
        _warn_of_type("Slicer", item)
        return item


class Flattener(ItemByItem[T_co]):
    """Replaces each nested tuple, list or dict in an item with its members, one level deep.

    In tuples and lists, columns that are tuples or lists are flattened; in dicts, columns that are dicts are flattened.
    Other columns stay unchanged. A member with a key that the item already has is left out, with a warning.

    Args:
        datapipe: the pipe to read.
        indices: the column to flatten, or a list of columns; None (the default) for all. A missing column causes a
            warning.

    Raises:
        TypeError: a column is not hashable; or, while iterating, an item is not iterable, or the column does not fit
            the item, for example a name if the item is a tuple.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(0, (1, 2)), (3, (4, 5))]).flatten())
        [(0, 1, 2), (3, 4, 5)]
        >>> list(IterableWrapper([{"id": 7, "size": {"width": 3, "height": 4}}]).flatten("size"))
        [{'id': 7, 'width': 3, 'height': 4}]
    """

    def __init__(self, datapipe: Iterable[Any], indices: Hashable | list[Hashable] | None = None) -> None:
        self.datapipe = check_source("Flattener", datapipe)
        columns = [] if indices is None else indices if isinstance(indices, list) else [indices]
        check_hashable("Flattener", "indices", columns)
        self.indices: set[Hashable] = set(columns)

    def _result(self, item: Any) -> Any:
        flat: Any
        columns = self.indices
        if isinstance(item, dict):
            flat = self._flattened_dict(item)
        else:
            flat = []
            for column, member in enumerate(item):
                if isinstance(member, (list, tuple)) and (not columns or column in columns):
                    flat.extend(member)
                else:
                    flat.append(member)
            if isinstance(item, tuple):
                flat = tuple(flat)
        if columns and _lacks("Flattener", item, columns):
            _warn_of_missing("Flattener", list(columns))
        return flat

    def _flattened_dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        flat: dict[Any, Any] = {}
        columns = self.indices
        for key, value in item.items():
            if not isinstance(value, dict) or (columns and key not in columns):
                flat[key] = value
                continue
            for inner, member in value.items():
                if inner in item:
                    warn_outside(
                        f"Flattener: the item has a key {inner!r} already; the pair with this key in column {key!r} is "
                        "omitted."
                    )
                else:
                    flat[inner] = member
        return flat
