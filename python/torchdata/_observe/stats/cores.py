"""Computes how many workers keep the cores of this machine busy, from processor times and waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchdata._observe.stats.model import LoaderStats, ProcessStats


def workers_that_fit(stats: LoaderStats) -> tuple[float, float]:
    """Returns a lower and an upper bound for the number of workers that keep the cores busy. The bounds are infinite if
    a worker runs on another machine."""
    if any(worker.node is not None for worker in stats.workers):
        return math.inf, math.inf
    # A process may use processor time before its first item, for example to import modules.
    before = (stats.first_item_seconds or 0.0) * (stats.epochs + 1)
    processors = _processors_of(stats.workers or stats.processes, before)
    if processors is None:
        return stats.cores, math.inf
    least, most = processors
    if not stats.workers:
        return max(stats.cores, _filling(stats.cores, most)), math.inf
    main = stats.main
    computed = (main.cpu_seconds or 0.0) / stats.seconds if main is not None and stats.seconds > 0 else 0.0
    free = stats.cores - min(stats.cores - 1.0, computed)  # the main process, which trains, uses the other cores
    return max(stats.cores, _filling(free, most)), max(stats.cores, _filling(stats.cores, least))


def _filling(free: float, processors: float) -> float:
    """Returns how many workers keep `free` cores busy if each worker uses `processors` cores."""
    return max(1, math.floor(free / processors + 0.5)) if processors > 0 else math.inf


def _processors_of(processes: Iterable[ProcessStats], before: float) -> tuple[float, float] | None:
    """Returns a lower and an upper bound for the number of processors that a process uses while it works.

    Args:
        before: an upper bound, in seconds, for the processor time that each process has used before its first item.
    """
    processes = list(processes)
    busy = sum(one.busy_seconds for one in processes)
    if busy <= 0 or any(one.cpu_seconds is None for one in processes):
        return None
    ran = sum(one.cpu_seconds or 0.0 for one in processes)
    queued = sum(one.busy * (one.waits_for_cpu_seconds or 0.0) for one in processes)
    return _share(max(0.0, ran - before * len(processes)), queued, busy), _share(ran, queued, busy)


def _share(ran: float, queued: float, busy: float) -> float:
    return (ran + queued) / busy if ran + queued >= busy else ran / (busy - queued)
