"""The pipe that reads the parts of a table: ArrowReader.

Role: yields rows or frames of a table that `ArrowParts` lists. Runs in the process that iterates it, and holds one part
in memory at a time: a row group of a Parquet file. Its state is the number of that part and of a row in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

from torchdata._optional import optional_import
from torchdata._redacting import redact_error
from torchdata.datapipes._pipe.arrow_sources import ArrowSource, arrow_source
from torchdata.datapipes._pipe.checks import check_int, check_source
from torchdata.datapipes._pipe.declared import state
from torchdata.datapipes._pipe.frames import FrameFormat, check_column_names
from torchdata.datapipes._pipe.graph import Graph
from torchdata.datapipes._pipe.registry import functional_datapipe
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe
from torchdata.datapipes.iter.streams.frames import copied_rows

__all__ = ["ArrowReader"]


@functional_datapipe("read_arrow")
class ArrowReader(IterDataPipe[Any]):
    """Reads the parts of a table that `ArrowParts` lists: yields rows, or frames of many rows.

    One part, such as a row group of a Parquet file, is in memory at a time. A saved state knows the part and the row in
    it: an iteration that goes on from it reads that part and those behind it alone. Parts without rows, or of which the
    filter leaves none, yield nothing.

    Args:
        source_datapipe: yields numbers of parts: `ArrowParts(table)` by `to_iter_datapipe` or `shuffle`, and pipes
            behind it such as `sharding_filter`. Any table that `ArrowParts` takes may be given in its place, and is
            read in order.
        columns: the columns to read, in this order; None for all.
        parts: the list of parts whose numbers the source yields; None to find it in the source.
        rows: whether items are rows, dicts from column to a Python value. Else they are frames.
        frame_size: rows per frame; the last frame of a part may have fewer. None for one frame per part.
        library: what frames are made by: `"numpy"`, for dicts from column to array; `"pandas"`, `"polars"` or
            `"pyarrow"` (tables).
        dtype: as for `load_parquet_as_df`.
        writable: whether arrays can be written to. If not, those of numbers without nulls lie over Arrow's memory.
        use_threads: whether columns are decoded by several threads.

    Raises:
        TypeError: an argument is of the wrong type, or the source does not come of `ArrowParts`.
        ValueError: the table lacks a column, or the library is unknown; while iterating, a file lacks a column or has
            it in another type than the table, or integers have nulls where arrays have no value for them (see
            `load_parquet_as_df`).
        OSError: while iterating, a file cannot be opened or is damaged.
        ModuleNotFoundError: pyarrow or the library is not installed; the message says how to.

    Example:
        >>> import pyarrow
        >>> from torchdata.datapipes.iter import ArrowReader
        >>> table = pyarrow.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
        >>> list(ArrowReader(table))
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}, {'a': 3, 'b': 'z'}]
        >>> list(ArrowReader(table, columns=["a"], rows=False, frame_size=2))
        [{'a': array([1, 2])}, {'a': array([3])}]
    """

    #: A state is a row of a part, so that it is gone on from in frames of another size.
    tuning: ClassVar[frozenset[str]] = frozenset({"frame_size", "use_threads", "writable"})

    #: The part that is read, and how many of its rows were yielded.
    _part: int | None = state()
    _row: int = state(0)
    #: The name of the part, by which a table that has changed is noticed.
    _name: str | None = state()

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
        name = "ArrowReader"
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
        if frame_size is not None:
            check_int(name, "frame_size", frame_size, least=1)
            if rows:
                raise ValueError(f"{name}: frame_size is for frames: say rows=False")
        self.rows, self.frame_size = rows, frame_size
        self.writable, self.use_threads = writable, use_threads
        self.library, self.dtype = library, dtype
        self._format = FrameFormat(name, library, dtype, arrays=True, writable=writable)

    def __iter__(self) -> Iterator[Any]:
        return self._items(iter(self.source_datapipe))

    def _items(self, parts: Iterator[Any]) -> Iterator[Any]:
        if self._part is not None:
            self._check_name(self._part)
            yield from self._items_of(self._part)
        for part in parts:
            if type(part) is not int:
                raise TypeError(
                    f"ArrowReader expects numbers of parts, as ArrowParts yields them, but got {part!r} of type "
                    f"{type(part).__name__}"
                )
            self._row, self._name = 0, self._table.names[part]
            self._part = part
            yield from self._items_of(part)
        self._part = None

    def _drop_broken(self) -> None:
        """Lets go of a part that has raised."""
        self._part = None

    def _check_name(self, part: int) -> None:
        names = self._table.names
        if part >= len(names) or names[part] != self._name:
            raise ValueError(
                f"the state of ArrowReader was saved in {self._name}, which is not part {part} of this table: it has "
                "changed since. Read the version of the table with which the state was saved"
            )

    def _items_of(self, part: int) -> Iterator[Any]:
        try:
            table = self._table.read(part, self.columns, self.use_threads)
            size = 1024 if self.rows else self.frame_size or max(table.num_rows, 1)
            while self._row < table.num_rows:
                piece = table.slice(self._row, size)
                if self.library == "pyarrow" and not self.rows:
                    piece = copied_rows(table, self._row, size)
                if self.rows:
                    for row in piece.to_pylist():
                        self._row += 1
                        yield row
                else:
                    frame = self._format.of_table(piece)
                    self._row += piece.num_rows
                    del piece
                    yield frame
                    del frame
        except Exception as error:
            raise self._explained(error, self._table.names[part]) from error

    def _explained(self, error: Exception, name: str) -> Exception:
        redact_error(error)
        arrow = optional_import("pyarrow", extra="parquet", needed_by="ArrowReader")
        from_arrow = isinstance(error, arrow.ArrowException) or (type(error) is OSError and error.errno is None)
        if from_arrow or type(error) is ValueError:
            return type(error)(f"ArrowReader cannot read {name}: {error}")
        error.add_note(f"ArrowReader was reading {name}.")
        return error

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")


def _table_of(pipe: Any) -> ArrowSource:
    """The table that is listed in a graph. A dispatching process may list it: so the reader has it, too.

    Raises:
        TypeError: no table is, or several are.
    """
    found = [source for each in Graph(pipe) if isinstance(source := getattr(each, "source", None), ArrowSource)]
    if len(found) != 1:
        raise TypeError(
            f"ArrowReader: source_datapipe must yield the parts of one ArrowParts, but reads {len(found)} of them: say "
            "ArrowParts(table).shuffle().read_arrow(), ArrowReader(table), or parts=ArrowParts(table)"
        )
    return found[0]
