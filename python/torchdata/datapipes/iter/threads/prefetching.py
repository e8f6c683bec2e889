"""Pipes that read their source in a thread of their own: Prefetcher, and the base of its kind.

The source is begun in the thread that iterates the pipe; from then on one daemon thread takes its items and puts
them into a bounded native queue, until the source ends, fails, or nobody wants items any more. The pipe owns the
queue and the thread. The thread knows neither the pipe nor its iterator, so that dropping these ends it.

A forked child has no such thread: it leaves the inherited queue alone and may iterate the pipe anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar

from torchdata._native import ReadAheadHold
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._threads import Flag, Work, are_there_any
from torchdata.datapipes._pipe.checks import POSITIVE, check_int, check_source, length_of
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.registry import functional_datapipe
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.halting import Ahead, Halt, await_beginning
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.threads.depth import LEAST_DEPTH, Depth

__all__ = ["Prefetcher", "end_threads", "stop_reading"]

T_co = TypeVar("T_co", covariant=True)


class _PrefetchData(ReadAhead):
    """The data that the thread of one iteration shares with its consumer."""

    def __init__(self, name: str, source: Iterator[Any], buffer_size: int | Literal["auto"]) -> None:
        capacity = LEAST_DEPTH if buffer_size == "auto" else min(buffer_size, sys.maxsize)
        super().__init__(name, capacity, "torchdata-prefetch")
        self.source: Iterator[Any] | None = source
        #: The rule for how many items are held ready, if that is to be chosen.
        self.depth = Depth() if buffer_size == "auto" else None
        #: The hold of a `pause()` that was not followed by `resume()`.
        self.pause: ReadAheadHold | None = None
        #: Whether the iteration was left because nobody will continue, rather than for the next one.
        self.abandoned = False
        self._left = False
        #: Whether there are no more items.
        self.is_over = False
        #: How many items the source counted as yielded when this began; None if the thread counts what it takes.
        self.before: int | None = None
        self.taken = 0
        #: Where the thread stops for a moment, if it does.
        self.halt: Halt | None = None
        #: Set when the thread has let go of the source's iterator, which may have been in the midst of an item.
        self.released = Flag()

    def begin(self, worker: Callable[[_PrefetchData], None]) -> None:
        """Starts the thread."""
        self.start(self._serve, worker)

    def _serve(self, worker: Callable[[_PrefetchData], None]) -> None:
        try:
            worker(self)
        finally:
            self.released.set()
            if self.halt is not None:
                self.halt.end()

    def close(self) -> None:
        """Lets the thread end after the item that it is at, for good."""
        self.leave(for_good=True)

    def await_release(self, seconds: float) -> bool:
        """Waits until a thread whose queue is closed has let go of the source; whether it has, in this many seconds."""
        return not self.queue.closed or not self.others() or self.released.wait(seconds)

    def buffered(self) -> tuple[list[Any], BaseException | None]:
        """The items that are held ready, and the error after them."""
        items: list[Any] = []
        error = None
        for _, kind, content, _ in self.queue.slots():
            if kind == "error":
                error = content
            else:
                items.append(content)
        return items, error

    def leave(self, for_good: bool) -> None:
        """Lets the thread end after the item that it is at; only the first call tells why.

        Args:
            for_good: whether the iteration cannot continue, but only start again.
        """
        if not self._left:
            self._left, self.abandoned = True, for_good
        self.queue.close()


#: Stands for the end of a source.
_END = object()


class _Reader(Iterator[Any]):
    """The consumer's end. Dropping it ends the thread."""

    __slots__ = ("_data", "_pop")

    def __init__(self, data: _PrefetchData) -> None:
        self._data = data
        self._pop = data.queue.pop

    def __next__(self) -> Any:
        return self._pop()

    def close(self) -> None:
        """Lets the thread end after the item that it is at."""
        self._data.queue.close()

    def __del__(self) -> None:
        self._data.queue.close()


