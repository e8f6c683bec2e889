"""Defines pipelines that workers on any machine can import.

Every worker imports this file, so the file imports only modules that every worker needs."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES

if TYPE_CHECKING:
    import numpy as np


def double(x: int) -> int:
    return 2 * x


def array(x: int) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.full((5000 + 13 * (x % 7),), x)


def listed(pipe: Any) -> Any:
    import numpy as np

    return pipe.map(np.ndarray.tolist)


def wide(x: int) -> bytes:
    return bytes([x % 256]) * 8000


def as_it_is(pipe: Any) -> Any:
    return pipe


def drawn(x: int) -> tuple[int, float, float]:
    import numpy as np

    return x, random.random(), float(np.random.rand())


def many(x: int) -> list[int]:
    return [x] * (x % 4)


def failing(x: int) -> int:
    if x == 7:
        raise LookupError(f"nothing at {x}")
    return x


def reading(x: int) -> int:
    time.sleep(0.001)
    return x


def numbered(count: int) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter()


def spread(count: int, before: Any = as_it_is, shuffles: bool = True) -> Any:
    pipe: Any = IterableWrapper(range(count))
    pipe = before(pipe.shuffle() if shuffles else pipe)
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


PIPELINES = {
    "numbers": lambda: numbered(300).map(double).batch(3),
    "arrays": lambda: listed(numbered(120).map(array)),
    "random": lambda: numbered(100).map(drawn),
    "uneven": lambda: numbered(150).flatmap(many).map(str),
    "fewer items than workers": lambda: numbered(1).map(double),
}
DISPATCHED = {
    "numbers, dispatched": lambda: spread(300).map(double).batch(3),
    "arrays, dispatched": lambda: listed(spread(80, lambda pipe: pipe.map(array))),
    "random, dispatched": lambda: spread(120, lambda pipe: pipe.map(drawn)).map(str),
    "uneven, dispatched": lambda: spread(150).flatmap(many).map(str),
    "two passes": lambda: spread(60).cycle(2),
    "shares left early": lambda: spread(90).header(7),
    "one item, dispatched": lambda: spread(1).map(double),
}


def plain(item: Any) -> Any:
    return item.tolist() if hasattr(item, "tolist") else item
