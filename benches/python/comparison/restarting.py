"""Measures the gap in the items of a loader with `on_worker_exit="restart"` after a worker was killed.

The gap ends with the first item of the replacement process. The time to start a whole loader is measured for
comparison, because a program without restarts loses at least this time.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from comparison import items

KILLS = 5
BEFORE = 200


def gap(iterator: Any, pid: int, workers: int) -> float:
    """Kills a worker, and returns the longest wait for one of the next items, in seconds.

    Reads many items, because the loader first yields the items that the killed worker had already sent.
    """
    os.kill(pid, signal.SIGKILL)
    longest = 0.0
    for _ in range(40 * workers):
        begin = time.perf_counter()
        next(iterator)
        longest = max(longest, time.perf_counter() - begin)
    return longest


def measure(build: Callable[..., Any], order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Measures the gap in the items of a loader. `build` creates the loader, given a source and `on_worker_exit`."""
    loader = build(range(items.ENDLESS), on_worker_exit="restart")
    iterator = iter(loader)
    gaps = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(KILLS):
            for _ in range(BEFORE):
                next(iterator)
            pids = loader.reading_service._children.pids
            gaps.append(gap(iterator, pids[number % order["workers"]], order["workers"]))
    return {"value": statistics.median(gaps)}, loader
