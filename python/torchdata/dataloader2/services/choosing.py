"""How many workers, and how many items ahead: what `"auto"` chooses, from what the loader has counted.

Role: pure functions over statistics, with a reason in words for each choice. Runs in main. `steering` acts on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata import _machine as machine
from torchdata._observe.show.table import duration, percent, size
from torchdata._observe.stats.cores import free_of_main, processors_of, workers_that_fit
from torchdata._observe.stats.diagnosis import FEWEST, dispatching, full_memory, sending, training

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats

__all__ = [
    "MOST_WAITING",
    "Choice",
    "Limits",
    "choose_window",
    "choose_workers",
    "is_enough",
    "limits",
    "most_workers",
    "waited_per_item",
]

#: So many workers there may be on fewer cores, where their work is waiting.
MOST_WAITING = 16

#: A number of workers that makes items so many times as fast as the training step takes them.
AMPLE = 1.25
#: What more workers must bring, at least, to be kept.
GAIN = 1.1
#: Share of the memory that is left which new workers may take.
MEMORY_SHARE = 0.7
#: Share of the memory budget that items may take which lie ready.
BUDGET_SHARE = 0.5
#: Items that a worker is ahead at least, and at most.
LEAST_WINDOW, MOST_WINDOW = 2, 256
#: Shares of the time from which on main waits for items, and a worker for room.
WAITS, HELD_UP = 0.02, 0.05
#: Share of the time that workers wait for room from which on there are enough of them.
IDLE = 0.5


@dataclass(frozen=True)
class Limits:
    """What the machine allows.

    Args:
        cores: processors that the program may use.
        memory: bytes that new processes may take; None where that is not known.
        workers: workers for which there is room.
    """

    cores: int
    memory: int | None
    workers: int


@dataclass(frozen=True)
class Choice:
    """A number, and why it."""

    number: int
    reason: str


def most_workers() -> int:
    """How many workers there may be on this machine at most, whatever they do."""
    return max(machine.cores(), MOST_WAITING)


def limits(most: int) -> Limits:
    """What this machine allows now, and no more than so many workers."""
    return Limits(machine.cores(), machine.memory_left(), most)


def is_enough(stats: LoaderStats) -> bool:
    """Whether so much was counted that it means anything."""
    return stats.items >= max(FEWEST, 4 * len(stats.workers)) and stats.seconds > 0


def choose_workers(stats: LoaderStats, allowed: Limits, worker_memory: int | None, window: int) -> Choice:
    """How many workers there should be.

    Args:
        stats: what was counted with those that there are.
        allowed: what the machine allows.
        worker_memory: bytes that one of them has for itself; None where that is not known.
        window: items that each is ahead of main.
    """
    now = len(stats.workers)
    if training(stats) is not None:
        return _with_fewer(stats, now)
    rules = (
        (full_memory, "the memory budget is full"),
        (dispatching, "the dispatching process limits"),
    )
    for rule, said in rules:
        if rule(stats) is not None:
            return Choice(now, said)
    if sending(stats) is not None:
        return _without_workers(stats, now)
    main = stats.main
    if main is not None and main.busy > stats.waiting:
        return Choice(now, f"the pipes that stay in the main process limit ({percent(main.busy)} of the time)")
    if (stats.held_up or 0.0) > IDLE:
        return Choice(now, f"workers wait {percent(stats.held_up)} of the time for room: more would wait longer")
    each, step = _seconds_per_item(stats), stats.step_seconds or 0.0
    wanted = allowed.workers if step <= 0 else math.ceil(AMPLE * each / step)
    loading = (
        f"loading limits: main waits {percent(stats.waiting)} of the time, an item takes {duration(each)} of a worker "
        f"and the training step {duration(step)}"
    )
    most, why = _most(stats, allowed, worker_memory, window)
    number = max(now + 1, wanted) if now < most else now
    if number > most or now >= most:
        return Choice(max(now, most), f"{loading}; {why}")
    return Choice(number, loading)


def waited_per_item(stats: LoaderStats) -> float:
    """Seconds that the program waits in the loader for an item: for workers, or while main makes it."""
    share = 1.0 if stats.loading is None else stats.loading
    return share * stats.seconds / stats.items if stats.items else 0.0


def _without_workers(stats: LoaderStats, now: int) -> Choice:
    """The main process, if it makes an item in less time than one of a worker is waited for."""
    each, waited = _seconds_per_item(stats), waited_per_item(stats)
    words = f"sending limits: an item takes {duration(each)} of a worker, and {duration(waited)} to come from there"
    return Choice(0 if GAIN * each < waited else now, words)


def _with_fewer(stats: LoaderStats, now: int) -> Choice:
    """What suffices where the loader keeps up."""
    each, step = _seconds_per_item(stats), stats.step_seconds or 0.0
    words = f"training limits: its step takes {duration(step)}, an item {duration(each)} of a worker"
    if step <= 0 or (stats.held_up or 0.0) < IDLE:
        return Choice(now, words)
    return Choice(min(now, max(1, math.ceil(AMPLE * each / step))), words)


def _seconds_per_item(stats: LoaderStats) -> float:
    items = sum(worker.items for worker in stats.workers)
    return sum(worker.busy_seconds for worker in stats.workers) / items if items else 0.0


def _most(stats: LoaderStats, allowed: Limits, worker_memory: int | None, window: int) -> tuple[int, str]:
    """The most workers that there may be, and what keeps them from being more."""
    found = [_most_of_cores(stats, allowed)]
    if worker_memory and allowed.memory is not None:
        many = int(MEMORY_SHARE * allowed.memory / worker_memory)
        found.append((many, f"{size(allowed.memory)} of memory are left, and a worker takes {size(worker_memory)}"))
    if stats.bytes and stats.items and stats.shared_memory_peak:
        # Where loading limits, few of the items that may lie ready do.
        each = min(window * stats.bytes / stats.items, stats.shared_memory_peak / len(stats.workers))
        many = int(stats.shared_memory_limit / each)
        found.append((many, f"the memory budget is {size(stats.shared_memory_limit)}"))
    return min(found)


def _most_of_cores(stats: LoaderStats, allowed: Limits) -> tuple[int, str]:
    """The most workers that the cores permit: as many as keep them busy, which are more where their work is waiting."""
    processors = processors_of(stats.workers)
    if processors is None:
        return min(allowed.cores, allowed.workers), f"there are {allowed.cores} cores"
    _, share = processors
    free = free_of_main(stats, allowed.cores)
    if share * allowed.workers <= free:
        return allowed.workers, f"more than {allowed.workers} are not tried"
    fit = int(min(allowed.workers, workers_that_fit(share, free)))
    return fit, f"there are {allowed.cores} cores, which {fit} keep busy"


def choose_window(stats: LoaderStats, window: int, budget: int) -> Choice:
    """How many items each worker should be ahead of main.

    Items take different times: where main waits for a worker at one moment, and workers wait for room at another, more
    items in between even that out. Memory sets the limit.

    Args:
        stats: what was counted.
        window: how many it is.
        budget: bytes of shared memory for all workers.
    """
    workers = stats.workers
    item = stats.bytes / stats.items if stats.items else 0.0
    most = MOST_WINDOW
    if item > 0:
        most = max(LEAST_WINDOW, min(MOST_WINDOW, int(BUDGET_SHARE * budget / (item * max(1, len(workers))))))
    if window > most:
        return Choice(most, f"items of {size(item)} fill the memory budget of {size(budget)}")
    held_up = stats.held_up or 0.0
    if stats.waiting < WAITS or held_up < HELD_UP or window >= most:
        return Choice(window, "")
    spread = f"main waits {percent(stats.waiting)} of the time, though workers wait {percent(held_up)} of it for room"
    return Choice(min(most, 2 * window), f"{spread}: items take different times")
