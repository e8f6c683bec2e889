"""The map pipe over the parts of a table: ArrowParts, and `from_ray_data`, which has a Ray Dataset read by them.

Role: what is shuffled and shared out before anything of a table is read. Its items are numbers. It owns the list of the
parts, which was made when it was built. Runs in whichever process asks for an item.
"""

from __future__ import annotations

from typing import Any, Literal

from torchdata.datapipes._pipe.arrow_opening import arrow_source
from torchdata.datapipes._pipe.arrow_sources import ArrowSource
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["ArrowParts", "from_ray_data"]


class ArrowParts(MapDataPipe[int]):
    """Lists the parts of a table, by their numbers from 0 on, for `.read_arrow()` to read.

    A part is a row group of a Parquet file, a file of another format (Feather, ORC, CSV, JSON), a chunk of a table in
    memory, a data file of an Iceberg table, a range of rows of a Lance dataset, or a block of a Ray Dataset. Nothing
    but the directories of files is read to list them, and the first row of a block. So `ArrowParts(…).shuffle()` puts
    the row groups of all files in random order, and `sharding_filter` shares them out before they are read.

    Args:
        source: a `pyarrow.dataset.Dataset` (on any file system), a `pyarrow.Table` or `RecordBatch`, a
            `deltalake.DeltaTable`, a `pyiceberg.table.Table`, a `lance.LanceDataset`, a
            `ray.data.Dataset` that is materialized; or a path, or a list of paths, of files of one format.
        filter: the rows to read: a `pyarrow.compute.Expression`, of an Iceberg table what its `scan` takes as
            `row_filter`, of a Lance dataset also SQL. Parts that have no such rows by their statistics are left out; of
            a Lance dataset the filter is asked when the list is made, and its rows make the parts. None for all rows.
        format: of files that are given by their paths: `"parquet"`, `"feather"`, `"csv"` and whatever else
            `pyarrow.dataset.dataset` takes. `"delta"`: the path is that of a Delta table; `"lance"`: of a Lance
            dataset; `"iceberg"`: of the metadata of an Iceberg table.
        part_rows: rows of a part of a Lance dataset; None: 1,024.

    Raises:
        TypeError: the source is none of these, or a Ray Dataset that is not materialized.
        ValueError: `part_rows` is not positive, or is given for another table than one of Lance.
        OSError, ValueError: a file is missing, or is no such file (pyarrow.ArrowInvalid).
        ModuleNotFoundError: pyarrow is not installed; the message says how to.

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
        """The name of a part in messages: its file, and its row group if it has one."""
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
    """The rows of a Ray Dataset, or frames of many rows, as a pipe.

    Each worker and each rank reads blocks of its own, from Ray's object store, in the order of the dataset. A saved
    state knows the block and the row in it, and an iteration that resumes from it fetches no earlier block. It
    continues in another program, too, if that materializes the same blocks in the same order, so with
    `ray.data.DataContext.get_current().execution_options.preserve_order = True`; others are refused. It is short for
    `ArrowParts(dataset).to_iter_datapipe().sharding_filter().read_arrow(…)`: see there.

    Args:
        dataset: a dataset that is materialized (`dataset.materialize()`), as only then its blocks have a fixed order.
        columns: the columns to read, in this order; None for all.
        shuffle: whether blocks come in another order in each epoch. Rows within stay in theirs: put `.shuffle()` after,
            too.
        rows: whether items are rows, dicts from column to a Python value. Else they are frames.
        frame_size: rows per frame; None for one frame per block.
        library: what frames are made by: `"numpy"`, for dicts from column to array; `"pandas"`, `"polars"` or
            `"pyarrow"`.

    Raises:
        TypeError: `dataset` is no Ray Dataset, or is not materialized.
        ValueError: the dataset lacks a column, or the library is unknown; while iterating, the state was saved with
            other blocks.
        RuntimeError: while iterating, a worker process was forked, which Ray does not survive: use "spawn" or
            "forkserver", or a `RayReadingService`.
        ModuleNotFoundError: Ray or what Ray Data needs is not installed (`pip install 'ray[data]'`).
    """
    if type(dataset).__module__.partition(".")[0] != "ray":
        raise TypeError(
            f"from_ray_data: dataset must be a Ray Data set that is materialized, but got {type(dataset).__name__}"
        )
    parts = ArrowParts(dataset)
    numbers: IterDataPipe[int] = parts.shuffle() if shuffle else parts.to_iter_datapipe()
    return numbers.sharding_filter().read_arrow(columns, rows=rows, frame_size=frame_size, library=library)
