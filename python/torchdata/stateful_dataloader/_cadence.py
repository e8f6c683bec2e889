"""Decides when a worker of a `StatefulDataLoader` takes snapshots of its dataset, and when it checks its random
generators.

The slower the snapshots and checks are, the less often they are performed. All times are seconds of the monotonic
clock, which is the same in all processes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

from torchdata.stateful_dataloader._generators import GLOBAL, Moment, mark_of, read

#: After an expensive snapshot, a worker waits at least `_SPARSELY` times the snapshot's duration, so that expensive
#: snapshots take less than 0.5 % of the time.
_SPARSELY = 200
_AT_LEAST = 0.004
#: A snapshot is expensive if it takes longer than `_COSTLY` seconds, and longer than the fraction `_COSTLY_PART` of a
#: batch's duration.
_COSTLY, _COSTLY_PART = 2e-5, 0.01


class SnapshotCadence:
    def __init__(self, every: int) -> None:
        self._every = every
        self._count, self._spent = 0, 0.0
        #: The durations of the last three snapshots. Only the shortest of these durations is used, because the system
        #: may have suspended the process during the longer snapshots.
        self._costs: deque[float] = deque(maxlen=3)
        self.due = 0.0

    def is_due(self, now: float, took: float) -> bool:
        self._count += 1
        self._spent += took
        return self._count % self._every == 0 and now >= self.due

    def took(self, now: float, cost: float) -> None:
        self._costs.append(cost)
        cost = min(self._costs) if len(self._costs) == 3 else 0.0
        is_costly = cost > _COSTLY and cost > _COSTLY_PART * self._spent / self._count * self._every
        self.due = next_due(now, cost) if is_costly else 0.0


class GeneratorWatch:
    """Detects which global random generators a worker has used. A check takes tens of microseconds, so checks are rare.

    Args:
        moved: the names of generators that are assumed to have been used.
    """

    def __init__(self, moved: Iterable[str] = ()) -> None:
        self._first = {name: mark_of(name) for name in GLOBAL}
        self.moved: list[str] = [*moved]
        self.due = 0.0

    def look(self) -> bool:
        moved = [name for name in GLOBAL if name not in self.moved and mark_of(name) != self._first[name]]
        self.moved += moved
        return bool(moved)

    def look_in_time(self, now: float) -> bool:
        has_moved = self.look()
        is_done = len(self.moved) == len(GLOBAL)
        self.due = math.inf if is_done else next_due(now, time.monotonic() - now)
        return has_moved

    def states(self) -> Moment:
        return {name: read(name) for name in self.moved}


def next_due(now: float, took: float) -> float:
    """Returns the time of the next snapshot, which is a multiple of a period: `_AT_LEAST` times a power of two.

    The main process receives batches from the workers in turn, so a worker that takes a snapshot delays all workers.
    The periods are powers of two, so that several workers often take snapshots at the same time, which causes only one
    delay.

    Args:
        took: the duration of the last snapshot in seconds.
    """
    period = _AT_LEAST * 2.0 ** math.ceil(math.log2(max(1.0, _SPARSELY * took / _AT_LEAST)))
    return math.ceil(now / period + 0.5) * period
