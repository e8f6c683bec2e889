"""Regroups the parts of a table into tables with a fixed number of rows. Only one part of the table is in memory at a
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata._optional import optional_import


def _arrow() -> Any:
    return optional_import("pyarrow", extra="parquet", needed_by="ArrowReader")


def tables_of(
    read: Callable[[int], Any], parts: Iterable[int], row: int, size: int | None, *, copy: bool
) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yields tables of consecutive rows, each with the position of the next row: a part number, and a row number in
    this part.

    Args:
        row: the number of rows to skip at the start of the first part.
        size: the number of rows per table (the last table may have fewer); None makes a table of each part.
        copy: whether to copy the rows of each table. A table that is not copied is a view of the part that it was
            sliced from, so it keeps all rows of the part in memory, and its pickle contains all these rows.
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
        del table  # frees the memory of the table before the next part is read
    if pieces:
        yield _arrow().concat_tables(pieces), (part + 1, 0)


def _rows(table: Any, start: int, count: int | None, copy: bool) -> Any:
    piece = table.slice(start, count)
    if not copy or piece.num_rows == table.num_rows:
        return piece
    return piece.take(_arrow().array(range(piece.num_rows)))


def is_of_arrow(error: Exception) -> bool:
    """Returns whether pyarrow raised the error. For damaged data, pyarrow raises an OSError without `errno`, whereas
    OSErrors of the operating system have an `errno`."""
    return isinstance(error, _arrow().ArrowException) or (type(error) is OSError and error.errno is None)
