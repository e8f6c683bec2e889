"""`from_ray_data`: the rows of a Ray Data set as a pipe.

Role: puts pipes together that are there, and runs where a graph is built.
"""

from __future__ import annotations

from typing import Any, Literal

from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.iter.streams.arrow import ArrowReader
from torchdata.datapipes.map.arrow import ArrowParts

__all__ = ["from_ray_data"]


def from_ray_data(
    dataset: Any,
    columns: list[str] | None = None,
    *,
    shuffle: bool = False,
    rows: bool = True,
    frame_size: int | None = None,
    library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy",
) -> IterDataPipe[Any]:
    """The rows of a Ray Data set, or frames of many rows, as a pipe.

    Each worker and each rank reads blocks of its own, from Ray's object store, in the order of the data set. A saved
    state knows the block and the row in it, and an iteration that goes on from it fetches no earlier block. It goes on
    in another program, too, if that materializes the same blocks in the same order, so with
    `ray.data.DataContext.get_current().execution_options.preserve_order = True`; others are refused. It is short for
    `ArrowParts(dataset).to_iter_datapipe().sharding_filter().read_arrow(…)`: see there.

    Args:
        dataset: a data set that is materialized (`dataset.materialize()`), as only then its blocks have a fixed order.
        columns: the columns to read, in this order; None for all.
        shuffle: whether blocks come in another order in each epoch. Rows within stay in theirs: put `.shuffle()`
            behind, too.
        rows: whether items are rows, dicts from column to a Python value. Else they are frames.
        frame_size: rows per frame; None for one frame per block.
        library: what frames are made by: `"numpy"`, for dicts from column to array; `"pandas"`, `"polars"` or
            `"pyarrow"`.

    Raises:
        TypeError: `dataset` is no Ray Data set, or is not materialized.
        ValueError: the data set lacks a column, or the library is unknown; while iterating, the state was saved with
            other blocks.
        RuntimeError: while iterating, a worker process was forked, which Ray does not survive: use "spawn" or
            "forkserver", or a `RayReadingService`.
        ModuleNotFoundError: Ray or what Ray Data needs is not installed (`pip install 'ray[data]'`).

    Example:
        >>> import ray  # doctest: +SKIP
        >>> dataset = ray.data.range(4).materialize()  # doctest: +SKIP
        >>> list(from_ray_data(dataset))  # doctest: +SKIP
        [{'id': 0}, {'id': 1}, {'id': 2}, {'id': 3}]
    """
    if type(dataset).__module__.partition(".")[0] != "ray":
        raise TypeError(
            f"from_ray_data: dataset must be a Ray Data set that is materialized, but got {type(dataset).__name__}"
        )
    parts = ArrowParts(dataset)
    numbers: IterDataPipe[int] = parts.shuffle() if shuffle else parts.to_iter_datapipe()
    return ArrowReader(ShardingFilter(numbers), columns, rows=rows, frame_size=frame_size, library=library)
