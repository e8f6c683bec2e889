"""Test cases for ArrowReader over a table in memory."""

from typing import Any

import pyarrow
from hypothesis import strategies as st

from pipes_table.packing import as_lists
from pipes_table.row import BadArgument, Row, ints
from torchdata.datapipes.iter import ArrowReader
from torchdata.datapipes.map import ArrowParts

CHUNKS = [[0, 1, 2], [3], [4, 5, 6, 7]]
TABLE = pyarrow.table(
    {"a": pyarrow.chunked_array(CHUNKS), "b": pyarrow.chunked_array([[str(n) for n in c] for c in CHUNKS])}
)


def part(item: int) -> int:
    return item % 3


def row(number: int) -> dict[str, Any]:
    return {"a": number, "b": str(number)}


ROWS: list[Row] = [
    Row(
        "read_arrow",
        lambda s: s().map(part).read_arrow(parts=ArrowParts(TABLE)),
        lambda xs: [row(number) for x in xs for number in CHUNKS[x % 3]],
        length="valid length",
    ),
    Row(
        "read_arrow_frames",
        lambda s, size: (
            s().map(part).read_arrow(["a"], parts=ArrowParts(TABLE), rows=False, frame_size=size).map(as_lists)
        ),
        lambda xs, size: [
            {"a": CHUNKS[x % 3][at : at + size]} for x in xs for at in range(0, len(CHUNKS[x % 3]), size)
        ],
        {"size": (st.integers(1, 5), 2)},
        length="valid length",
    ),
]

BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: ArrowReader(5), TypeError, "ArrowParts: source must be a pyarrow data set"),
    (lambda: ints().read_arrow(), TypeError, "must yield the parts of one ArrowParts"),
    (lambda: ArrowReader(TABLE, ["c"]), ValueError, "there is no column 'c'"),
    (lambda: ArrowReader(TABLE, "a"), TypeError, "columns must be a list of names"),
    (lambda: ArrowReader(TABLE, rows=False, frame_size=0), ValueError, "frame_size must be at least 1"),
    (lambda: ArrowReader(TABLE, frame_size=2), ValueError, "frame_size is for frames"),
    (lambda: ArrowReader(TABLE, library="dask"), ValueError, "library must be one of"),
    (lambda: list(ints().map(str).read_arrow(parts=ArrowParts(TABLE))), TypeError, "numbers of parts"),
]
