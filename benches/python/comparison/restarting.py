"""How long a loader gives nothing because a worker was killed: until the first item that another process has made.

With `on_worker_exit="restart"`. Next to it, the start of a whole loader in the same way: what a program without
restarts waits for at least, before it reads again what it had.
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

#: Workers that are killed in a run.
KILLS = 5
#: Items that are read before each.
BEFORE = 200


def gap(iterator: Any, pid: int, workers: int) -> float:
    """Seconds from the exit of a worker to the end of the longest wait for an item after it.

    Items that it had sent are delivered before; so all items that may have been on their way are waited for.
    """
    os.kill(pid, signal.SIGKILL)
    longest = 0.0
    for _ in range(40 * workers):
        begin = time.perf_counter()
        next(iterator)
        longest = max(longest, time.perf_counter() - begin)
    return longest


def measure(build: Callable[..., Any], order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """The median of the gaps of some exits.

    Args:
        build: makes a loader of a source, which takes `on_worker_exit`.
        order: the order of the harness.
    """
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
