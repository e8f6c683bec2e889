"""The map pipe over the parts of a table: ArrowParts, and `from_ray_data`, which reads a Ray Dataset with ArrowParts.

Role: provides the numbers of parts. The numbers are shuffled and sharded before the table is read. The pipe owns the
list of parts, which is created when the pipe is built. Runs in any process that requests an item.
"""

from __future__ import annotations

from typing import Any, Literal

from torchdata.datapipes._pipe.arrow_opening import arrow_source
from torchdata.datapipes._pipe.arrow_sources import ArrowSource
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["ArrowParts", "from_ray_data"]


class ArrowParts(MapDataPipe[int]):
    """Lists the parts of a table by their numbers from 0, for `.read_arrow()` to read.

    A part is a row group of a Parquet file, a file of another format (Feather, ORC, CSV, JSON), a chunk of a table in
    memory, a data file of an Iceberg table, a range of rows of a Lance dataset, or a block of a Ray Dataset. Listing
    the parts reads only the metadata of files, or the first row of each block. `ArrowParts(…).shuffle()` therefore
    yields the row groups of all files in random order, and `sharding_filter` divides them before they are read.

    Args:
        source: a `pyarrow.dataset.Dataset` (on any file system), a `pyarrow.Table` or `RecordBatch`, a
            `deltalake.DeltaTable`, a `pyiceberg.table.Table`, a `lance.LanceDataset`, or a materialized
            `ray.data.Dataset`; or a path, or a list of paths, of files of one format.
        filter: the rows to read: a `pyarrow.compute.Expression`; for an Iceberg table the `row_filter` of its `scan`;
            for a Lance dataset also SQL. Parts are left out if their statistics exclude all rows. For a Lance dataset,
            the filter is applied when the pipe is built. None (the default) for all rows.
        format: the format of files that are given by their paths: `"parquet"` (the default), `"feather"`, `"csv"` or
            another format that `pyarrow.dataset.dataset` accepts; `"delta"`, `"lance"` or `"iceberg"` (with the path of
            the metadata) for tables.
        part_rows: the number of rows in a part of a Lance dataset; None (the default) for 1,024.

    Raises:
        TypeError: the source has another type, or is a Ray Dataset that is not materialized.
        ValueError: `part_rows` is not positive, or is given for another table than a Lance dataset.
        OSError, ValueError: a file is missing or has another format (pyarrow.ArrowInvalid).
        ModuleNotFoundError: pyarrow is not installed; the message says how to install it.

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
        if part_rows is not None:
            check_int("ArrowParts", "part_rows", part_rows, least=1)
        self.source: ArrowSource = arrow_source(source, filter, format, part_rows)

    def name(self, index: int) -> str:
        """Returns the name of a part for messages: its file, and the row group if the part is a row group."""
        return self.source.names[index]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"ArrowParts has parts 0 to {len(self) - 1}, but was asked for {index!r}")
        return index

    def __len__(self) -> int:
        return len(self.source.names)


def from_ray_data(
    dataset: Any,
    columns: list[str] | None = None,
    *,
    shuffle: bool = False,
    rows: bool = True,
    frame_size: int | None = None,
    library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy",
) -> IterDataPipe[Any]:
    """Returns the rows of a Ray Dataset, or frames of many rows, as a pipe.

    Each worker and each rank reads its own blocks from Ray's object store, in the order of the dataset. A saved state
    contains the block and the row in it, and a resumed run fetches no earlier block. Another program can resume if it
    materializes the same blocks in the same order, with
    `ray.data.DataContext.get_current().execution_options.preserve_order = True`. A state of other blocks is refused.
    The function is short for `ArrowParts(dataset).to_iter_datapipe().sharding_filter().read_arrow(…)`.

    Args:
        dataset: a dataset that is materialized (`dataset.materialize()`), because only its blocks have a fixed order.
        columns: the columns to read, in the order of the result; None (the default) for all columns.
        shuffle: whether blocks have another order in each epoch; False by default. Rows keep their order within a
            block, so call `.shuffle()` on the result to shuffle rows.
        rows: True (the default) for items that are rows: dicts from column to a Python value. False for frames.
        frame_size: the number of rows per frame; None (the default) for one frame per block.
        library: the library of the frames: `"numpy"` (the default), for dicts from column to array; `"pandas"`,
            `"polars"` or `"pyarrow"`.

    Raises:
        TypeError: `dataset` is not a Ray Dataset, or is not materialized.
        ValueError: the dataset lacks a column, or the library is unknown; while iterating, the state was saved with
            other blocks.
        RuntimeError: while iterating, a worker process was forked, which Ray does not support: use "spawn" or
            "forkserver", or a `RayReadingService`.
        ModuleNotFoundError: Ray or a dependency of Ray Data is not installed (`pip install 'ray[data]'`).

    Example:
        >>> from torchdata.datapipes.map import from_ray_data
        >>> def rows_of(path):
        ...     import ray
        ...     dataset = ray.data.read_parquet(path).materialize()
        ...     return from_ray_data(dataset, shuffle=True)
    """
    if type(dataset).__module__.partition(".")[0] != "ray":
        raise TypeError(
            f"from_ray_data: dataset must be a Ray Data set that is materialized, but got {type(dataset).__name__}"
        )
    parts = ArrowParts(dataset)
    numbers: IterDataPipe[int] = parts.shuffle() if shuffle else parts.to_iter_datapipe()
    return numbers.sharding_filter().read_arrow(columns, rows=rows, frame_size=frame_size, library=library)
