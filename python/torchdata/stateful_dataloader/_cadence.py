"""When a worker of a `StatefulDataLoader` takes its place, and looks at its generators: seldom if that is dear.

Role: the child's side; owned by one epoch's batches (`Cadence`) and by the worker (`Watch`). All times are seconds by
the monotonic clock, which processes share.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

from torchdata.stateful_dataloader._generators import GLOBAL, Moment, mark_of, read

__all__ = ["Cadence", "Watch", "next_due"]

#: A place that is dear is taken again after so many times what taking it took: less than a two-hundredth of the time.
_SPARSELY = 200
#: And not within so many seconds, however little it took.
_AT_LEAST = 0.004
#: A place is dear if taking it takes more seconds than that, and more than this part of the time of a batch.
_DEAR, _DEAR_PART = 2e-5, 0.01


class Cadence:
    """When a place is told: with each batch, or each n-th; more rarely if that is dear.

    Args:
        every: after how many batches.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._count, self._spent = 0, 0.0
        #: The seconds of the last places; the least counts, since a process may be held up while it takes one.
        self._costs: deque[float] = deque(maxlen=3)
        #: Until when none is to be told, by the clock.
        self.due = 0.0

    def is_due(self, now: float, took: float) -> bool:
        """Whether a place is to be told behind the batch that was just read; need not be asked before `due`.

        Args:
            now: the clock, in seconds.
            took: how long reading the batch took.
        """
        self._count += 1
        self._spent += took
        return self._count % self._every == 0 and now >= self.due

    def took(self, now: float, cost: float) -> None:
        """Notes how long taking a place took."""
        self._costs.append(cost)
        cost = min(self._costs) if len(self._costs) == 3 else 0.0
        is_dear = cost > _DEAR and cost > _DEAR_PART * self._spent / self._count * self._every
        self.due = next_due(now, cost) if is_dear else 0.0


class Watch:
    """Sees which of the worker's global generators have drawn since it began to read.

    That costs some tens of microseconds, so it looks now and then, and first behind the first batch.

    Args:
        moved: those that count as having drawn from the beginning on.
    """

    def __init__(self, moved: Iterable[str] = ()) -> None:
        self._first = {name: mark_of(name) for name in GLOBAL}
        #: The generators that had drawn when it last looked.
        self.moved: list[str] = [*moved]
        #: When it is to look next.
        self.due = 0.0

    def look(self) -> bool:
        """Looks at those that had not drawn yet, and returns whether some have since."""
        moved = [name for name in GLOBAL if name not in self.moved and mark_of(name) != self._first[name]]
        self.moved += moved
        return bool(moved)

    def look_in_time(self, now: float) -> bool:
        """Looks and decides when to look next: never once all have drawn.

        Args:
            now: the clock, in seconds.
        """
        has_moved = self.look()
        is_done = len(self.moved) == len(GLOBAL)
        self.due = math.inf if is_done else next_due(now, time.monotonic() - now)
        return has_moved

    def states(self) -> Moment:
        """The states of those that have drawn."""
        return {name: read(name) for name in self.moved}


def next_due(now: float, took: float) -> float:
    """When a place is to be taken again.

    Main takes batches in turn, so a worker that takes its place holds up all the others, and their pauses would add up.
    Workers whose places cost about as much take them at the same times: at multiples of a period, by the clock that all
    processes share. Periods are powers of two of the shortest one, so that the others' fall together, too.

    Args:
        now: the clock, in seconds.
        took: how long taking it took, in seconds.
    """
    period = _AT_LEAST * 2.0 ** math.ceil(math.log2(max(1.0, _SPARSELY * took / _AT_LEAST)))
    return math.ceil(now / period + 0.5) * period
