"""Contenders without a loader, which show how fast a machine is if items are not sent between processes."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

from comparison import items

_POOL_BYTES = 256 << 20
"""The number of these arrays is so large that their memory exceeds the caches."""


def _decode(number: int, workers: int, seconds: float, start: Any, rates: Any) -> None:
    n = number
    items.decoded(n)
    start.wait()
    begin, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        n += workers
        items.decoded(n)[0]
        done += 1
    rates.put(done / passed)


def decoding(workers: int, seconds: float) -> float:
    context = multiprocessing.get_context("fork")
    start, rates = context.Barrier(workers), context.SimpleQueue()
    processes = [
        context.Process(target=_decode, args=(number, workers, seconds, start, rates)) for number in range(workers)
    ]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return float(total)


def _seconds_each(work: Any, seconds: float) -> float:
    """Returns the median seconds per call, measured in blocks of a hundred calls."""
    blocks: list[float] = []
    n, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        for _ in range(100):
            work(n)
            n += 1
        blocks.append((time.perf_counter() - begin) / 100)
    return statistics.median(blocks)


def array_floor(seconds: float) -> dict[str, float]:
    """Measures the time to copy an array of 150 KiB, in cache and out of cache."""
    import numpy

    made = _seconds_each(items.array, seconds / 3)
    near, far = numpy.zeros(items.ARRAY_BYTES, numpy.uint8), numpy.ones(items.ARRAY_BYTES, numpy.uint8)
    in_cache = _seconds_each(lambda n: numpy.copyto(near, far), seconds / 3)
    slots = _POOL_BYTES // items.ARRAY_BYTES
    source, target = (numpy.full((slots, items.ARRAY_BYTES), fill, numpy.uint8) for fill in (1, 2))
    out_of_cache = _seconds_each(lambda n: numpy.copyto(target[n % slots], source[n % slots]), seconds / 3)
    return {"value": 1 / made, "made_s": made, "memcpy_s": in_cache, "far_memcpy_s": out_of_cache}
