"""Pipes that create data frames: DataFrameMaker from rows, ParquetDataFrameLoader from Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

from torchdata._native import BatchIterator
from torchdata._optional import optional_import
from torchdata._redacting import shown, shown_with_type
from torchdata.datapipes._pipe.arrow_tables import is_of_arrow, tables_of
from torchdata.datapipes._pipe.checks import check_optional_int, check_size, check_source, length_of
from torchdata.datapipes._pipe.frames import FrameFormat, check_column_names, check_device
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import HoldsStream, can_seek, source_pipe
from torchdata.datapipes.utils._streams import FileRecipe, StreamWrapper, detached

__all__ = ["DataFrameMaker", "ParquetDataFrameLoader"]


class DataFrameMaker(IterDataPipe[Any]):
    """Creates data frames from consecutive rows.

    Rows are tuples or lists with one value per column, mappings from column to value, or single values, which make
    frames of one column. The column names are taken from `columns`, otherwise from the dtype, otherwise from the rows
    (mappings and named tuples). Without column names, the library numbers the columns: 0, 1, … in pandas, and column_0,
    column_1, … in polars and pyarrow.

    Args:
        source_dp: the pipe to read, of rows.
        dataframe_size: the number of rows per frame (the last frame may have fewer), 1,000 by default.
        dtype: the types of the columns: a `pyarrow.Schema`, a mapping from column to a dtype of `library`, or one dtype
            for all columns. If `dtype` is None (the default), the library infers the types.
        dtype_generator: a function that returns the dtype at the start of each iteration, for dtypes that cannot be
            pickled. Used if `dtype` is None.
        columns: the names of the columns. Rows that are mappings must contain all columns; further keys are left out.
            Without column names, a frame of mappings has the keys of all its rows, with nulls for missing values.
        device: the device of the frames, which must be `""` or `"cpu"`.
        library: the library of the frames: `"pandas"` (the default), `"polars"` or `"pyarrow"`. Polars uses threads, so
            worker processes need the start method spawn or forkserver.

    Raises:
        AssertionError: `dataframe_size` is not positive.
        TypeError: an argument has the wrong type, or `dtype` is a dtype of torcharrow, which is not supported; or,
            while iterating, a frame has rows of different types.
        ValueError: `library` is unknown or does not support the dtype, or `device` is unknown; or, while iterating,
            rows have too many or too few values, or a value does not fit its dtype.
        ModuleNotFoundError: `library` is not installed; the message contains the command to install it.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> rows = IterableWrapper([(1, "a"), (2, "b"), (3, "c")])
        >>> for frame in rows.dataframe(2, columns=["number", "letter"]):
        ...     print(frame.to_dict("list"))
        {'number': [1, 2], 'letter': ['a', 'b']}
        {'number': [3], 'letter': ['c']}
    """

    iteration_state = ()

    def __init__(
        self,
        source_dp: Iterable[Any],
        dataframe_size: int = 1000,
        dtype: Any = None,
        dtype_generator: Callable[[], Any] | None = None,
        columns: list[str] | None = None,
        device: str = "",
        library: str = "pandas",
    ) -> None:
        name = "DataFrameMaker"
        self.source_dp = check_source(name, source_dp, "source_dp")
        self.dataframe_size = check_size(name, "dataframe_size", dataframe_size)
        self.columns = check_column_names(name, columns)
        check_device(name, device)
        self.device = device
        self._format = FrameFormat(name, library, dtype, dtype_generator)

    def __iter__(self) -> Iterator[Any]:
        batches = BatchIterator(iter(self.source_dp), self.dataframe_size, False, list)
        return map(partial(self._format.generated().of_rows, columns=self.columns), batches)

    def __len__(self) -> int:
        return -(-length_of(self, self.source_dp) // self.dataframe_size)


class ParquetDataFrameLoader(HoldsStream[Any]):
    """Reads Parquet files: yields one data frame per row group, or frames of a given number of rows.

    One row group is in memory at a time, so write large files with row groups of ten to a few hundred megabytes. A
    saved state contains the number of the current row group, and of the next row in this group. A resumed run does not
    read earlier row groups.

    With `library="numpy"`, items are dicts from column to array:

    - Numbers and booleans become arrays of the column's type. A null in floats becomes NaN. A null in integers or
      booleans raises an error unless `dtype={"column": "float64"}` converts the column to floats.
    - Dates, timestamps (in UTC, if they have a zone) and durations become datetime64 and timedelta64. A null becomes
      NaT.
    - Lists become arrays of objects with one converted array per row. A null becomes None.
    - Strings, bytes, decimals, structs (as dicts) and all remaining types become arrays of Python objects. A null
      becomes None.

    Args:
        source_dp: yields paths of Parquet files, or pairs of path and seekable binary stream. Each stream is closed
            after it was read.
        dtype: the types of the columns: a `pyarrow.Schema`, a mapping from column to a dtype of `library`, or one dtype
            for all columns. If `dtype` is None (the default), columns keep the types in the file.
        columns: the columns to read, in this order; None (the default) for all. A nested column is `"parent.child"`.
        device: the device of the frames, which must be `""` or `"cpu"`.
        use_threads: whether columns are decoded by several threads; False by default.
        library: the library of the frames: `"pandas"` (the default), `"polars"` or `"pyarrow"` (tables); or `"numpy"`,
            for dicts of arrays. Polars uses threads, so worker processes need the start method spawn or forkserver.
        dataframe_size: the number of rows per item, across row groups; the last item of a file may have fewer. If
            `dataframe_size` is None (the default), each row group is one item.

    Raises:
        TypeError: an argument has the wrong type, or `dtype` is a dtype of torcharrow; or, while iterating, the source
            yields neither paths nor pairs.
        ValueError: `library` is unknown or does not support the dtype, `device` is unknown, or `dataframe_size` is
            not positive; or, while iterating, a file is not a Parquet file or is truncated (pyarrow.ArrowInvalid),
            lacks a column, or has nulls that the type of an array cannot represent.
        OSError: while iterating, a file cannot be opened or is damaged.
        ModuleNotFoundError: pyarrow or `library` is not installed; the message contains the command to install it.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2, 3, 4, 5]}), "numbers.parquet", row_group_size=2)
        >>> files = IterableWrapper(["numbers.parquet"])
        >>> [frame["a"].tolist() for frame in files.load_parquet_as_df()]
        [[1, 2], [3, 4], [5]]
        >>> list(files.load_parquet_as_df(library="numpy", dataframe_size=3))
        [{'a': array([1, 2, 3])}, {'a': array([4, 5])}]
    """

    #: A state contains the number of a row, not of a frame, so a resumed run may use another `dataframe_size`.
    tuning: ClassVar[frozenset[str]] = frozenset({"dataframe_size"})

    _point: Any = checked_state(((int, int), None))
    #: The position after the last yielded item: the number of a row group, and of a row in this group.
    _next: tuple[int, int] = state((0, 0), saved=False)

    def __init__(
        self,
        source_dp: Iterable[Any],
        dtype: Any = None,
        columns: list[str] | None = None,
        device: str = "",
        use_threads: bool = False,
        library: str = "pandas",
        *,
        dataframe_size: int | None = None,
    ) -> None:
        name = "ParquetDataFrameLoader"
        self.source_dp = source_pipe(source_dp, self)
        self.columns = check_column_names(name, columns)
        check_device(name, device)
        self.device = device
        self.use_threads = use_threads
        self.dataframe_size = check_optional_int(name, "dataframe_size", dataframe_size, least=1)
        _parquet()
        self._format = FrameFormat(name, library, dtype, arrays=True)

    def _source(self) -> Any:
        return map(_opened, self.source_dp)

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[Any]:
        self._next = (0, 0) if point is None else point
        file = _parquet().ParquetFile(_seekable(path, stream))
        _check_columns(path, file, self.columns)
        groups = range(self._next[0], file.num_row_groups)
        read = partial(file.read_row_group, columns=self.columns, use_threads=self.use_threads)
        for table, following in tables_of(read, groups, self._next[1], self.dataframe_size, copy=True):
            frame = self._format.of_table(table)
            del table
            self._next = following
            yield frame
            del frame  # frees the memory before the next row group is read

    def _explained(self, error: Exception, path: str) -> Exception:
        if is_of_arrow(error):
            return type(error)(
                f"cannot read the Parquet file {shown(path)} in ParquetDataFrameLoader: {error} (it is truncated, "
                "damaged or of another kind, or its values do not fit the dtype)"
            )
        return error

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        return detached(stream, 0), self._next


def _parquet() -> Any:
    return optional_import("pyarrow.parquet", extra="parquet", needed_by="ParquetDataFrameLoader")


def _opened(item: Any) -> Any:
    if not isinstance(item, (str, os.PathLike)):
        if isinstance(item, (tuple, list)):
            return item
        raise TypeError(
            f"ParquetDataFrameLoader expects paths, or pairs of path and stream, but got {shown_with_type(item)}"
        )
    path = os.fspath(item)
    recipe = FileRecipe(path, "rb")
    return path, StreamWrapper(recipe.open(), recipe=recipe)


def _seekable(path: str, stream: Any) -> Any:
    file_obj = stream.file_obj if isinstance(stream, StreamWrapper) else stream
    if not can_seek(file_obj):
        raise ValueError(
            f"the Parquet file {shown(path)} of ParquetDataFrameLoader is in a stream that cannot seek, but its "
            f"directory is at its end; read it from a file, or into io.BytesIO first"
        )
    return file_obj


def _check_columns(path: str, file: Any, columns: list[str] | None) -> None:
    """Raises an error for a missing column, which pyarrow would silently leave out."""
    if columns is None:
        return
    present = set(file.schema_arrow.names)
    leaves = [file.schema.column(index).path for index in range(len(file.schema))]
    for column in columns:
        if column not in present and not any(f"{leaf}.".startswith(f"{column}.") for leaf in leaves):
            raise ValueError(
                f"the Parquet file {shown(path)} of ParquetDataFrameLoader has no column {column!r}; it has "
                f"{file.schema_arrow.names}"
            )
