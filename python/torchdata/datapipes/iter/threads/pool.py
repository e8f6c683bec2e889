"""The pool of threads that calls the function of a `threadpool_map` pipe, and hands results out in order.

One thread, the consumer's, submits items and takes results; up to `max_workers` daemon threads call the function. A
pool serves one iteration and owns the tasks that were submitted and not taken. Its threads know their work and nothing
else, so dropping the iterator closes the pool; a thread ends after the call that it is in.

The executor of `concurrent.futures` is not used, because interpreter exit waits for its threads for ever, and because
it does not tell whether a function has begun to change an item.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Literal

from torchdata._threads import Work, end_at_exit, start
from torchdata.datapipes._pipe.streams import PLAIN_TYPES, with_detached_streams

__all__ = ["Pool", "Task"]

#: Stands for the item of a task of which only the outcome is known.
_NO_ITEM = object()


class Task:
    """One call of the function: its item, and later its result or error.

    Args:
        item: what the function gets.
    """

    __slots__ = ("error", "finished", "is_plain", "item", "phase", "result")

    def __init__(self, item: Any) -> None:
        self.item = item
        #: Whether the function cannot change the item, so that it may be called with it again.
        self.is_plain = type(item) in PLAIN_TYPES
        #: Set aside: a thread took the task while the pool was held, and left it alone.
        self.phase: Literal["waiting", "set aside", "running", "done"] = "waiting"
        self.result: Any = None
        self.error: BaseException | None = None
        #: Locked until the function has returned or raised.
        self.finished = threading.Lock()
        self.finished.acquire()

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Notes what became of the task."""
        self.result, self.error = result, error
        self.phase = "done"
        if error is None or not self.is_plain:
            # After the phase: whoever reads them the other way round never takes this for the item.
            self.item = None
        self.finished.release()

    def wait(self, seconds: float) -> bool:
        """Waits until the task is done, for `seconds` at most. Returns whether it is."""
        if self.phase == "done":  # also where an earlier wait was interrupted between the next two lines
            return True
        if not self.finished.acquire(timeout=max(0.0, seconds)):
            return False
        self.finished.release()
        return True

    def detach(self) -> None:
        """Keeps no file open for what the task holds, unless a call is under way. For tasks that nobody takes."""
        if self.phase == "done":
            self.result = with_detached_streams(self.result)
        elif self.phase != "running":
            self.item = with_detached_streams(self.item)

    def entry(self) -> tuple[str, Any]:
        """The task as a state holds it. An error need not pickle, so the call is rather made again."""
        item = self.item
        if self.phase != "done":
            return "item", item
        if self.error is None:
            return "result", self.result
        return ("item", item) if self.is_plain else ("error", self.error)


class _Work:
    """The orders of a pool's threads. They keep it alive, so it refers to nothing else of the pool."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        max_workers: int,
        *,
        thread_name_prefix: str,
        initializer: Callable[..., Any] | None,
        initargs: Iterable[Any],
    ) -> None:
        self.function = function
        self.process = os.getpid()
        self.max_workers = max_workers
        self.thread_name_prefix = thread_name_prefix
        self.initializer = initializer
        self.initargs = initargs
        #: Tasks to do. None only wakes one of the threads up.
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        #: Held while a thread claims a task, and while `holds` is changed.
        self.claiming = threading.Lock()
        #: How many holds there are: no task is begun while there is one.
        self.holds = 0
        self.closed = False
        #: Why the threads cannot call the function: what the initializer raised.
        self.broken: BaseException | None = None
        end_at_exit(self)

    def start_thread(self) -> None:
        """Starts a thread, unless there are as many as there may be."""
        if len(self.threads) >= self.max_workers:
            return
        name = f"{self.thread_name_prefix}_{len(self.threads)}"
        thread = threading.Thread(target=_serve, args=(self,), name=name, daemon=True)
        try:
            start(thread)
        except RuntimeError:  # the system has no more threads to give: fewer will do, but none will not
            if not self.threads:
                raise
            self.max_workers = len(self.threads)
        else:
            self.threads.append(thread)

    def close(self) -> None:
        """Lets each thread end after the call that it is in. Takes no lock, so the garbage collector may call it."""
        self.closed = True
        self.queue.put(None)  # each thread passes it on

    def join(self, seconds: float) -> None:
        """Waits for the threads' end, for `seconds` at most."""
        until = time.monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def claim(self, task: Task) -> bool:
        """Whether a thread may call the function for the task, which is running from then on."""
        with self.claiming:
            if self.closed:
                return False
            task.phase = "set aside" if self.holds else "running"
            return not self.holds


