"""The thread pool that calls the function of a `threadpool_map` pipe, and returns results in order.

Each iteration has its own pool. The pool's queue contains the submitted items and the pending results. The threads do
not refer to the pool object, so that dropping the iterator frees and closes the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchdata._native import ReadAheadHold
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.streams import PLAIN_TYPES, with_detached_streams


class _PoolWork(ReadAhead):
    """The work of a pool's threads. The threads keep this object alive, so this object must not refer to the pool."""

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
        if len(self.threads) < self.max_workers and not self.start(self.serve):
            self.max_workers = len(self.threads)

    def serve(self) -> None:
        broken: BaseException | None = None
        if self.initializer is not None:
            try:
                self.initializer(*self.initargs)
            except BaseException as error:
                broken = without_own_frame(error)
        while (claimed := self.queue.claim()) is not None:
            self._call(*claimed, broken)
            del claimed  # while waiting, the thread must not keep a consumed item alive

    def _call(self, slot: int, item: Any, broken: BaseException | None) -> None:
        try:
            if broken is not None:
                raise _broken(broken)
            result = self.function(item)
            if self.queue.closed:
                result = with_detached_streams(result)
        except BaseException as error:
            # Errors may not be picklable. If the item is immutable, a state contains the item instead of the call's
            # error, and a resumed run calls the function again.
            kept = (item,) if type(item) in PLAIN_TYPES else None
            self.queue.fail(slot, not_the_end("function of ThreadPoolMapper", without_own_frame(error)), None, kept)
        else:
            self.queue.put(slot, result)


class Pool:
    """A pool of threads. Each submitted item starts a thread, until the pool has `max_workers` threads. `options` are
    further arguments, as for `concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, function: Callable[[Any], Any], max_workers: int, **options: Any) -> None:
        self.work = _PoolWork(function, max_workers, **options)
        self._queue = self.work.queue
        #: A function that returns the next result or raises its error; StopIteration means that the pool was closed.
        self.take = self._queue.pop
        #: The source's error, which is raised after the results of all earlier items.
        self.source_error: Exception | None = None
        #: The object that keeps the pool's threads paused from the saving of a state until the consumer requests an
        #: item.
        self.rest: ReadAheadHold | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def closed(self) -> bool:
        return self._queue.closed

    def submit(self, item: Any) -> None:
        self._queue.submit(item, type(item) in PLAIN_TYPES)
        self.work.start_thread()  # Ctrl-C may interrupt this call when the item has been added

    def wait(self) -> None:
        if not self.work.threads and not self.closed:
            self.work.start_thread()  # starts the first thread if its start was interrupted
        self._queue.wait()

    def close(self) -> None:
        """Makes each thread end after its current call.

        Items that wait for a call are kept, so that a state can contain them. This method may be called repeatedly,
        from any thread, and by the garbage collector.
        """
        self.work.close()
        if self.work.is_inherited:
            return
        error = self.source_error
        if error is not None:
            error.with_traceback(None)  # the traceback would keep the pipe's reader and other objects alive
        for slot, kind, content, _ in self._queue.slots():
            if kind in ("waiting", "result"):  # closes files of pending items
                detached = with_detached_streams(content)
                if detached is not content:
                    self._queue.exchange(slot, detached)

    def resume(self) -> None:
        rest, self.rest = self.rest, None
        if rest is not None:
            rest.release()

    def entries(self, patience: float) -> list[tuple[str, Any]]:
        """Returns all pending items and results as data for a state. During a call of `entries`, no other thread may
        take results or submit items.

        If the items are mutable, this method waits for running calls and delays further calls until the consumer
        continues, because a call could modify an item that is being saved.

        Raises:
            TimeoutError: a call took longer than `patience` seconds.
        """
        hold, rests = self._queue.hold(), False
        try:
            if not hold.wait(patience):
                raise TimeoutError(
                    f"the state of ThreadPoolMapper cannot be saved: {self.work.function!r} has worked on one item "
                    f"for {patience:g} s; find out what blocks it, or raise ThreadPoolMapper.patience"
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
        for kind, value in entries:
            if kind == "item":
                self.submit(value)
            elif kind == "result":
                self._queue.append(value)
            else:
                self._queue.append_error(value)


def _entry(kind: str, content: Any, kept: tuple[Any] | None) -> tuple[str, Any]:
    """Returns the entry of a state for one submitted item: "item", "result" or "error", and the corresponding object.

    If the call has failed and the item is immutable (`kept`), the state contains the item, because the error may not be
    picklable.
    """
    if kind == "error" and kept is not None:
        return "item", kept[0]
    return kind if kind in ("result", "error") else "item", content


def _broken(cause: BaseException) -> Exception:
    from concurrent.futures.thread import BrokenThreadPool

    error = BrokenThreadPool(f"ThreadPoolMapper: the initializer of a thread failed: {cause!r}")
    error.__cause__ = cause
    return error
