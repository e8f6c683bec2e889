"""Repeats the read-ahead of threads in a replayed pass. Each thread reads as many items as in the original pass, and
then pauses.

Role: this module is needed if the replay of a whole graph draws numbers from the global random generators. If a pipe
reads ahead in a thread, the functions of earlier pipes draw random numbers for items that the reader has not received
yet. For this reason, each thread must read exactly as many items in a replay as it had read when the state was saved.
After the replay, the random generators are set to their saved states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._native import ReadAheadQueue
from torchdata._threads import Latch

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.state.layout import PipeEntry

__all__ = ["Halt", "Halts", "Lead", "await_beginning", "beginning_unread"]


#: A paused thread checks once in this many seconds whether its reader waits for an item.
_LOOK = 0.02

#: The threads of new passes wait for this flag, which is set except within `beginning_unread`.
_may_begin = Latch()
_may_begin.set()


@contextmanager
def beginning_unread() -> Iterator[None]:
    """Within this context, the threads of new passes do not read their first item until a reader requests it."""
    global _may_begin
    flag = Latch()
    try:
        _may_begin = flag
        yield
    finally:
        flag.set()


def await_beginning(queue: ReadAheadQueue) -> None:
    """Makes the thread of a pass wait until it may read its first item."""
    flag = _may_begin
    while not flag.wait(_LOOK) and not queue.is_awaited and not queue.closed:
        pass


class Lead(NamedTuple):
    """The position that a thread had reached by reading ahead when a state was saved.

    Args:
        passes: the number of passes that the pipe had begun since the position where a replay starts.
        items: the number of items that the thread had read in the most recent pass.
        is_over: whether the source had ended or failed.
    """

    passes: int
    items: int
    is_over: bool


class Halt:
    """A point where a thread pauses until it may continue.

    Args:
        number: the number of the pass, as counted by the pipe.
        ahead: the position at which the thread pauses.
    """

    def __init__(self, number: int, ahead: Lead) -> None:
        self.number = number
        # If the thread had reached the end of the source, the replay needs one more request, which detects the end.
        self._items, self._taken = ahead.items + ahead.is_over, 0
        self._reached, self._may_continue = Latch(), Latch()
        #: The queue of the pass, once the pass has begun. `_capacity` is the original capacity of the queue.
        self._queue: ReadAheadQueue | None = None
        self._capacity = 0

    @property
    def is_over(self) -> bool:
        """Returns whether the thread may continue."""
        return self._may_continue.is_set()

    def begin(self, queue: ReadAheadQueue) -> None:
        """Records that the pass begins. Until the thread may continue, the queue has room for all items that the thread
        must read, because the queue may have been larger when the state was saved.
        """
        self._queue, self._capacity = queue, queue.capacity
        queue.capacity = max(queue.capacity, len(queue) + self._items)

    def stand(self) -> None:
        """Pauses the calling thread if it has read the items up to the position `ahead`.

        If a replay yields different items, the reader may need more items, and the thread continues immediately.
        """
        if self._taken >= self._items:
            self._reached.set()
            while not self._may_continue.wait(_LOOK) and self._queue is not None and not self._queue.is_awaited:
                pass
            self._may_continue.set()

    def count(self) -> None:
        self._taken += 1
        if self._taken >= self._items:
            self._reached.set()

    def end(self) -> None:
        """Records that the thread has ended, so that `wait` does not wait for further items."""
        self._reached.set()

    def wait(self) -> None:
        """Waits until the thread has read enough items. Returns immediately if the pass has not begun."""
        if self._queue is not None:
            self._reached.wait()

    def release(self) -> None:
        if self._queue is not None:
            self._queue.capacity = self._capacity
        self._may_continue.set()


class Halts:
    """The points at which the threads of a replayed graph pause."""

    def __init__(self, entries: Iterable[tuple[Any, PipeEntry]]) -> None:
        self._halts = [(pipe, pipe._halt_at(Lead(*one.ahead))) for pipe, one in entries if one.ahead is not None]

    def wait(self) -> None:
        for _, halt in self._halts:
            halt.wait()

    def release(self) -> None:
        """Lets all paused threads continue, after a successful or a failed replay."""
        for pipe, halt in self._halts:
            pipe._halt = None
            halt.release()
