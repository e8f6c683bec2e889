"""Test cases for map-style pipes that access the items of the source by index."""

import random
from functools import partial
from typing import Any

from hypothesis import strategies as st

from pipes_table.row import Row, Source
from torchdata.datapipes.map import SequenceWrapper


def indexed(source: Source) -> Any:
    return source().enumerate().to_map_datapipe()


def squared(item: int) -> int:
    return item * item


_row = partial(Row, grows="it keeps all items", not_in_workers="it numbers the items before the workers divide them")
ROWS: list[Row] = [
    _row("map_pipe", lambda s: indexed(s).to_iter_datapipe(), lambda xs: xs),
    _row("map_pipe_map", lambda s: indexed(s).map(squared).to_iter_datapipe(), lambda xs: [x * x for x in xs]),
    _row(
        "map_pipe_batch",
        lambda s, size, drop_last: indexed(s).batch(size, drop_last).to_iter_datapipe(),
        lambda xs, size, drop_last: [
            xs[start : start + size] for start in range(0, len(xs) - (size - 1 if drop_last else 0), size)
        ],
        {"size": (st.integers(1, 6), 3), "drop_last": (st.booleans(), False)},
    ),
    _row(
        "map_pipe_concat",
        lambda s: (indexed(s).concat(SequenceWrapper("ab")) + SequenceWrapper("c")).to_iter_datapipe(),
        lambda xs: [*xs, *"abc"],
    ),
    _row(
        "map_pipe_zip",
        lambda s, count: indexed(s).zip(SequenceWrapper(range(count))).to_iter_datapipe(),
        lambda xs, count: list(zip(xs, range(count), strict=False)),
        {"count": (st.integers(0, 9), 4)},
    ),
    _row(
        "map_pipe_unzip",
        lambda s: indexed(s).zip(SequenceWrapper(range(20))).unzip(2, columns_to_skip=[1])[0].to_iter_datapipe(),
        lambda xs: xs,
    ),
    _row(
        "map_pipe_in_memory_cache",
        lambda s: indexed(s).map(squared).in_memory_cache().to_iter_datapipe(),
        lambda xs: [x * x for x in xs],
    ),
    _row(
        "map_pipe_shuffle",
        lambda s: indexed(s).shuffle(),
        lambda xs: random.Random(1).sample(xs, len(xs))[::-1],
        random=True,
    ),
]
