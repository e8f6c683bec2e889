"""The pipes that read a table in parts: ArrowReader, and LanceReader for single rows.

The source of these pipes yields the numbers of the parts to read, usually from the map pipe `ArrowParts`. One part is
in memory at a time, such as a row group of a Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import index
from typing import Any, ClassVar, Literal
from zlib import crc32

from torchdata._redacting import redact_error, redacted
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.arrow_sources import ArrowSource, LanceRows, arrow_source, lance_dataset
from torchdata.datapipes._pipe.arrow_tables import is_of_arrow, tables_of
from torchdata.datapipes._pipe.checks import check_optional_int, check_source
from torchdata.datapipes._pipe.frames import FrameFormat, check_column_names
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["ArrowReader", "LanceReader"]


class ArrowReader(IterDataPipe[Any]):
    """Reads a table part by part, in the order of the source: yields rows, or frames of many rows.

    One part, such as a row group of a Parquet file, is in memory at a time. A saved state contains the number of the
    part and of the row in it, so a resumed run does not reread earlier parts. Parts without rows yield nothing.

    Args:
        source_datapipe: yields part numbers, or lists of part numbers (for example after `batch`), which are read
            together as one part. The source is usually `ArrowParts(table)`, followed by `to_iter_datapipe` or
            `shuffle`, and then by pipes such as `sharding_filter`. The source may be a table that `ArrowParts` accepts;
            its parts are then read in order.
        columns: the columns to read, in this order; None (the default) for all.
        parts: the `ArrowParts` pipe that assigns the part numbers. If `parts` is None (the default), the source must
            contain only one `ArrowParts`, which is used.
        rows: whether each item is a row: a dict from column names to Python values; True by default. If `rows` is
            False, items are frames.
        frame_size: the number of rows per frame (the last frame of a part may have fewer); None for one frame per part.
        library: the library of the frames: `"numpy"` (the default), for dicts from column to array; `"pandas"`,
            `"polars"` or `"pyarrow"` (tables).
        dtype: the types of the columns, as for `load_parquet_as_df`.
        writable: whether arrays are writable. With `writable=False` (the default), numeric arrays without nulls share
            pyarrow's memory.
        use_threads: whether columns are decoded by several threads; False by default.

    Raises:
        TypeError: an argument has the wrong type, or the source does not contain `ArrowParts`.
        ValueError: the table lacks a column, or `library` is unknown; or, while iterating, a file lacks a column or
            has another type for it, or a column of integers has nulls (see `load_parquet_as_df`).
        OSError: while iterating, a file cannot be opened or is damaged.
        ModuleNotFoundError: pyarrow or `library` is not installed; the message contains the command to install it.

    Example:
        >>> import pyarrow
        >>> from torchdata.datapipes.iter import ArrowReader
        >>> table = pyarrow.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
        >>> list(ArrowReader(table))
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}, {'a': 3, 'b': 'z'}]
        >>> list(ArrowReader(table, columns=["a"], rows=False, frame_size=2))
        [{'a': array([1, 2])}, {'a': array([3])}]
    """

    #: A state contains the number of a row, not of a frame, so a resumed run may use another frame size.
    tuning: ClassVar[frozenset[str]] = frozenset({"frame_size", "use_threads", "writable"})

    #: The number of the part of the table that is being read, or the list of numbers if parts are read together. `_row`
    #: is the number of rows that were already yielded from the part `_part`.
    _part: int | list[int] | None = checked_state((int, [int], None))
    _row: int = state(0)
    #: The name of the part. Loading a state raises an error if the part with the saved number has another name.
    _name: str | None = checked_state((str, None))

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        columns: list[str] | None = None,
        *,
        parts: MapDataPipe[int] | None = None,
        rows: bool = True,
        frame_size: int | None = None,
        library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy",
        dtype: Any = None,
        writable: bool = False,
        use_threads: bool = False,
    ) -> None:
        name = type(self).__name__
        pipe: Any = source_datapipe
        if isinstance(pipe, MapDataPipe):
            pipe = pipe.to_iter_datapipe()
        if isinstance(pipe, IterDataPipe) or parts is not None:
            self._table = _table_of(pipe if parts is None else parts)
        else:
            self._table = arrow_source(pipe, None, "parquet")
            pipe = range(len(self._table.names))
        self.source_datapipe = check_source(name, pipe, "source_datapipe")
        self.columns = check_column_names(name, columns)
        self._table.check_columns(self.columns)
        self.rows, self.frame_size = rows, check_optional_int(name, "frame_size", frame_size, least=1)
        if frame_size is not None and rows:
            raise ValueError(f"{name}: frame_size is for frames: pass rows=False")
        self.writable, self.use_threads = writable, use_threads
        self.library, self.dtype = library, dtype
        self._format = FrameFormat(name, library, dtype, arrays=True, writable=writable)

    def __iter__(self) -> Iterator[Any]:
        return self._items(iter(self.source_datapipe))

    def _items(self, parts: Iterator[Any]) -> Iterator[Any]:
        if self._part is not None:
            self._check_name(self._part)
            yield from self._items_of(self._part)
        for item in parts:
            part = self._checked(item)
            self._row, self._name = 0, self._name_of(part)
            self._part = part
            yield from self._items_of(part)
        self._part = None

    def _checked(self, item: Any) -> int | list[int]:
        many = isinstance(item, list)
        numbers = [index(each) if hasattr(each, "__index__") else each for each in (item if many else [item])]
        if not all(type(number) is int for number in numbers):
            raise TypeError(
                f"{type(self).__name__} expects numbers of parts, as ArrowParts yields them, or lists of them, but got "
                f"{item!r} of type {type(item).__name__}"
            )
        for number in numbers:
            if not 0 <= number < len(self._table.names):
                raise IndexError(
                    f"{type(self).__name__} reads parts 0 to {len(self._table.names) - 1}, but got part {number}"
                )
        return numbers if many else numbers[0]

    def _name_of(self, part: int | list[int]) -> str:
        if not isinstance(part, list):
            return self._table.names[part]
        names = [self._table.names[each] for each in part] or ["no part"]
        if len(names) == 1:
            return names[0]
        return f"{names[0]} and {len(names) - 1} more (checksum {crc32(''.join(names).encode()):08x})"

    def _drop_broken(self) -> None:
        self._part = None

    def _last_row(self) -> str | None:
        return redacted(f"{self._name}, row {self._row - 1}") if self.rows else None

    def _check_name(self, part: int | list[int]) -> None:
        numbers, count = part if isinstance(part, list) else [part], len(self._table.names)
        if not all(0 <= each < count for each in numbers) or self._name_of(part) != self._name:
            raise ValueError(
                f"the state of {type(self).__name__} was saved in {self._name}, but this table has changed since. Read "
                "the version of the table that the state was saved with"
            )

    def _read(self, part: int | list[int], _: int) -> Any:
        if isinstance(part, list):
            return self._table.read_all(part, self.columns, self.use_threads)
        return self._table.read(part, self.columns, self.use_threads)

    def _items_of(self, part: int | list[int]) -> Iterator[Any]:
        if part == []:
            return
        size, copy = (1024, False) if self.rows else (self.frame_size, self.library == "pyarrow")
        try:
            for table, _ in tables_of(partial(self._read, part), [0], self._row, size, copy=copy):
                count = table.num_rows
                if self.rows:
                    for row in table.to_pylist():
                        self._row += 1
                        yield row
                elif count:
                    frame = self._format.of_table(table)
                    del table
                    self._row += count
                    yield frame
                    del frame
        except Exception as error:
            explained = self._explained(error, str(self._name))
            name_item(explained, self._name)
            raise explained from error

    def _explained(self, error: Exception, name: str) -> Exception:
        redact_error(error)
        if is_of_arrow(error) or type(error) is ValueError:
            return type(error)(f"{type(self).__name__} cannot read {name}: {error}")
        error.add_note(f"{type(self).__name__} was reading {name}.")
        return error

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")


class LanceReader(ArrowReader):
    """Reads rows of a Lance dataset by their indices, and yields single rows, or frames that contain several rows.

    If the order of the rows does not matter, ranges of rows can be read faster: `ArrowParts("….lance",
    format="lance").shuffle().read_arrow()`. The pipe reads the version of the dataset that is current when the pipe is
    built. Loading a state that was saved with another version of the dataset raises an error.

    Args:
        source_datapipe: yields indices of rows, or lists of indices (as after `batch`) to read together.
        dataset: the dataset to read: a `lance.LanceDataset`, or the path or URI of a dataset.
        columns: the columns to read, as for `ArrowReader`.
        rows: whether each item is a row, as for `ArrowReader`; True by default.
        frame_size: the number of rows per frame, as for `ArrowReader`; None for one frame per item of the source.
        library: the library of the frames, as for `ArrowReader`; "numpy" by default.
        dtype: the types of the columns, as for `ArrowReader`.
        writable: whether arrays are writable, as for `ArrowReader`; False by default.

    Raises:
        IndexError: while iterating, a row does not exist.
        Exception: any error that `ArrowReader` raises.

    Example:
        >>> import lance, pyarrow
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> dataset = lance.write_dataset(pyarrow.table({"a": [0, 10, 20, 30, 40]}), "numbers.lance")
        >>> indices = IterableWrapper([4, 1, 3, 0])
        >>> list(indices.read_lance(dataset))
        [{'a': 40}, {'a': 10}, {'a': 30}, {'a': 0}]
        >>> list(indices.batch(2).read_lance("numbers.lance", rows=False))
        [{'a': array([40, 10])}, {'a': array([30,  0])}]
    """

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        dataset: Any,
        columns: list[str] | None = None,
        *,
        rows: bool = True,
        frame_size: int | None = None,
        library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy",
        dtype: Any = None,
        writable: bool = False,
    ) -> None:
        table: Any = LanceRows(lance_dataset("LanceReader", dataset), None, 1)
        super().__init__(
            source_datapipe,
            columns,
            parts=table,
            rows=rows,
            frame_size=frame_size,
            library=library,
            dtype=dtype,
            writable=writable,
        )


def _table_of(pipe: Any) -> ArrowSource:
    """Returns the table of the only `ArrowParts` in a graph. `ArrowReader` stores the table itself, because
    `ArrowParts` may run in another process."""
    if isinstance(pipe, ArrowSource):
        return pipe
    found = [source for each in Graph(pipe) if isinstance(source := getattr(each, "source", None), ArrowSource)]
    if len(found) != 1:
        raise TypeError(
            f"ArrowReader: source_datapipe must yield the parts of one ArrowParts, but reads {len(found)} of them: "
            "write ArrowParts(table).shuffle().read_arrow(), ArrowReader(table), or parts=ArrowParts(table)"
        )
    return found[0]
