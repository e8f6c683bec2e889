"""Pipes over rows that are dicts or lists, and batches of them: Rows2Columnar, IndexAdder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import count
from typing import Any

from torchdata.datapipes._pipe.checks import check_hashable, check_source, with_type
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.state.record import passed
from torchdata.datapipes.datapipe import IterDataPipe

__all__ = ["IndexAdder", "Rows2Columnar"]


class Rows2Columnar(SameLength, IterDataPipe[dict[Any, list[Any]]]):
    """Converts batches of rows to dicts of columns.

    Args:
        source_datapipe: the pipe to read. The items are batches. Each row of a batch is a dict, or a sequence of the
            columns in order.
        column_names: a collection of names. If rows are dicts, `column_names` contains the keys to use (by default all
            keys of each row). If rows are sequences, `column_names` contains the names of their columns in order.

    Raises:
        TypeError: `column_names` is a string, or not a collection.
        KeyError: while iterating, a row lacks one of `column_names`.
        IndexError: while iterating, a row has more columns than `column_names`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> for columns in IterableWrapper([[{"a": 1, "b": 2}, {"a": 3, "b": 4}]]).rows2columnar():
        ...     print(dict(columns))
        {'a': [1, 3], 'b': [2, 4]}
        >>> for columns in IterableWrapper([[(1, 2), (3, 4)]]).rows2columnar(["x", "y"]):
        ...     print(dict(columns))
        {'x': [1, 3], 'y': [2, 4]}
    """

    iteration_state = ()

    def __init__(self, source_datapipe: Iterable[Any], column_names: Collection[Hashable] | None = None) -> None:
        self.source_datapipe = check_source("Rows2Columnar", source_datapipe, "source_datapipe")
        if isinstance(column_names, (str, bytes)) or not isinstance(column_names, Collection | None):
            raise TypeError(f"Rows2Columnar: column_names must be a list of names, but got {column_names!r}")
        self.column_names: list[Hashable] = [] if column_names is None else list(column_names)
        check_hashable("Rows2Columnar", "column_names", self.column_names)

    def __iter__(self) -> Iterator[dict[Any, list[Any]]]:
        return map(self._columns, self.source_datapipe)

    def _columns(self, batch: Iterable[Any]) -> dict[Any, list[Any]]:
        columns: dict[Any, list[Any]] = defaultdict(list)
        names = self.column_names
        for row in batch:
            if not isinstance(row, dict):
                for number, value in enumerate(row):
                    if number >= len(names):
                        raise IndexError(
                            f"Rows2Columnar: a row has more than the {len(names)} columns of column_names: {row!r}"
                        )
                    columns[names[number]].append(value)
                continue
            for name in names or row:
                try:
                    columns[name].append(row[name])
                except KeyError as error:
                    raise KeyError(
                        f"Rows2Columnar: a row has no column {name!r}; its columns are {list(row)}"
                    ) from error
        return columns


class IndexAdder(SameLength, IterDataPipe[dict[Any, Any]]):
    """Stores the number of each item, starting with 0, in the item itself, which must be a dict.

    The dicts are modified, not copied.

    Args:
        source_datapipe: the pipe to read, of dicts.
        index_name: the key of the number, "index" by default. An existing value is replaced.

    Raises:
        TypeError: `index_name` cannot be a key.
        NotImplementedError: while iterating, an item is not a dict.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([{"a": 5}, {"a": 6}]).add_index("order"))
        [{'a': 5, 'order': 0}, {'a': 6, 'order': 1}]
    """

    iteration_state = ()

    def __init__(self, source_datapipe: Iterable[dict[Any, Any]], index_name: Hashable = "index") -> None:
        self.source_datapipe = check_source("IndexAdder", source_datapipe, "source_datapipe")
        check_hashable("IndexAdder", "index_name", [index_name])
        self.index_name = index_name

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        return map(self._numbered, self.source_datapipe, count(passed(self)))

    def _numbered(self, item: Any, number: int) -> dict[Any, Any]:
        if not isinstance(item, dict):
            raise NotImplementedError(
                f"IndexAdder: We only support adding index to row or batch in dict type, but got {with_type(item)}"
            )
        item[self.index_name] = number
        return item
