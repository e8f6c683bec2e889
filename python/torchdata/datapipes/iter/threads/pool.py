"""The pool of threads that calls the function of a `threadpool_map` pipe, and hands results out in order.

One thread, the consumer's, submits items and takes results; up to `max_workers` threads call the function. A pool
serves one iteration; its queue owns the items that were submitted and the results that were not taken. Its threads know
their work and nothing else, so dropping the iterator closes the pool; a thread ends after the call that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchdata._native import ReadAheadHold
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._threads import Work
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.streams import PLAIN_TYPES, with_detached_streams

__all__ = ["Pool"]


class _Work(ReadAhead):
    """The orders of a pool's threads. The threads keep it alive, so it refers to nothing else of the pool."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        max_workers: int,
        *,
        thread_name_prefix: str,
        initializer: Callable[..., Any] | None,
        initargs: Iterable[Any],
    ) -> None:
        super().__init__("ThreadPoolMapper", 1, thread_name_prefix, several=True)
        self.function = function
        self.max_workers = max_workers
        self.initializer = initializer
        self.initargs = initargs

    def start_thread(self) -> None:
        """Starts a thread, unless there are as many as there may be."""
        if len(self.threads) < self.max_workers and not self.start(self.serve):
            self.max_workers = len(self.threads)

    def serve(self) -> None:
        """Calls the function with submitted items until the pool is closed. Each thread runs it."""
        broken: BaseException | None = None
        if self.initializer is not None:
            try:
                self.initializer(*self.initargs)
            except BaseException as error:
                broken = without_own_frame(error)
        while (claimed := self.queue.claim()) is not None:
            self._call(*claimed, broken)
            del claimed  # or the thread would keep an item alive that the consumer is done with

    def _call(self, slot: int, item: Any, broken: BaseException | None) -> None:
        try:
            if broken is not None:
                raise _broken(broken)
            result = self.function(item)
            if self.queue.closed:
                result = with_detached_streams(result)
        except BaseException as error:
            # An item that cannot change is kept, as an error need not pickle: a state holds the item instead.
            kept = (item,) if type(item) in PLAIN_TYPES else None
            self.queue.fail(slot, not_the_end("ThreadPoolMapper", without_own_frame(error)), None, kept)
        else:
            self.queue.put(slot, result)


class Pool:
    """Threads that call a function, and the items and results in the order in which they were submitted.

    Args:
        function: what is called with each item.
        max_workers: most threads; each item submitted starts one until there are this many.
        **options: `thread_name_prefix`, `initializer` and `initargs`, as of `concurrent.futures.ThreadPoolExecutor`.
    """

    def __init__(self, function: Callable[[Any], Any], max_workers: int, **options: Any) -> None:
        self._work = _Work(function, max_workers, **options)
        self._queue = self._work.queue
        #: The next result, or error of a call at its place. Raises StopIteration if the pool was closed.
        self.take = self._queue.pop
        #: The error of the source: it comes after the results.
        self.source_error: Exception | None = None
        #: The hold that the consumer, before it continues, is to end: that of a state with items that must not change.
        self.rest: ReadAheadHold | None = None

    def __len__(self) -> int:
        """How many items were submitted whose results were not taken."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        """Whether no further call is begun."""
        return self._queue.closed

    @property
    def work(self) -> Work:
        """The tasks that its threads work on."""
        return self._work

    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose threads run in the parent."""
        return self._work.is_inherited

    def submit(self, item: Any) -> None:
        """Adds an item for the threads."""
        self._queue.submit(item, type(item) in PLAIN_TYPES)
        self._work.start_thread()  # can be interrupted, and then the item is there

    def wait(self) -> None:
        """Waits for the first result, or until the pool is closed."""
        if not self._work.threads and not self.closed:
            self._work.start_thread()  # an interruption came before the first one
        self._queue.wait()

    def close(self) -> None:
        """Lets each thread end after the call that it is in. Items that no thread has stay for a state to be saved.

        May be called more than once, from any thread, and by the garbage collector.
        """
        self._work.close()
        if self.is_inherited():
            return
        error = self.source_error
        if error is not None:
            error.with_traceback(None)  # its frames lead to those of whoever read the pipe, and all that they hold
        for slot, kind, content, _ in self._queue.slots():
            if kind in ("waiting", "result"):  # no file stays open for what nobody takes
                detached = with_detached_streams(content)
                if detached is not content:
                    self._queue.exchange(slot, detached)

    def go_on(self) -> None:
        """Ends the rest that a state has begun: for the consumer."""
        rest, self.rest = self.rest, None
        if rest is not None:
            rest.release()

    def entries(self, patience: float) -> list[tuple[str, Any]]:
        """All that was submitted and not taken, as a state holds it; call it while nobody takes or submits.

        If the function may change items, no call is begun before the consumer continues, so that the items of the
        state stay as they are until then, and calls under way are waited for.

        Raises:
            TimeoutError: a call took longer than `patience` seconds.
        """
        hold, rests = self._queue.hold(), False
        try:
            if not hold.wait(patience):
                raise TimeoutError(
                    f"the state of ThreadPoolMapper cannot be saved: {self._work.function!r} has worked on one "
                    f"item for {patience:g} s; look for what blocks there, or raise ThreadPoolMapper.patience"
                )
            slots = self._queue.slots()
            rests = any(kind == "waiting" and type(content) not in PLAIN_TYPES for _, kind, content, _ in slots)
        finally:
            if rests and self.rest is None:
                self.rest = hold
            else:
                hold.release()
        return [_entry(kind, content, kept) for _, kind, content, kept in slots]

    def restore(self, entries: Iterable[tuple[str, Any]]) -> None:
        """Submits what a state holds."""
        for kind, value in entries:
            if kind == "item":
                self.submit(value)
            elif kind == "result":
                self._queue.append(value)
            else:
                self._queue.append_error(value)


def _entry(kind: str, content: Any, kept: tuple[Any] | None) -> tuple[str, Any]:
    """One slot of the queue as a state holds it. An error need not pickle, so the call is rather made again."""
    if kind == "error" and kept is not None:
        return "item", kept[0]
    return kind if kind in ("result", "error") else "item", content


def _broken(cause: BaseException) -> Exception:
    from concurrent.futures.thread import BrokenThreadPool

    error = BrokenThreadPool(f"ThreadPoolMapper: the initializer of a thread failed: {cause!r}")
    error.__cause__ = cause
    return error
