"""Pipes that read their source in a separate thread: Prefetcher, and the base class of such pipes.

The thread that iterates the pipe begins the iteration of the source, and starts a daemon thread. A daemon thread puts
the source's items into a bounded native queue, until the source ends or fails, or the pipe's iterator is closed. The
daemon thread does not refer to the pipe's iterator, so the thread ends when the iterator is dropped.

A forked child lacks the daemon thread, and does not use the inherited queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from operator import call
from types import NoneType
from typing import Any, ClassVar

from torchdata._native import ReadAheadHold
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._threads import Latch, are_there_any
from torchdata.datapipes._pipe.checks import POSITIVE, check_int, check_source, length_of, on_failure
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.halting import Halt, Lead, await_beginning
from torchdata.datapipes._pipe.state.layout import HeldItems
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.datapipe import IterDataPipe, T_co

__all__ = ["Prefetcher", "end_threads", "stop_reading"]


class _PrefetchData(ReadAhead):
    def __init__(self, name: str, source: Iterator[Any], buffer_size: int) -> None:
        super().__init__(name, min(buffer_size, sys.maxsize), "torchdata-prefetch")
        self.source: Iterator[Any] | None = source
        #: The object that keeps the read-ahead thread paused between `pause()` and `resume()`.
        self.pause: ReadAheadHold | None = None
        #: Whether the pipe was shut down; no further iteration may follow.
        self.abandoned = False
        self._left = False
        self.is_over = False
        #: The number of items that the source had yielded when the pipe's iteration began. If the source does not count
        #: its items, `before` is None, and `taken` is used instead.
        self.before: int | None = None
        self.taken = 0
        #: The object that pauses the thread if the iteration is a replay; otherwise None.
        self.halt: Halt | None = None
        #: Set when the thread no longer uses the source's iterator.
        self.released = Latch()

    def begin(self, worker: Callable[[_PrefetchData], None]) -> None:
        self.start(self._serve, worker)

    def _serve(self, worker: Callable[[_PrefetchData], None]) -> None:
        try:
            worker(self)
        finally:
            self.released.set()
            if self.halt is not None:
                self.halt.end()

    def close(self) -> None:
        self.leave(for_good=True)

    def await_release(self, seconds: float) -> bool:
        """After the queue was closed, waits up to `seconds` until the thread no longer uses the source's iterator.
        Returns whether the wait succeeded."""
        return not self.queue.closed or not self.others() or self.released.wait(seconds)

    def buffered(self) -> tuple[list[Any], BaseException | None]:
        items: list[Any] = []
        error = None
        for _, kind, content, _ in self.queue.slots():
            if kind == "error":
                error = content
            else:
                items.append(content)
        return items, error

    def leave(self, for_good: bool) -> None:
        if not self._left:
            self._left, self.abandoned = True, for_good
        self.queue.close()


_END = object()


class _Reader(map):  # type: ignore[type-arg]
    """The iterator that the consumer reads. Dropping the iterator ends the thread.

    Ctrl-C cannot make the iterator lose an item, because no Python code runs between taking and returning an item.
    """

    def __new__(cls, data: _PrefetchData) -> _Reader:
        return super().__new__(cls, call, repeat(data.queue.pop))

    def __init__(self, data: _PrefetchData) -> None:
        self._data = data

    def close(self) -> None:
        self._data.queue.close()

    def __del__(self) -> None:
        if hasattr(self, "_data"):  # Ctrl-C can interrupt `__init__`
            self.close()


def _fill(data: _PrefetchData, prepare: Callable[[Any], Any] | None = None) -> None:
    """Runs in the read-ahead thread: reads the source until the source ends or the queue is closed."""
    queue, source, data.source, halt, counts = data.queue, data.source, None, data.halt, data.before is None
    assert source is not None
    if halt is None:  # if there is a `halt`, `halt.pause` pauses the thread instead
        await_beginning(queue)
    while (slot := queue.reserve()) is not None:
        if halt is not None:
            halt.pause()
            if halt.is_over:
                halt = None
        try:
            item = next(source, _END)
            if item is _END:
                data.is_over = True
                queue.finish(slot)
                return
            if counts:
                data.taken += 1
            if prepare is not None:
                item = prepare(item)
        except BaseException as error:
            data.is_over = True
            queue.finish(slot, without_own_frame(error))
            return
        queue.put(slot, item)
        del item  # the waiting thread must not keep a consumed item alive
        if halt is not None:
            halt.count()


class _PrefetchBase(IterDataPipe[T_co]):
    """The base class of pipes that read ahead in a thread. Subclasses define `_worker`."""

    _data: _PrefetchData | None = state(saved=False)
    #: The buffered items in a loaded state, and the error to raise after these items.
    _restored: tuple[list[Any], BaseException | None] = state(([], None), items=True, saved=False)
    _passes: int = state(0, saved=False, lasts=True)
    _halt: Halt | None = state(saved=False, lasts=True)  # where the thread pauses in a replay

    #: The maximum number of seconds that pausing or restarting the pipe waits for the item that the source is
    #: computing.
    patience: ClassVar[float] = 60.0

    tuning: ClassVar[frozenset[str]] = frozenset({"buffer_size"})

    def __init__(self, source_datapipe: Iterable[T_co], buffer_size: int) -> None:
        name = type(self).__name__
        check_source(name, source_datapipe, "source_datapipe")
        self.source_datapipe = source_datapipe
        self.buffer_size = check_int(name, "buffer_size", buffer_size, least=1, words=POSITIVE.format("buffer_size"))

    def _worker(self) -> Callable[[_PrefetchData], None]:
        """Returns the function that the read-ahead thread runs. The function must not refer to the pipe, because the
        thread would then keep the pipe in memory."""
        raise NotImplementedError(f"{type(self).__name__} must define _worker")

    def _prepare_restored(self, items: list[Any]) -> list[Any]:
        """Processes the buffered items of a loaded state in the same way as items from the source, for example by
        pinning them."""
        return items

    def __iter__(self) -> Iterator[T_co]:
        self._end_thread()
        data = _PrefetchData(type(self).__name__, iter(self.source_datapipe), self.buffer_size)
        items, error = self._restored
        for item in self._prepare_restored(items):
            data.queue.append(item)
        if error is not None:
            data.queue.finish(None, error)
        self._restored = ([], None)
        self._data = data
        if isinstance(self.source_datapipe, IterDataPipe):
            data.before = token_of(self.source_datapipe).yielded
        self._count_pass(data)
        data.begin(self._worker())
        return _Reader(data)

    def _count_pass(self, data: _PrefetchData) -> None:
        self._passes += 1
        if self._halt is not None and self._halt.number == self._passes:
            self._halt.begin(data.queue)
            data.halt = self._halt

    def _passes_begun(self) -> int:
        return self._passes

    def _read_ahead(self, passes: int) -> Lead | None:
        """Returns how far the paused thread has read ahead in the latest iteration, or None if this pipe has begun only
        its first `passes` iterations."""
        if (data := self._threads_at_work()) is None or self._passes == passes:
            return None
        taken = data.taken if data.before is None else token_of(self.source_datapipe).yielded - data.before
        return Lead(self._passes - passes, taken, data.is_over)

    def _halt_at(self, ahead: Lead) -> Halt:
        self._halt = Halt(self._passes + ahead.passes, ahead)
        return self._halt

    def has_ended(self) -> bool:
        return self._data is not None and self._data.is_over

    def _threads_at_work(self) -> _PrefetchData | None:
        return None if self._data is None or self._data.is_inherited else self._data

    def _end_thread(self) -> None:
        if self._data is not None and not self._data.is_inherited:
            self._stop_reading()
            self._data.join(self.patience)
        self._data = None

    def _stop_reading(self) -> None:
        """Makes the read-ahead thread stop, and waits until the thread no longer reads the source."""
        if (data := self._threads_at_work()) is None:
            return
        data.queue.close()
        if not data.queue.wait_idle(self.patience) or not data.await_release(self.patience):
            raise TimeoutError(self._busy_error("restarted"))

    def _busy_error(self, what: str) -> str:
        name = type(self).__name__
        others = [type(pipe).__name__ for pipe in Graph(self.source_datapipe) if hasattr(pipe, "set_process_group")]
        cause = (
            f"{others[0]} before it waits for other ranks, which may be paused: put {name} before {others[0]}"
            if others
            else f"find out what blocks it, or raise {name}.patience"
        )
        return (
            f"{name} cannot be {what}: its thread has waited for one item of {self.source_datapipe!r} for "
            f"{self.patience:g} s; {cause}"
        )

    def reset(self) -> None:
        self._end_thread()
        super().reset()

    def shutdown(self) -> None:
        """Ends the thread after its current item, and waits until the thread has ended. The pipe's iterator also ends.
        This method may be called repeatedly."""
        self._end_thread()

    def pause(self) -> None:
        """Stops reading ahead. When this method returns, the thread no longer reads the source.

        The consumer can read the items in the buffer during the pause. If the consumer needs more items, it waits until
        `resume()` is called.

        Raises:
            TimeoutError: the source took longer than `patience` seconds for an item.
        """
        if (data := self._threads_at_work()) is not None and data.pause is None:
            data.pause = self._held(data)

    def resume(self) -> None:
        """Ends the pause that `pause` has begun; the thread continues once all other pauses have ended, too."""
        if (data := self._threads_at_work()) is not None:
            pause, data.pause = data.pause, None
            if pause is not None:
                pause.release()

    def _held(self, data: _PrefetchData, patience: float | None = None) -> ReadAheadHold:
        """Pauses the read-ahead thread until the caller releases the returned object."""
        hold, seconds = data.queue.hold(), self.patience if patience is None else patience
        with on_failure(hold.release):
            if not hold.wait(seconds) or not data.await_release(seconds):
                raise TimeoutError(self._busy_error("paused") if patience is None else "a thread is busy")
        return hold

    @contextmanager
    def threads_paused(self, patience: float | None = None) -> Iterator[None]:
        """Returns a context within which the read-ahead thread is paused, so that the states of the source and of this
        pipe belong to the same position."""
        if (data := self._threads_at_work()) is None:
            yield
            return
        hold = self._held(data, patience)
        try:
            yield
        finally:
            hold.release()

    def state_dict(self) -> dict[str, Any]:
        items, error = self._restored
        if (data := self._threads_at_work()) is not None:
            with self.threads_paused():
                items, error = data.buffered()
        return {"items": list(items), "error": error}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        items, error = HeldItems(**state_dict)
        if not isinstance(items, list) or not isinstance(error, (BaseException, NoneType)):
            raise TypeError(f"items are of type {type(items).__name__}, and the error is {error!r}")
        self._end_thread()
        self._restored = [*items], error

    def _load_lasting_state(self, lasting: dict[str, Any]) -> None:
        self._end_thread()  # a running thread would draw from the generators whose states are loaded next
        super()._load_lasting_state(lasting)

    def __len__(self) -> int:
        return length_of(self, self.source_datapipe)


def end_threads(datapipe: Any) -> None:
    """Ends all read-ahead threads of a graph except the thread of `fullsync`. Each thread ends after its current
    item."""
    for pipe in pipes_with_threads(datapipe):
        if not hasattr(pipe, "set_process_group"):
            pipe.shutdown()


def stop_reading(datapipe: Any) -> None:
    """Stops the read-ahead threads of an abandoned iteration, before the seeds of the next iteration are set.

    A thread that continued to read could begin another repetition of a `cycle`, which would use the new seeds.
    """
    for pipe in pipes_with_threads(datapipe) if are_there_any() else ():
        pipe._stop_reading()


def pipes_with_threads(datapipe: Any) -> list[_PrefetchBase[Any]]:
    return [pipe for pipe in reversed(graph_of(datapipe).pipes) if isinstance(pipe, _PrefetchBase)]


class Prefetcher(_PrefetchBase[T_co]):
    """Reads its source ahead in a thread, so that waiting for files or a network overlaps with the work of later pipes.

    Args:
        source_datapipe: the pipe to read, which runs in the thread, together with all pipes before it.
        buffer_size: maximum number of buffered items, 10 by default.

    Raises:
        TypeError: `buffer_size` is not an integer.
        ValueError: `buffer_size` is not positive.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).map(str).prefetch(2))
        ['0', '1', '2']
    """

    def __init__(self, source_datapipe: Iterable[T_co], buffer_size: int = 10) -> None:
        super().__init__(source_datapipe, buffer_size)

    def _worker(self) -> Callable[[_PrefetchData], None]:
        return type(self).thread_worker

    @staticmethod
    def thread_worker(prefetch_data: _PrefetchData) -> None:
        """Runs in the thread: reads the source into `prefetch_data`, until the source ends or fails, or the iteration
        is abandoned."""
        _fill(prefetch_data)
