"""The processes of a reading service, and those that take their place while an epoch runs.

Role: runs in main. Owns all `Children` of the service: those at work, those that are starting, and those that others
have replaced and that have not ended yet. It knows how they are made and how others take over; when is decided by
`steering`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata._engine.interrupts import InterruptsDeferred
from torchdata._engine.processes import Children
from torchdata._native import StatsBoard
from torchdata._observe.stats.counting import PIPES, Room
from torchdata.dataloader2.graph import DataPipe

if TYPE_CHECKING:
    from torchdata.dataloader2.services.worker_output import WorkerOutput

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
        graphs: what each worker runs, and what the dispatching process does, if there is one.
        ahead: how many items each may be ahead.
        number: how many workers there are at first.
        changes: how often others take their place at most.
        most: how many workers there are at most, then.
        full_stats: whether the time of each pipe is taken.
    """

    def __init__(
        self,
        make: Callable[..., Children],
        graphs: tuple[DataPipe, DataPipe | None],
        ahead: Ahead,
        number: int,
        *,
        changes: int = 0,
        most: int = 0,
        full_stats: bool = False,
    ) -> None:
        self._make = make
        self._graphs = graphs if changes else None
        self.ahead = ahead
        self.most = most
        room = None
        if changes:
            pages = 1 + (1 + changes) * (most + (graphs[1] is not None))
            room = Room(StatsBoard(pages, (1 + changes) * most, PIPES, full_stats))
        #: Those that are not at work: that are starting, or were replaced.
        self.others: list[Children] = []
        self.children = self._made(number, room)
        #: Where those count that come next.
        self._next_room = self.children.room.behind(number, self.children.dispatches)

    def _made(self, number: int, room: Room | None) -> Children:
        return self._make(num_workers=number, window=self.ahead.window(number), room=room)

    def start_others(self, number: int) -> Children:
        """Starts so many workers beside those that there are; they wait for commands."""
        room = self._next_room
        children = self._made(number, room)
        self.others.append(children)
        self._next_room = room.behind(number, children.dispatches)
        return children

    def replace(self, output: WorkerOutput, children: Children) -> bool:
        """Lets others make the rest of the epoch. False where it is not known now how far it has come.

        Args:
            output: what main reads, between two items.
            children: the others.

        Raises:
            ValueError: what is left of the epoch cannot be shared anew; the message says why.
        """
        from torchdata.dataloader2.services.elastic import shared_anew

        place = output.place(output.delivered)
        if place is None or self._graphs is None:
            return False
        anew = shared_anew(place, children.num_workers, *self._graphs)
        with InterruptsDeferred():
            output.replace(children, anew)
            self._take_over(children)
        return True

    def replace_between_epochs(self, output: WorkerOutput, children: Children) -> None:
        """Lets others run the next epochs."""
        with InterruptsDeferred():
            output.replace_between_epochs(children)
            self._take_over(children)

    def _take_over(self, children: Children) -> None:
        from torchdata._observe.outside.stalls import warn_of_stalls

        old, self.children = self.children, children
        self.others.remove(children)
        self.others.append(old)
        warn_of_stalls(children, old.stall_warning)
        old.retire()

    def reap(self) -> None:
        """Gives back what belongs to those that were replaced and have ended."""
        for children in [each for each in self.others if each.is_retired and each.have_ended]:
            children.shutdown()
            self.others.remove(children)

    def let_go(self, children: Children) -> None:
        """Ends those that were started and are not needed."""
        children.retire()

    def shutdown(self) -> None:
        """Ends all; bounded and idempotent."""
        first: BaseException | None = None
        for children in [self.children, *self.others]:
            try:
                children.shutdown()
            except Exception as error:
                first = first or error
        self.others.clear()
        if first is not None:
            raise first