def _fill(data: _PrefetchData, prepare: Callable[[Any], Any] | None = None) -> None:
    """Moves items from the source into the queue until either is done. Runs in the prefetching thread."""
    queue, source, data.source, halt, counts = data.queue, data.source, None, data.halt, data.before is None
    assert source is not None
    if halt is None:  # else it is waited for
        await_beginning(queue)
    while (slot := queue.reserve()) is not None:
        if halt is not None:
            halt.stand()
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
        if data.depth is not None and halt is None:
            data.depth.look(queue, item)
        queue.put(slot, item)
        del item  # or the thread would keep an item alive that the consumer is done with
        if halt is not None:
            halt.count()


class _PrefetchBase(IterDataPipe[T_co]):
    """A pipe that reads its source in a thread; subclasses give `thread_worker` what it needs besides.

    Args:
        source_datapipe: the pipe to read.
        buffer_size: most items that are held ready.
    """

    _data: _PrefetchData | None = state(saved=False)
    #: The items that were held ready when the loaded state was saved, and the error that comes after them.
    _restored: tuple[list[Any], BaseException | None] = state(([], None), items=True, saved=False)
    #: How many passes were begun, and where the thread of one stops for a moment, if it does.
    _passes: int = state(0, saved=False, lasts=True)
    _halt: Halt | None = state(saved=False, lasts=True)

    #: Seconds that pausing and restarting wait for the source to come to the end of the item that it is at.
    patience: ClassVar[float] = 60.0

    tuning: ClassVar[frozenset[str]] = frozenset({"buffer_size"})

    def __init__(self, source_datapipe: Iterable[T_co], buffer_size: int | Literal["auto"]) -> None:
        name = type(self).__name__
        check_source(name, source_datapipe, "source_datapipe")
        self.source_datapipe = source_datapipe
        self.buffer_size: int | Literal["auto"] = (
            "auto"
            if buffer_size == "auto"
            else check_int(name, "buffer_size", buffer_size, least=1, words=POSITIVE.format("buffer_size"))
        )

    def _worker(self) -> Callable[[_PrefetchData], None]:
        """The function that the thread runs. It must not refer to the pipe."""
        raise NotImplementedError(f"{type(self).__name__} must define _worker")

    def _prepare_restored(self, items: list[Any]) -> list[Any]:
        """Makes items of a loaded state again what they were when they were held ready."""
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

    def _read_ahead(self, passes: int) -> Ahead | None:
        """How far the thread has read, counted from when this many passes were begun; None if there is none.

        The thread stands still meanwhile.
        """
        data = self._data
        if data is None or data.is_inherited or self._passes == passes:
            return None
        taken = data.taken if data.before is None else token_of(self.source_datapipe).yielded - data.before
        return Ahead(self._passes - passes, taken, data.is_over)

    def _halt_at(self, ahead: Ahead) -> Halt:
        """Makes the thread of a pass to come stop for a moment."""
        self._halt = Halt(self._passes + ahead.passes, ahead)
        return self._halt

    def _threads_at_work(self) -> Work | None:
        """The work of this pipe's thread in this process; None if it has none."""
        return None if self._data is None or self._data.is_inherited else self._data

    def _end_thread(self) -> None:
        data, self._data = self._data, None
        if data is None or data.is_inherited:
            return
        data.queue.close()
        if not data.queue.wait_still(self.patience):
            self._data = data
            raise TimeoutError(self._still_busy("restarted"))
        data.join(self.patience)

    def _stop_reading(self) -> None:
        """Has the thread read no more. When it returns, the thread does not touch the source any more."""
        data = self._data
        if data is None or data.is_inherited:
            return
        data.queue.close()
        if not data.queue.wait_still(self.patience) or not data.await_release(self.patience):
            raise TimeoutError(self._still_busy("restarted"))

    def _still_busy(self, what: str) -> str:
        name = type(self).__name__
        others = [type(pipe).__name__ for pipe in Graph(self.source_datapipe) if hasattr(pipe, "set_process_group")]
        cause = (
            f"{others[0]} below it waits for other ranks, which may be paused: put {name} before {others[0]}"
            if others
            else f"look for what blocks there, or raise {name}.patience"
        )
        return (
            f"{name} cannot be {what}: its thread has waited for one item of {self.source_datapipe!r} for "
            f"{self.patience:g} s; {cause}"
        )

    def reset(self) -> None:
        """Ends the thread of the last iteration and drops what it had read ahead."""
        self._end_thread()
        super().reset()

    def shutdown(self) -> None:
        """Ends the thread, waiting for the item that it is at. The iterator ends, too. May be called twice."""
        self._end_thread()

    def pause(self) -> None:
        """Stops reading ahead. When it returns, the thread does not touch the source any more.

        Items that are held ready can still be read; a reader that wants more waits for `resume()`.

        Raises:
            TimeoutError: the source took longer than `patience` seconds for an item.
        """
        data = self._data
        if data is None or data.is_inherited:
            return
        hold = self._held(data)
        if data.pause is None:
            data.pause = hold
        else:
            hold.release()

    def resume(self) -> None:
        """Continues to read ahead, unless another caller has paused the pipe, too."""
        if self._data is not None and not self._data.is_inherited:
            pause, self._data.pause = self._data.pause, None
            if pause is not None:
                pause.release()

    def _held(self, data: _PrefetchData) -> ReadAheadHold:
        """A hold on the thread, which stands still when this returns.

        Raises:
            TimeoutError: the source took longer than `patience` seconds for an item.
        """
        hold = data.queue.hold()
        try:
            if not hold.wait(self.patience) or not data.await_release(self.patience):
                raise TimeoutError(self._still_busy("paused"))
        except BaseException:
            hold.release()
            raise
        return hold

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within this context the source stands still, so that its state and ours belong together."""
        data = self._data
        if data is None or data.is_inherited:
            yield
            return
        hold = self._held(data)
        try:
            yield
        finally:
            hold.release()

    def state_dict(self) -> dict[str, Any]:
        """The items that are held ready, and the error that comes after them, if there is one."""
        items, error = self._restored
        if self._data is not None and not self._data.is_inherited:
            with self.standing_still():
                items, error = self._data.buffered()
        return {"items": list(items), "error": error}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration begin with the saved items."""
        self._end_thread()
        self._restored = (list(state_dict["items"]), state_dict["error"])

    def _load_lasting_state(self, lasting: dict[str, Any]) -> None:
        self._end_thread()  # it would draw random numbers that are loaded after this
        super()._load_lasting_state(lasting)

    def __len__(self) -> int:
        return length_of(self, self.source_datapipe)


