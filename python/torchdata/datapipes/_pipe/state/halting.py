"""Pauses read-ahead threads during a replay, in which a resumed run reads the items of the saved iteration again.

In a replay, user functions must draw the same numbers from the global random generators as in the original iteration.
If a pipe reads ahead in a thread, the functions of earlier pipes had drawn numbers for the buffered items, too, when
the state was saved. During a replay, a read-ahead thread must therefore pause after the number of items that it had
read when the state was saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._native import ReadAheadQueue
from torchdata._threads import Latch

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.state.layout import PipeEntry

#: A paused thread checks at this interval, in seconds, whether the consumer is waiting for an item.
_POLL_INTERVAL = 0.02

#: Threads of new iterations wait for this latch before they read. The latch is set except within `beginning_unread`.
_may_begin = Latch()
_may_begin.set()


@contextmanager
def beginning_unread() -> Iterator[None]:
    """Within this context, threads of new iterations read their first item only when the consumer requests an item."""
    global _may_begin
    flag = Latch()
    try:
        _may_begin = flag
        yield
    finally:
        flag.set()


def await_beginning(queue: ReadAheadQueue) -> None:
    flag = _may_begin
    while not flag.wait(_POLL_INTERVAL) and not queue.is_awaited and not queue.closed:
        pass


class Lead(NamedTuple):
    """Describes how far a thread had read ahead when a state was saved.

    Args:
        passes: how many iterations of the pipe had begun in the graph's current iteration.
        items: the number of items that the thread had read in the pipe's latest iteration.
        is_over: whether the source had ended or failed.
    """

    passes: int
    items: int
    is_over: bool


class Halt:
    """Pauses a thread that reads ahead in a replay.

    Args:
        number: the number of the iteration of the pipe during which the thread pauses.
        ahead: how far the thread must read before it pauses.
    """

    def __init__(self, number: int, ahead: Lead) -> None:
        self.number = number
        # If the source had ended when the state was saved, the thread must request one item more than it had read,
        # because only such a request detects the end.
        self._items, self._taken = ahead.items + ahead.is_over, 0
        self._reached, self._may_continue = Latch(), Latch()
        self._queue: ReadAheadQueue | None = None
        self._capacity = 0

    @property
    def is_over(self) -> bool:
        return self._may_continue.is_set()

    def begin(self, queue: ReadAheadQueue) -> None:
        """Enlarges the queue, which must hold all items that the thread has to read; `release` restores the
        capacity."""
        self._queue, self._capacity = queue, queue.capacity
        queue.capacity = max(queue.capacity, len(queue) + self._items)

    def pause(self) -> None:
        """Pauses the calling thread until `release` is called, if the thread has read the number of items in `ahead`.

        A paused thread also continues if the consumer waits for an item, because the consumer waits only if the replay
        yields other items than the original iteration.
        """
        if self._taken >= self._items:
            self._reached.set()
            while (
                not self._may_continue.wait(_POLL_INTERVAL) and self._queue is not None and not self._queue.is_awaited
            ):
                pass
            self._may_continue.set()

    def count(self) -> None:
        self._taken += 1
        if self._taken >= self._items:
            self._reached.set()

    def end(self) -> None:
        self._reached.set()

    def wait(self) -> None:
        if self._queue is not None:
            self._reached.wait()

    def release(self) -> None:
        if self._queue is not None:
            self._queue.capacity = self._capacity
        self._may_continue.set()


class Halts:
    def __init__(self, entries: Iterable[tuple[Any, PipeEntry]]) -> None:
        self._halts = [(pipe, pipe._halt_at(Lead(*one.ahead))) for pipe, one in entries if one.ahead is not None]

    def wait(self) -> None:
        for _, halt in self._halts:
            halt.wait()

    def release(self) -> None:
        """Lets the threads continue after a replay, even if the replay has failed."""
        for pipe, halt in self._halts:
            pipe._halt = None
            halt.release()
