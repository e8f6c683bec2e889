"""Functions of main's that were applied to the graphs of all children, and how far each child had come then.

Role: main's side. One that takes the place of a child makes some items again, and a function that changes what a pipe
does is to meet it between the same two items as it met the child. So a child says with its acknowledgement how many
items it had made, in a word of shared memory that outlives it. It acknowledges before it goes on: of a worker that has
not, main has no item that was made behind the function, and behind what was received is as good a place as any. The
items that the dispatching process had made before it could acknowledge are not known.

No function is left out, nor two equal ones taken for one: nobody knows what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchdata._engine.snapshots import BETWEEN, UNTOLD, Call
from torchdata._engine.workers.members import Members

__all__ = ["Calls", "Noted"]


@dataclass
class Noted:
    """A function, and what is known of where it was applied.

    Args:
        serial: its number, from 1.
        function: the function.
    """

    serial: int
    function: Callable[[Any], Any]
    #: By child, the number of the command that told it; none if it was not told.
    numbers: dict[int, int] = field(default_factory=dict)
    #: By child, how many items it had made.
    places: dict[int, int] = field(default_factory=dict)

    def concerns(self, index: int) -> bool:
        """Whether a child has it, or was to have it."""
        return index in self.numbers or index in self.places


class Calls:
    """Those of one loader. All is done with the lock for sending held.

    Args:
        members: the children.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._serial = 0
        #: Of epochs that nobody runs again; of the one before, as long as it may be run again; of the one that runs.
        self.before: list[Noted] = []
        self.earlier: list[Noted] = []
        self.now: list[Noted] = []

    def begin(self, again: bool) -> None:
        """An epoch begins; `again` says whether the one before may be run again."""
        for index in range(len(self._members.names)):
            self.settle(index)
        self.before += self.earlier
        self.earlier = self.now
        self.now = []
        if not again:
            self.before += self.earlier
            self.earlier = []

    def note(self, function: Callable[[Any], Any]) -> Noted:
        """Notes one that is about to be sent. All have obeyed those before it."""
        for index in range(len(self._members.names)):
            self.settle(index)
        self._serial += 1
        noted = Noted(self._serial, function)
        self.now.append(noted)
        return noted

    def settle(self, index: int) -> None:
        """Notes where a child had come with what it has obeyed: one call at the most since this was asked last."""
        for position, noted in enumerate(self.now):
            number = noted.numbers.get(index)
            place = None
            if number is not None and index not in noted.places:
                place = self._members.control(index).obeyed_at(number)
            if place is None:
                continue
            noted.places[index] = place
            # One that had taken a place has applied at once what came later in the run of the one before it.
            for earlier in self.now[:position]:
                earlier.places[index] = min(place, earlier.places.get(index, place))

    def settle_behind(self, index: int, received: int) -> None:
        """Notes of a worker that has ended, and of which so many items were received, if others apply the rest."""
        self.settle(index)
        for noted in self.now:
            if noted.concerns(index):
                noted.places.setdefault(index, received)

    def is_placed(self, index: int) -> bool:
        """Whether it is known where a child had come with each function of an epoch that may be run again."""
        self.settle(index)
        return all(
            noted.places.get(index, UNTOLD) != UNTOLD for noted in [*self.earlier, *self.now] if noted.concerns(index)
        )

    @staticmethod
    def of(index: int, noted: Sequence[Noted]) -> tuple[Call, ...]:
        """The calls for a child that makes items again."""
        return tuple((one.places.get(index, BETWEEN), one.serial, one.function) for one in noted if one.concerns(index))
