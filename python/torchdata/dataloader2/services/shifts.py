"""The processes of a reading service, and those that take their place between two epochs.

Role: runs in main. Owns the `Children` of the service, and for a moment those that others have replaced. It knows how
they are made and how others take over; `steering` decides when.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.workers.epochs import Children
from torchdata._native import StatsBoard
from torchdata._observe.outside.stalls import warn_of_stalls
from torchdata._observe.stats.counting import PIPES, Room

__all__ = ["Ahead", "Shifts"]


@dataclass
class Ahead:
    """How many items a worker may be ahead of main.

    Args:
        worker: so many of its own.
        main: so many for main as a whole, shared out over the workers.
        chosen: a number that was chosen by what was counted instead.
    """

    worker: int
    main: int
    chosen: int | None = None

    def window(self, num_workers: int) -> int:
        """For each of so many workers: at least one item, and no more than the engine can count."""
        return _countable(self.worker - (-self.main // num_workers) if self.chosen is None else self.chosen)

    def window_of_dispatch(self) -> int:
        """The same for the dispatching process, ahead of each worker."""
        return _countable(self.worker)


def _countable(items: int) -> int:
    return min(max(1, items), sys.maxsize)


class Shifts:
    """The processes of a reading service.

    Args:
        make: makes them: `Children`, but for how many, their window and where they count.
        ahead: how many items each may be ahead.
        number: how many workers there are at first.
        changes: how often others take their place at most.
        most: how many workers there are at most, then.
        dispatches: whether a dispatching process is among them.
        full_stats: whether the time of each pipe is taken.
    """

    def __init__(
        self,
        make: Callable[..., Children],
        ahead: Ahead,
        number: int,
        *,
        changes: int = 0,
        most: int = 0,
        dispatches: bool = False,
        full_stats: bool = False,
    ) -> None:
        self._make = make
        self.ahead = ahead
        self.most = most
        room = None
        if changes:
            pages = 1 + (1 + changes) * (most + dispatches)
            room = Room(StatsBoard(pages, (1 + changes) * most, PIPES, full_stats))
        self.children = self._made(number, room)
        #: The children that others have replaced, until they have ended.
        self._old: Children | None = None

    def _made(self, number: int, room: Room | None) -> Children:
        return self._make(num_workers=number, window=self.ahead.window(number), room=room)

    def start_others(self, number: int) -> Children:
        """Starts so many workers that are to take the place of those at work; they wait for commands."""
        now = self.children
        return self._made(number, now.room.behind(now.num_workers, now.dispatches))

    def replace(self, children: Children, take: Callable[[Children], object]) -> None:
        """Lets others run the next epochs, and ends those that ran the last one.

        Args:
            children: the others.
            take: makes main read from them.
        """
        with InterruptsDeferred():
            take(children)
            self._old, self.children = self.children, children
        warn_of_stalls(children, self._old.stall_warning)
        self._old.retire()
        self._end_old()

    def dismiss(self) -> None:
        """Ends the processes, because main runs the next epochs. Their counts stay."""
        self.children.retire()
        self.children.shutdown()

    def call_back(self, number: int) -> None:
        """Starts so many workers after `dismiss`."""
        children = self.start_others(number)
        warn_of_stalls(children, self.children.stall_warning)
        self.children = children

    def _end_old(self) -> None:
        if self._old is not None:
            self._old.shutdown()
            self._old = None

    def shutdown(self) -> None:
        """Ends all; bounded and idempotent."""
        try:
            self._end_old()
        finally:
            self.children.shutdown()
