"""Functions of main's that were applied to the graphs of all children, and how far each child had come then.

Role: main's side. `protocol::Calls` in the engine decides which functions one that takes the place of a child meets, in
which order, and between which items; this module shows it what the children have said, and has the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchdata import _native
from torchdata._engine.snapshots import Call
from torchdata._engine.workers.members import Members

__all__ = ["Calls", "Noted"]


@dataclass
class Noted:
    """A function that is sent to the children.

    Args:
        serial: its number, from 1.
        function: the function.
    """

    serial: int
    function: Callable[[Any], Any]
    #: By child, the number of the command that told it; none if it was not told.
    numbers: dict[int, int] = field(default_factory=dict)


class Calls:
    """Those of one loader. All is done with the lock for sending held.

    Args:
        members: the children.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._machine = _native.Calls(len(members.names))
        #: By number: all that there were, as nobody knows what they do.
        self._noted: dict[int, Noted] = {}
        #: Those of the epoch that runs.
        self._now: list[Noted] = []

    def begin(self, again: bool) -> None:
        """An epoch begins; `again` says whether the one before may be run again."""
        self._settle_all()
        self._machine.begin(again)
        self._now = []

    def note(self, function: Callable[[Any], Any]) -> Noted:
        """Notes one that is about to be sent. All have obeyed those before it."""
        self._settle_all()
        noted = Noted(self._machine.note(), function)
        self._noted[noted.serial] = noted
        self._now.append(noted)
        return noted

    def rest(self, noted: Noted, index: int) -> None:
        """Notes that a child gets it no more in this epoch: the one that takes its place in the next one does."""
        self._machine.rest(noted.serial, index)

    def any_now(self) -> bool:
        """Whether a function was applied in the epoch that runs."""
        return bool(self._now)

    def _settle_all(self) -> None:
        for index in range(len(self._members.names)):
            self.settle(index)

    def settle(self, index: int) -> None:
        """Notes where a child had come with what it has obeyed: one call at the most since this was asked last."""
        machine = self._machine
        for noted in self._now:
            if index in noted.numbers:
                machine.tell(noted.serial, index)
        for serial in machine.unsettled(index):
            place = self._members.control(index).obeyed_at(self._noted[serial].numbers[index])
            if place is not None:
                machine.settle(serial, index, place)

    def settle_behind(self, index: int, received: int) -> None:
        """Notes of a worker that has ended, and of which so many items were received, where it met the rest."""
        self.settle(index)
        self._machine.settle_behind(index, received)

    def is_placed(self, index: int) -> bool:
        """Whether it is known where a child had come with each function of an epoch that may be run again."""
        self.settle(index)
        return self._machine.is_placed(index)

    def ahead(self, index: int, runs: bool, repeats: bool) -> list[Noted]:
        """What one that takes a place applies before anything else.

        Args:
            index: the place.
            runs: whether an epoch runs.
            repeats: whether it runs the rest of the epoch before first.
        """
        return [self._noted[serial] for serial in self._machine.ahead(index, runs, repeats)]

    def within(self, index: int, *, earlier: bool = False) -> tuple[Call, ...]:
        """What it meets in the epoch that runs, or in the one before."""
        within = self._machine.within(index, earlier)
        return tuple((place, serial, self._noted[serial].function) for place, serial in within)
