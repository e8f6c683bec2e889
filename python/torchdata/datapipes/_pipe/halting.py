"""How far threads had read ahead in a pass that is replayed: each goes just as far, and stops there for a moment.

Role: used where a whole graph draws again what it drew from the global generators. Functions below a pipe that reads in
a thread draw ahead of what the reader was given. So the thread is to draw as much with the generators of the replay as
it had when the state was saved, and no item less or more, before the generators are put where they were.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Ahead", "Halt", "Halts"]


class Ahead(NamedTuple):
    """How far a thread had read.

    Args:
        passes: how many passes its pipe had begun since the replay's beginning.
        items: how many items the thread had taken in the last one.
        is_over: whether its source had ended, or failed.
    """

    passes: int
    items: int
    is_over: bool


class Halt:
    """Where a thread stops until it may go on.

    Args:
        number: the pass in which it does, by the count of its pipe.
        ahead: how far it goes.
    """

    def __init__(self, number: int, ahead: Ahead) -> None:
        self.number = number
        #: Whether that pass has begun.
        self.has_begun = False
        self._items = sys.maxsize if ahead.is_over else ahead.items
        self._reached, self._may_go_on = threading.Event(), threading.Event()

    def stand(self, taken: int) -> None:
        """Stops, in the thread, where so many items are enough."""
        if taken >= self._items:
            self._reached.set()
            self._may_go_on.wait()

    def look(self, taken: int) -> None:
        """Notes, in the thread, that so many items were taken and are in the queue."""
        if taken >= self._items:
            self._reached.set()

    def end(self) -> None:
        """Notes, in the thread, that it takes no more."""
        self._reached.set()

    def wait(self) -> None:
        """Waits until the thread has come so far, if it has begun."""
        if self.has_begun:
            self._reached.wait()

    def release(self) -> None:
        """Lets the thread go on."""
        self._may_go_on.set()


class Halts:
    """Where all threads of a graph stop that is replayed.

    Args:
        entries: each pipe with the entry with which it begins.
    """

    def __init__(self, entries: Iterable[tuple[Any, dict[str, Any]]]) -> None:
        self._halts = [(pipe, pipe._halt_at(Ahead(*entry["ahead"]))) for pipe, entry in entries if "ahead" in entry]

    def wait(self) -> None:
        """Waits until all have come so far."""
        for _, halt in self._halts:
            halt.wait()

    def release(self) -> None:
        """Lets them go on, however the replay ended."""
        for pipe, halt in self._halts:
            pipe._halt = None
            halt.release()
