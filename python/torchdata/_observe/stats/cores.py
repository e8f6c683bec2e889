"""How many workers keep the cores of this machine busy, from what they were counted to compute and to wait.

Role: pure functions over statistics, in main. Verdicts use them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchdata._observe.stats.model import LoaderStats, ProcessStats

__all__ = ["free_of_main", "processors_of", "workers_that_fit"]


def processors_of(processes: Iterable[ProcessStats], before: float = 0.0) -> tuple[float, float] | None:
    """How many processors a process keeps busy while it works, had it them for itself: at least, and at most.

    Other programs make a process stand in line, and so take longer: that is no waiting of its own.

    Args:
        processes: the processes.
        before: seconds of each beside its work, in which it may have computed or not: processor time is counted from
            the start of a process on, and so with what it imports.

    Returns:
        The two numbers; None where they are not known.
    """
    processes = list(processes)
    busy = sum(one.busy_seconds for one in processes)
    if busy <= 0 or any(one.cpu_seconds is None for one in processes):
        return None
    ran = sum(one.cpu_seconds or 0.0 for one in processes)
    stood = sum(one.busy * (one.waits_for_cpu_seconds or 0.0) for one in processes)
    return _share(max(0.0, ran - before * len(processes)), stood, busy), _share(ran, stood, busy)


def _share(ran: float, stood: float, busy: float) -> float:
    if ran + stood >= busy:  # some threads at once
        return (ran + stood) / busy
    return ran / (busy - stood)


def free_of_main(stats: LoaderStats, cores: int) -> float:
    """Cores that the training leaves to workers: it computes in main, and keeps what it takes."""
    main = stats.main
    computed = (main.cpu_seconds or 0.0) / stats.seconds if main is not None and stats.seconds > 0 else 0.0
    return cores - min(cores - 1.0, computed)


def workers_that_fit(processors: float, free: float) -> float:
    """How many workers keep so many free cores busy, if each keeps `processors` of them; more would not be faster."""
    return max(1, math.floor(free / processors + 0.5)) if processors > 0 else math.inf
