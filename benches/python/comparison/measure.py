"""Measures, in a child process, the rate, the time to the first item, and the time between two epochs."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from comparison import items

WARM_UP_S = 0.4


def _leave(share: Iterable[Any]) -> None:
    for _ in share:
        pass


def _touch_array(share: Iterable[Any]) -> None:
    for item in share:
        item[0]


def _touch_mixed(share: Iterable[Any]) -> None:
    for item in share:
        item["image"][0]


def _touch_batch(share: Iterable[Any]) -> None:
    for item in share:
        item[0, 0, 0, 0]


def _walk_lists(share: Iterable[Any]) -> None:
    for item in share:
        for _ in item:
            pass


CONSUMERS: dict[str, Callable[[Iterable[Any]], None]] = {
    "tiny": _leave,
    "content": _leave,
    "array": _touch_array,
    "tensor": _touch_array,
    "small_tensor": _leave,
    "small_tensors": _leave,
    "small_array": _leave,
    "small_arrays": _leave,
    "mixed": _touch_mixed,
    "batch": _touch_batch,
    "decoded": _touch_array,
    "collated": _touch_mixed,
    "flipped": _touch_array,
    "transposed": _touch_array,
    "cropped": _touch_array,
    "times": _touch_array,
    "shared_text": _touch_array,
    "objects": _touch_array,
    **dict.fromkeys(("hashes", "large_ints", "floats", "float_lists", "times_and_uuids"), _touch_array),
    "lists": _walk_lists,
    **dict.fromkeys((crops for crops in items.MAKERS if "crops" in crops), _touch_mixed),
}
"""For each kind of item, a function that takes a number of items and accesses one element of each item."""


def rate(
    iterator: Iterator[Any], consume: Callable[[Iterable[Any]], None], seconds: float, warm_up: float = WARM_UP_S
) -> float:
    """Returns the items per second in a window that begins after the warm-up, when the queues are full.

    The clock is read only every 20 ms, because reading it for each item would slow down the fast contenders.
    """
    next(iterator)
    begin, taken, chunk = time.perf_counter(), 0, 1
    while time.perf_counter() - begin < warm_up:
        consume(islice(iterator, chunk))
        taken += chunk
        # The chunk size at most doubles in each step, because the first estimates of the rate are too high: some items
        # were ready before the measurement began.
        chunk = max(1, min(2 * chunk, int(0.02 * taken / (time.perf_counter() - begin))))
    begin, taken = time.perf_counter(), 0
    while True:
        consume(islice(iterator, chunk))
        taken += chunk
        if (passed := time.perf_counter() - begin) >= seconds:
            break
    next(iterator)  # raises an error if the iterator has ended, because the rate would then be wrong
    return taken / passed


def turn_around(epochs: Iterable[Any], seconds: float) -> float:
    """Returns the median seconds from the end of an epoch to the first item of the next epoch."""
    times: list[float] = []
    until = time.perf_counter() + WARM_UP_S + seconds
    iterator = iter(epochs)
    while time.perf_counter() < until or len(times) < 5:
        deque(iterator, maxlen=0)
        ended = time.perf_counter()
        iterator = iter(epochs)
        next(iterator)
        times.append(time.perf_counter() - ended)
    return statistics.median(times[3:])
