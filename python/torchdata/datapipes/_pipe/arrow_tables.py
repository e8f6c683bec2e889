"""Tables cut out of the parts of a larger one: what `ArrowReader` and `ParquetDataFrameLoader` make their items of.

Role: determines the rows of an item, and the position after it. Runs in the process that iterates such a pipe,
and holds one part in memory. pyarrow is imported where a table is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata._optional import optional_import

__all__ = ["is_of_arrow", "tables_of"]


def _arrow() -> Any:
    return optional_import("pyarrow", extra="parquet", needed_by="ArrowReader")


def tables_of(
    read: Callable[[int], Any], parts: Iterable[int], row: int, size: int | None, *, copy: bool
) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Tables of consecutive rows, each with the position after it: a part, and a row in this part.

    Args:
        read: makes the table of a part.
        parts: the parts to read, by their numbers.
        row: the row of the first part to begin at.
        size: rows per table, across parts; the last table may have fewer. None for a table of each part.
        copy: whether a table has its own memory. A slice keeps the memory of its whole part, also if it is pickled.
    """
    if size is None:
        for part in parts:
            yield _rows(read(part), row, None, copy), (part + 1, 0)
            row = 0
        return
    pieces: list[Any] = []
    missing, part = size, 0
    for part in parts:
        table = read(part)
        while row < table.num_rows:
            pieces.append(_rows(table, row, missing, copy))
            row += pieces[-1].num_rows
            missing -= pieces[-1].num_rows
            if not missing:
                whole, pieces, missing = _arrow().concat_tables(pieces), [], size
                yield whole, (part, row) if row < table.num_rows else (part + 1, 0)
                del whole
        row = 0
        del table  # before the next part is read
    if pieces:
        yield _arrow().concat_tables(pieces), (part + 1, 0)


def _rows(table: Any, start: int, count: int | None, copy: bool) -> Any:
    piece = table.slice(start, count)
    if not copy or piece.num_rows == table.num_rows:
        return piece
    return piece.take(_arrow().array(range(piece.num_rows)))


def is_of_arrow(error: Exception) -> bool:
    """Whether an error is Arrow's, of damaged data or of values that do not fit, and no other system's."""
    return isinstance(error, _arrow().ArrowException) or (type(error) is OSError and error.errno is None)
