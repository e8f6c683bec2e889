"""Reads tables part by part: pyarrow datasets, in-memory tables, and Delta Lake, Iceberg and Lance tables.

A part is a row group of a Parquet file, a file of another format, a chunk of an in-memory table, a data file of an
Iceberg table, or a range of rows of a Lance dataset. An `ArrowSource` can be pickled, because it contains no open file.
To list the parts of a table, only the metadata of its files is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import explaining

_KINDS = "a pyarrow data set or table, a table of deltalake, pyiceberg or lance, a path, or a list of paths"

PART_ROWS = 1024

#: Open Lance datasets that a forked child inherits and never frees, because freeing needs threads of the parent
#: process.
_inherited: list[Any] = []


def _arrow(module: str = "pyarrow") -> Any:
    return optional_import(module, extra="parquet", needed_by="ArrowParts")


class ArrowSource:
    def __init__(self, names: Sequence[str], schema: Any) -> None:
        self.names, self.schema = names, schema

    def __deepcopy__(self, memo: Any) -> ArrowSource:
        return self  # a source never changes and may be large, so it is not copied

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        """Returns the rows of a part that pass the filter. The result has the columns in `columns`, or all columns if
        `columns` is None."""
        raise NotImplementedError

    def read_all(self, parts: list[int], columns: list[str] | None, use_threads: bool) -> Any:
        return _arrow().concat_tables([self.read(part, columns, use_threads) for part in parts])

    def check_columns(self, columns: list[str] | None) -> None:
        for column in columns or ():
            if column not in self.schema.names:
                raise ValueError(f"ArrowReader: there is no column {column!r}; there are {self.schema.names}")


class ArrowFragments(ArrowSource):
    """The row groups or files of a pyarrow dataset. A part is excluded if its statistics prove that none of its rows
    passes the filter.

    Args:
        lacks: whether a column that is missing in a file is filled with nulls (True) or raises an error (False).
    """

    def __init__(self, dataset: Any, filter: Any, lacks: bool = False) -> None:
        fragments: list[Any] = []
        for fragment in sorted(dataset.get_fragments(filter=filter), key=lambda each: getattr(each, "path", "")):
            split = getattr(fragment, "split_by_row_group", None)
            parts = [fragment] if split is None else split(filter, dataset.schema)
            fragments += [part for part in parts if split is None or any(each.num_rows for each in part.row_groups)]
        names = []
        for fragment in fragments:
            groups = [group.id for group in getattr(fragment, "row_groups", None) or ()]
            path = getattr(fragment, "path", type(fragment).__name__)
            names.append(f"row group {groups[0]} of {path}" if groups else path)
        super().__init__(names, dataset.schema)
        self._fragments, self._filter, self._lacks = fragments, filter, lacks

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        fragment = self._fragments[part]
        present = fragment.physical_schema
        wanted = columns if columns is not None else self.schema.names
        _check_fragment(fragment, present, self.schema, wanted, self._lacks)
        return fragment.to_table(schema=self.schema, columns=columns, filter=self._filter, use_threads=use_threads)


def _check_fragment(fragment: Any, present: Any, schema: Any, wanted: list[str], lacks: bool) -> None:
    """Raises an error if the file lacks a column, or if the types of a column in the file and in the table belong to
    different families. pyarrow itself would fill in nulls or convert the values instead of raising an error."""
    known = _arrow("pyarrow.dataset").get_partition_keys(fragment.partition_expression)
    for column in wanted:
        if column in present.names:
            kinds = present.field(column).type, schema.field(column).type
            if _family(kinds[0]) != _family(kinds[1]):
                raise ValueError(f"column {column!r} is of type {kinds[0]} in the file, and of {kinds[1]} in the table")
        elif column not in known and not lacks:
            raise ValueError(f"the file has no column {column!r}; it has {present.names}")


def _family(kind: Any) -> str:
    """Returns the family of an Arrow type, such as "integer". The type of a column in a file may differ from the
    column's type in the table if both types belong to the same family."""
    types = _arrow().types
    if types.is_dictionary(kind):
        return _family(kind.value_type)
    for family in ("integer", "floating", "decimal", "timestamp", "date"):
        if getattr(types, f"is_{family}")(kind):
            return family
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    return str(kind)


class ArrowChunks(ArrowSource):
    def __init__(self, table: Any, filter: Any) -> None:
        self._batches = [batch for batch in table.to_batches() if batch.num_rows]
        super().__init__([f"chunk {number}" for number in range(len(self._batches))], table.schema)
        self._filter = filter

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        table = _arrow().Table.from_batches([self._batches[part]])
        if self._filter is not None:
            table = table.filter(self._filter)
        return table if columns is None else table.select(columns)


