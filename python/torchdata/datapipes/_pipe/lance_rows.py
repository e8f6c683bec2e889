"""Reads rows of a Lance dataset by index.

Role: `LanceRows` is an `ArrowSource` whose parts are ranges of rows. Each process opens the dataset itself by its
location and version, because an open dataset of Lance does not work in a forked child. Listing the parts reads only the
number of rows, or with a filter the columns that the filter uses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.datapipes._pipe.arrow_sources import ArrowSource
from torchdata.datapipes._pipe.checks import explaining

PART_ROWS = 1024

#: Open datasets that a forked child has inherited and never frees, because freeing needs threads that exist only in the
#: parent process.
_inherited: list[Any] = []


def lance_dataset(pipe: str, dataset: Any) -> Any:
    if isinstance(dataset, (str, os.PathLike)):
        lance = optional_import("lance", extra="lance", needed_by=pipe)
        with explaining(pipe, "cannot open", dataset):
            return lance.dataset(os.fspath(dataset))
    if type(dataset).__module__.partition(".")[0] != "lance":
        raise TypeError(
            f"{pipe}: dataset must be a lance.LanceDataset, or the path or URI of one, but got {shown(dataset)} of "
            f"type {type(dataset).__name__}"
        )
    return dataset


class _Ranges(Sequence[str]):
    """The names of a dataset's parts, created on demand, because each row may be a part."""

    def __init__(self, dataset: str, rows: int, part_rows: int, kind: str) -> None:
        self._dataset, self._rows, self._part_rows, self._kind = dataset, rows, part_rows, kind

    def __len__(self) -> int:
        return -(-self._rows // self._part_rows)

    def __getitem__(self, part: Any) -> Any:
        if not 0 <= part < len(self):
            raise IndexError(f"there are parts 0 to {len(self) - 1} of {self._dataset}, but {part} was asked for")
        first, end = part * self._part_rows, min((part + 1) * self._part_rows, self._rows)
        rows = f"row {first}" if end == first + 1 else f"rows {first} to {end - 1}"
        return f"{rows} {self._kind} {self._dataset}"


class LanceRows(ArrowSource):
    """The parts of a Lance dataset are ranges of rows.

    Args:
        filter: a SQL expression, a pyarrow expression, or None.
        part_rows: the number of rows per part; the last part may have fewer.
    """

    def __init__(self, dataset: Any, filter: Any, part_rows: int | None) -> None:
        self._opening = dataset.__reduce__()
        self._part_rows = PART_ROWS if part_rows is None else part_rows
        #: Indices of the rows that pass the filter; None without a filter.
        self._chosen: Any = None
        if filter is not None:
            self._chosen = dataset.to_table(columns=["_rowoffset"], filter=filter)["_rowoffset"].to_numpy()
        self._count: int = dataset.count_rows() if filter is None else len(self._chosen)
        kind = "of" if filter is None else "that the filter leaves of"
        title = f"version {dataset.version} of {shown(dataset.uri)}"
        super().__init__(_Ranges(title, self._count, self._part_rows, kind), dataset.schema)
        self._handle: tuple[int, Any] | None = os.getpid(), dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None}

    def _dataset(self) -> Any:
        process, handle = self._handle or (None, None)
        if process != os.getpid():
            if handle is not None:
                _inherited.append(handle)
            optional_import("lance", extra="lance", needed_by="ArrowReader")
            function, arguments = self._opening
            handle = function(*arguments)
            self._handle = os.getpid(), handle
        return handle

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        return self.read_all([part], columns, use_threads)

    def read_all(self, parts: list[int], columns: list[str] | None, use_threads: bool) -> Any:
        """Reads the rows of all parts in a single request, which is faster than one request per part."""
        size = self._part_rows
        rows = [row for part in parts for row in range(part * size, min(part * size + size, self._count))]
        return self._dataset().take(rows if self._chosen is None else self._chosen[rows].tolist(), columns)
