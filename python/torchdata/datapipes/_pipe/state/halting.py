"""How far threads had read ahead in a pass that is replayed: each goes just as far, and stops there for a moment.

Role: used if a whole graph draws again what it drew from the global generators. Functions before a pipe that reads in a
thread draw numbers before the reader receives the items. So the thread is to draw as much with the generators of the
replay as
it had when the state was saved, and no item less or more, before the generators are put where they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._native import ReadAheadQueue
from torchdata._threads import Flag

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.state.layout import Entry

__all__ = ["Ahead", "Halt", "Halts", "await_beginning", "beginning_unread"]


#: Seconds after which a halted thread checks whether a reader waits for it.
_LOOK = 0.02

#: Not set while passes begin whose threads must not read yet.
_may_begin = Flag()
_may_begin.set()


@contextmanager
def beginning_unread() -> Iterator[None]:
    """Context in which threads of passes that begin wait with their first item, unless a reader waits for that."""
    global _may_begin
    flag = Flag()
    try:
        _may_begin = flag
        yield
    finally:
        flag.set()


def await_beginning(queue: ReadAheadQueue) -> None:
    """Waits, in the thread of a pass, until it may begin."""
    flag = _may_begin
    while not flag.wait(_LOOK) and not queue.is_awaited and not queue.closed:
        pass


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
    """Where a thread stops until it may continue.

    Args:
        number: the number of the pass, as counted by its pipe.
        ahead: how far it goes.
    """

    def __init__(self, number: int, ahead: Ahead) -> None:
        self.number = number
        #: If its source had ended it is to find that, too.
        self._items, self._taken = ahead.items + ahead.is_over, 0
        self._reached, self._may_go_on = Flag(), Flag()
        #: Once that pass has begun, its queue, and how many items that is to hold.
        self._queue: ReadAheadQueue | None = None
        self._capacity = 0

    @property
    def is_over(self) -> bool:
        """Whether the thread may continue."""
        return self._may_go_on.is_set()

    def begin(self, queue: ReadAheadQueue) -> None:
        """Notes that the pass begins. Until the thread may continue there is room for all: the queue was longer,
        maybe."""
        self._queue, self._capacity = queue, queue.capacity
        queue.capacity = max(queue.capacity, len(queue) + self._items)

    def stand(self) -> None:
        """Stops, in the thread, if this many items are enough.

        If the pipeline does not repeat itself more of them may be wanted: then the thread continues at once.
        """
        if self._taken >= self._items:
            self._reached.set()
            while not self._may_go_on.wait(_LOOK) and self._queue is not None and not self._queue.is_awaited:
                pass
            self._may_go_on.set()

    def count(self) -> None:
        """Notes, in the thread, that an item was taken, and is in the queue."""
        self._taken += 1
        if self._taken >= self._items:
            self._reached.set()

    def end(self) -> None:
        """Records, in the thread, that it takes no more items."""
        self._reached.set()

    def wait(self) -> None:
        """Waits until the thread has come so far, if it has begun."""
        if self._queue is not None:
            self._reached.wait()

    def release(self) -> None:
        """Lets the thread continue."""
        if self._queue is not None:
            self._queue.capacity = self._capacity
        self._may_go_on.set()


class Halts:
    """Where all threads of a graph stop that is replayed.

    Args:
        entries: each pipe with the entry with which it begins.
    """

    def __init__(self, entries: Iterable[tuple[Any, Entry]]) -> None:
        self._halts = [(pipe, pipe._halt_at(Ahead(*entry.ahead))) for pipe, entry in entries if entry.ahead is not None]

    def wait(self) -> None:
        """Waits until all have come so far."""
        for _, halt in self._halts:
            halt.wait()

    def release(self) -> None:
        """Lets them continue, however the replay ended."""
        for pipe, halt in self._halts:
            pipe._halt = None
            halt.release()