class IcebergFiles(ArrowSource):
    """The data files of an Iceberg table. pyiceberg plans the scan, applies deletes, and matches columns by id."""

    def __init__(self, table: Any, filter: Any) -> None:
        scan = table.scan() if filter is None else table.scan(row_filter=filter)
        self._metadata, self._io, self._row_filter = table.metadata, table.io, scan.row_filter
        self._schema = scan.projection()
        self._tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
        super().__init__([str(task.file.file_path) for task in self._tasks], self._schema.as_arrow())

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        ArrowScan = optional_import("pyiceberg.io.pyarrow", extra="iceberg", needed_by="ArrowParts").ArrowScan
        schema = self._schema if columns is None else self._schema.select(*columns)
        scan = ArrowScan(self._metadata, self._io, schema, self._row_filter)
        table = scan.to_table([self._tasks[part]])
        return table if columns is None else table.select(columns)


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
    """The names of a dataset's parts, created on demand, because a dataset may have millions of parts."""

    def __init__(self, dataset: str, rows: int, part_rows: int, kind: str) -> None:
        self._dataset, self._rows, self._part_rows, self._kind = dataset, rows, part_rows, kind

    def __len__(self) -> int:
        return -(-self._rows // self._part_rows)

    def __getitem__(self, part: Any) -> Any:
        if not 0 <= part < len(self):
            raise IndexError(f"there are parts 0 to {len(self) - 1} of {self._dataset}, but got part {part}")
        first, end = part * self._part_rows, min((part + 1) * self._part_rows, self._rows)
        rows = f"row {first}" if end == first + 1 else f"rows {first} to {end - 1}"
        return f"{rows} {self._kind} {self._dataset}"


class LanceRows(ArrowSource):
    """Reads ranges of rows of a Lance dataset. Each process opens the dataset by its location and version, because an
    open dataset of Lance does not work in a forked child.

    Args:
        filter: the rows to read, as a SQL expression or a pyarrow expression; None for all rows.
        part_rows: the number of rows per part; the last part may have fewer.
    """

    def __init__(self, dataset: Any, filter: Any, part_rows: int | None) -> None:
        self._opening = dataset.__reduce__()
        self._part_rows = PART_ROWS if part_rows is None else part_rows
        #: The indices of the rows that pass the filter; None if no filter was given.
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


def arrow_source(source: Any, filter: Any, format: str, part_rows: int | None = None) -> ArrowSource:
    library = type(source).__module__.partition(".")[0]
    if library == "lance" or (isinstance(source, (str, os.PathLike)) and format == "lance"):
        return LanceRows(lance_dataset("ArrowParts", source), filter, part_rows)
    if part_rows is not None:
        raise ValueError(
            f"ArrowParts: part_rows works only with Lance datasets, but {shown(source)} is not a Lance dataset"
        )
    if isinstance(source, (str, os.PathLike)) and format == "delta":
        source = optional_import("deltalake", extra="deltalake", needed_by="ArrowParts").DeltaTable(os.fspath(source))
    elif isinstance(source, (str, os.PathLike)) and format == "iceberg":
        tables = optional_import("pyiceberg.table", extra="iceberg", needed_by="ArrowParts")
        source = tables.StaticTable.from_metadata(os.fspath(source))
    arrow, dataset = _arrow(), _arrow("pyarrow.dataset")
    library = type(source).__module__.partition(".")[0]  # the source may be a table that was opened by its path
    if library == "pyiceberg":
        return IcebergFiles(source, filter)
    if library == "deltalake":
        return ArrowFragments(source.to_pyarrow_dataset(), filter, lacks=True)
    if isinstance(source, arrow.RecordBatch):
        source = arrow.Table.from_batches([source])
    elif isinstance(source, (str, os.PathLike)) or (
        isinstance(source, (list, tuple)) and source and all(isinstance(each, (str, os.PathLike)) for each in source)
    ):
        paths = os.fspath(source) if isinstance(source, (str, os.PathLike)) else [os.fspath(each) for each in source]
        with explaining("ArrowParts", "cannot open", source):
            source = dataset.dataset(paths, format=format)
    if isinstance(source, arrow.Table):
        return ArrowChunks(source, filter)
    if isinstance(source, dataset.Dataset):
        return ArrowFragments(source, filter)
    raise TypeError(f"ArrowParts: source must be {_KINDS}, but got {shown(source)} of type {type(source).__name__}")
