"""Functions of the main process that were applied to the graphs of all children, and the position of each child then.

Role: runs in the main process. `protocol::Calls` in the engine decides which functions a replacement process applies,
in which order, and between which items. This module passes it the children's reports, and stores the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchdata import _native
from torchdata._engine.snapshots import Call
from torchdata._engine.workers.members import Members


@dataclass
class Noted:
    """A function that is sent to the children.

    Args:
        serial: its number, from 1.
        function: the function.
    """

    serial: int
    function: Callable[[Any], Any]
    #: By child, the number of the command that sent it; missing if it was not sent.
    numbers: dict[int, int] = field(default_factory=dict)


class Calls:
    """The functions of one loader. All methods require the lock for sending.

    Args:
        members: the children.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._machine = _native.Calls(len(members.names))
        #: All functions so far by number, because their effects are unknown.
        self._noted: dict[int, Noted] = {}
        #: The functions of the running epoch.
        self._now: list[Noted] = []

    def begin(self, again: bool) -> None:
        """Records that an epoch begins; `again` means that the previous epoch may be run again."""
        self._settle_all()
        self._machine.begin(again)
        self._now = []

    def note(self, function: Callable[[Any], Any]) -> Noted:
        """Records a function that is about to be sent. All children have obeyed the earlier ones."""
        self._settle_all()
        noted = Noted(self._machine.note(), function)
        self._noted[noted.serial] = noted
        self._now.append(noted)
        return noted

    def rest(self, noted: Noted, index: int) -> None:
        """Records that a child does not receive it in this epoch. Its replacement in the next epoch does."""
        self._machine.rest(noted.serial, index)

    def any_now(self) -> bool:
        """Returns whether a function was applied in the running epoch."""
        return bool(self._now)

    def _settle_all(self) -> None:
        for index in range(len(self._members.names)):
            self.settle(index)

    def settle(self, index: int) -> None:
        """Records a child's position at its last obeyed function; at most one per call of this method."""
        machine = self._machine
        for noted in self._now:
            if index in noted.numbers:
                machine.tell(noted.serial, index)
        for serial in machine.unsettled(index):
            place = self._members.control(index).obeyed_at(self._noted[serial].numbers[index])
            if place is not None:
                machine.settle(serial, index, place)

    def settle_behind(self, index: int, received: int) -> None:
        """Records, for a worker that has ended after `received` items, where it applied the remaining functions."""
        self.settle(index)
        self._machine.settle_behind(index, received)

    def is_placed(self, index: int) -> bool:
        """Returns whether a child's position is known for each function of an epoch that may be run again."""
        self.settle(index)
        return self._machine.is_placed(index)

    def ahead(self, index: int, runs: bool, repeats: bool) -> list[Noted]:
        """Returns the functions that a replacement process applies first.

        Args:
            index: the number of the child.
            runs: whether an epoch is running.
            repeats: whether it first completes the previous epoch.
        """
        return [self._noted[serial] for serial in self._machine.ahead(index, runs, repeats)]

    def within(self, index: int, *, earlier: bool = False) -> tuple[Call, ...]:
        """Returns the functions that it applies in the running epoch, or in the previous one."""
        within = self._machine.within(index, earlier)
        return tuple((place, serial, self._noted[serial].function) for place, serial in within)
