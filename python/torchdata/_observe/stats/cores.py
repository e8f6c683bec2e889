"""Determines how many workers keep the cores of this machine busy, from their measured processor and waiting times.

Role: pure functions over statistics, in the main process, for diagnoses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchdata._observe.stats.model import LoaderStats, ProcessStats

__all__ = ["free_of_main", "processors_of", "workers_that_fit"]


def processors_of(processes: Iterable[ProcessStats], before: float = 0.0) -> tuple[float, float] | None:
    """Returns how many processors a process would keep busy while it works, if no other programs ran: a lower and an
    upper bound.

    If other programs run, a process must wait for a processor and takes longer, but this wait does not count as the
    process's own waiting.

    Args:
        processes: the processes.
        before: the seconds for which each process may have used a processor before the process worked on items.
            Processor time is counted from the start of a process, and includes imports.

    Returns:
        The two bounds; None if they are unknown.
    """
    processes = list(processes)
    busy = sum(one.busy_seconds for one in processes)
    if busy <= 0 or any(one.cpu_seconds is None for one in processes):
        return None
    ran = sum(one.cpu_seconds or 0.0 for one in processes)
    stood = sum(one.busy * (one.waits_for_cpu_seconds or 0.0) for one in processes)
    return _share(max(0.0, ran - before * len(processes)), stood, busy), _share(ran, stood, busy)


def _share(ran: float, stood: float, busy: float) -> float:
    if ran + stood >= busy:  # several threads run at the same time
        return (ran + stood) / busy
    return ran / (busy - stood)


def free_of_main(stats: LoaderStats, cores: int) -> float:
    """Returns the number of cores that training in the main process leaves to workers."""
    main = stats.main
    computed = (main.cpu_seconds or 0.0) / stats.seconds if main is not None and stats.seconds > 0 else 0.0
    return cores - min(cores - 1.0, computed)


def workers_that_fit(processors: float, free: float) -> float:
    """Returns how many workers fill the free cores, if each worker uses `processors` cores. More workers would not be
    faster."""
    return max(1, math.floor(free / processors + 0.5)) if processors > 0 else math.inf
