"""Reads tables part by part: pyarrow datasets, in-memory tables, and Delta Lake, Iceberg and Lance tables.

A part is a row group of a Parquet file, a file of another format, a chunk of an in-memory table, a data file of an
Iceberg table, or a range of rows of a Lance dataset. An `ArrowSource` can be pickled, because it contains no open file.
Listing its parts reads only metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchdata._optional import optional_import


def _arrow(module: str = "pyarrow") -> Any:
    return optional_import(module, extra="parquet", needed_by="ArrowParts")


class ArrowSource:
    def __init__(self, names: Sequence[str], schema: Any) -> None:
        self.names, self.schema = names, schema

    def __deepcopy__(self, memo: Any) -> ArrowSource:
        return self  # a source never changes and may be large, so it is not copied

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        """Returns the rows of a part that pass the filter. The table has the given columns in their order; None means
        all columns."""
        raise NotImplementedError

    def read_all(self, parts: list[int], columns: list[str] | None, use_threads: bool) -> Any:
        return _arrow().concat_tables([self.read(part, columns, use_threads) for part in parts])

    def check_columns(self, columns: list[str] | None) -> None:
        for column in columns or ():
            if column not in self.schema.names:
                raise ValueError(f"ArrowReader: there is no column {column!r}; there are {self.schema.names}")


class ArrowFragments(ArrowSource):
    """The row groups or files of a pyarrow dataset. Parts whose statistics show that no row passes the filter are
    excluded.

    Args:
        lacks: whether to fill a column that a file does not have with nulls, instead of raising an error.
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
    """Raises an error for a missing column or a column of another type, which pyarrow would silently fill with nulls,
    or convert to or from text."""
    known = _arrow("pyarrow.dataset").get_partition_keys(fragment.partition_expression)
    for column in wanted:
        if column in present.names:
            kinds = present.field(column).type, schema.field(column).type
            if _family(kinds[0]) != _family(kinds[1]):
                raise ValueError(f"column {column!r} is of type {kinds[0]} in the file, and of {kinds[1]} in the table")
        elif column not in known and not lacks:
            raise ValueError(f"the file has no column {column!r}; it has {present.names}")


def _family(kind: Any) -> str:
    """Returns the family of an Arrow type, such as "integer". Two files may store a column in different types of the
    same family."""
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