def end_threads(datapipe: Any) -> None:
    """Ends the threads in which pipes of a graph read ahead, but for `fullsync`, each after the item that it is at.

    Raises:
        TimeoutError: one took longer than its pipe's `patience`.
    """
    for pipe in pipes_with_threads(datapipe):
        if not hasattr(pipe, "set_process_group"):
            pipe.shutdown()


def stop_reading(datapipe: Any) -> None:
    """Has threads that read ahead for a pass that was left read no more, before the seeds of the next one are set.

    One that came to a later pass of `cycle` meanwhile would begin that with them.

    Raises:
        TimeoutError: one does not come to the end of its item within its pipe's `patience`.
    """
    for pipe in pipes_with_threads(datapipe) if are_there_any() else ():
        pipe._stop_reading()


def pipes_with_threads(datapipe: Any) -> list[_PrefetchBase[Any]]:
    """The pipes of a graph that read ahead in a thread of their own, readers before their sources."""
    return [pipe for pipe in reversed(graph_of(datapipe).pipes) if isinstance(pipe, _PrefetchBase)]


@functional_datapipe("prefetch")
class Prefetcher(_PrefetchBase[T_co]):
    """Reads its source ahead in a thread, so that waiting for files or a network overlaps with the work of later pipes.

    Args:
        source_datapipe: the pipe to read. It runs in the thread, with all pipes that it reads from.
        buffer_size: maximum number of buffered items, 10 by default. "auto" starts with 2, and increases the number if
            the time per item varies, as far as memory permits.

    Raises:
        TypeError: `buffer_size` is not an integer.
        ValueError: `buffer_size` is not positive.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).map(str).prefetch(2))
        ['0', '1', '2']
    """

    def __init__(self, source_datapipe: Iterable[T_co], buffer_size: int | Literal["auto"] = 10) -> None:
        super().__init__(source_datapipe, buffer_size)

    def _worker(self) -> Callable[[_PrefetchData], None]:
        return type(self).thread_worker

    @staticmethod
    def thread_worker(prefetch_data: _PrefetchData) -> None:
        """The function of the thread: reads the source until it ends, fails, or the iteration is given up."""
        _fill(prefetch_data)