class Pool:
    """Threads that call a function, and the tasks in the order in which they were submitted.

    Args:
        function: what is called with each item.
        max_workers: most threads; each item submitted starts one until there are so many.
        **options: `thread_name_prefix`, `initializer` and `initargs`, as of `concurrent.futures.ThreadPoolExecutor`.
    """

    def __init__(self, function: Callable[[Any], Any], max_workers: int, **options: Any) -> None:
        self._work = _Work(function, max_workers, **options)
        self._process = os.getpid()
        #: The tasks that were submitted and not taken, in order. The consumer takes from the left.
        self.tasks: deque[Task] = deque()
        #: The error of the source: it comes after the tasks.
        self.source_error: Exception | None = None
        #: Whether the consumer, before it goes on, is to end a hold: that of a state with items that must not change.
        self.is_resting = False

    @property
    def closed(self) -> bool:
        """Whether no further task is begun."""
        return self._work.closed

    @property
    def work(self) -> Work:
        """The tasks that its threads work on."""
        return self._work

    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose threads run in the parent."""
        return self._process != os.getpid()

    def submit(self, item: Any) -> None:
        """Adds a task for the threads."""
        task = Task(item)
        self.tasks.append(task)
        self._work.queue.put(task)
        self._work.start_thread()  # can be interrupted, and then the task is there

    def wait(self, seconds: float) -> bool:
        """Waits for the first task, for `seconds` at most. Returns whether it is done."""
        if self.tasks[0].wait(seconds):
            return True
        if not self.closed:
            self._work.start_thread()  # there may be none, after an interruption
        return False

    def close(self) -> None:
        """Lets each thread end after the call that it is in. Tasks that were not begun stay for a state to be saved.

        May be called more than once, from any thread, and by the garbage collector.
        """
        self._work.close()
        for task in list(self.tasks):
            task.detach()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within this context no task is begun; of several such contexts the last one ends that."""
        self._hold()
        try:
            yield
        finally:
            self._let_go()

    def _hold(self) -> None:
        with self._work.claiming:
            self._work.holds += 1

    def _let_go(self) -> None:
        with self._work.claiming:
            self._work.holds -= 1
            for task in () if self._work.holds else list(self.tasks):
                if task.phase == "set aside":
                    task.phase = "waiting"
                    self._work.queue.put(task)

    def rest(self) -> None:
        """Begins no task before the consumer goes on."""
        with self._work.claiming:
            rests, self.is_resting = not self.is_resting, True
            self._work.holds += rests

    def go_on(self) -> None:
        """Ends that: for the consumer."""
        self.is_resting = False
        self._let_go()

    def entries(self, patience: float) -> list[tuple[str, Any]]:
        """All tasks as a state holds them; call it while nobody takes or submits tasks.

        Where the function may change items, no task is begun before the consumer goes on, so that the items of the
        state stay as they are until then, and calls under way are waited for.

        Raises:
            TimeoutError: a call took longer than `patience` seconds.
        """
        with self.hold():
            if not all(task.is_plain or task.phase == "done" for task in self.tasks):
                until = time.monotonic() + patience
                for task in self.tasks:
                    if task.phase == "running" and not task.is_plain and not task.wait(until - time.monotonic()):
                        raise TimeoutError(
                            f"the state of ThreadPoolMapper cannot be saved: {self._work.function!r} has worked on one "
                            f"item for {patience:g} s; look for what blocks there, or raise ThreadPoolMapper.patience"
                        )
                self.rest()
            return [task.entry() for task in self.tasks]

    def restore(self, entries: Iterable[tuple[str, Any]]) -> None:
        """Submits tasks that a state holds."""
        for kind, value in entries:
            if kind == "item":
                self.submit(value)
                continue
            task = Task(_NO_ITEM)
            task.finish(*((value, None) if kind == "result" else (None, value)))
            self.tasks.append(task)


def _serve(work: _Work) -> None:
    """The function of each thread, until the pool is closed."""
    if work.initializer is not None:
        try:
            work.initializer(*work.initargs)
        except BaseException as error:
            work.broken = error
    while True:
        task = work.queue.get()
        if work.closed:
            work.queue.put(None)
            return
        if task is not None and work.claim(task):
            _call(work, task)
            if os.getpid() != work.process:  # the function has forked, and nobody is here to give more tasks
                os._exit(0)
        del task  # or the thread would keep a result alive that the consumer is done with


def _call(work: _Work, task: Task) -> None:
    try:
        if work.broken is not None:
            raise _broken(work.broken)
        result = work.function(task.item)
    except BaseException as error:
        task.finish(None, _not_the_end(error))
    else:
        task.finish(with_detached_streams(result) if work.closed else result, None)
    finally:
        del work, task  # or the error's traceback would keep both alive, through this frame


def _broken(cause: BaseException) -> Exception:
    from concurrent.futures.thread import BrokenThreadPool

    error = BrokenThreadPool(f"ThreadPoolMapper: the initializer of a thread failed: {cause!r}")
    error.__cause__ = cause
    return error


def _not_the_end(error: BaseException) -> BaseException:
    """A StopIteration of the function would look like the end of the data (see PEP 479)."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError(
        "ThreadPoolMapper: the function raised StopIteration, which would end the iteration although the source has "
        "more items; catch it in the function (`next(iterator, default)` does not raise it)"
    )
    raised.__cause__ = error
    return raised
