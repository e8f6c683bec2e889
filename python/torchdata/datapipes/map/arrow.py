"""The map pipe over the parts of a table: ArrowParts.

The items of `ArrowParts` are the numbers of a table's parts, which other pipes shuffle and shard before `ArrowReader`
reads the table.
"""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.arrow_sources import ArrowSource, arrow_source
from torchdata.datapipes._pipe.checks import check_optional_int
from torchdata.datapipes.datapipe import MapDataPipe

__all__ = ["ArrowParts"]


class ArrowParts(MapDataPipe[int]):
    """Lists the parts of a table by their numbers from 0, for `.read_arrow()` to read.

    A part is a row group of a Parquet file, a file of another format (Feather, ORC, CSV, JSON), a chunk of a table in
    memory, a data file of an Iceberg table, or a range of rows of a Lance dataset. Listing the parts reads only the
    metadata of files. For example, `ArrowParts(…).shuffle()` yields the row groups of all files in random order, and
    `sharding_filter` divides the row groups before they are read.

    Args:
        source: the table to read: a `pyarrow.dataset.Dataset` (on any file system), a `pyarrow.Table` or `RecordBatch`,
            a `deltalake.DeltaTable`, a `pyiceberg.table.Table` or a `lance.LanceDataset`; or a path, or a list of
            paths, of files of one format.
        filter: the rows to read: a `pyarrow.compute.Expression`; for an Iceberg table the `row_filter` of its `scan`;
            for a Lance dataset also SQL. Parts are left out if their statistics show that no row passes the filter. For
            a Lance dataset, the filter is evaluated when the pipe is built. If `filter` is None (the default), all rows
            are read.
        format: the format of files that are given by their paths: `"parquet"` (the default), `"feather"`, `"csv"` or
            another format that `pyarrow.dataset.dataset` accepts; `"delta"`, `"lance"` or `"iceberg"` (with the path of
            the metadata) for tables.
        part_rows: the number of rows in a part of a Lance dataset; None (the default) for 1,024.

    Raises:
        TypeError: the source has an unsupported type.
        ValueError: `part_rows` is not positive, or is given although the table is not a Lance dataset.
        OSError, ValueError: a file is missing or has another format (pyarrow.ArrowInvalid).
        ModuleNotFoundError: pyarrow is not installed; the message contains the command to install it.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from torchdata.datapipes.map import ArrowParts
        >>> pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2, 3, 4, 5]}), "numbers.parquet", row_group_size=2)
        >>> parts = ArrowParts("numbers.parquet")
        >>> len(parts), parts.name(1)
        (3, 'row group 1 of numbers.parquet')
        >>> [row["a"] for row in parts.shuffle().set_seed(1).read_arrow()]
        [3, 4, 5, 1, 2]
    """

    def __init__(
        self, source: Any, filter: Any = None, *, format: str = "parquet", part_rows: int | None = None
    ) -> None:
        check_optional_int("ArrowParts", "part_rows", part_rows, least=1)
        self.source: ArrowSource = arrow_source(source, filter, format, part_rows)

    def name(self, index: int) -> str:
        """Returns the name of the part with number `index` for messages: its file and, for a row group, the number of
        the row group in the file."""
        return self.source.names[index]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"ArrowParts has parts 0 to {len(self) - 1}, but got part {index!r}")
        return index

    def __len__(self) -> int:
        return len(self.source.names)
