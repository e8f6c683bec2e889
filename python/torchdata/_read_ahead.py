"""Threads that read ahead, and the queue between these threads and the consumer of their results.

Role: a `ReadAhead` contains the data that the threads of one iteration share. Pipes, nodes and StatefulDataLoader
derive their own classes from `ReadAhead`. `ReadAhead` has no reference to the pipe or to the consumer's end of the
queue, so that the threads end when the pipe or the consumer's end is freed. The queue, which is written in Rust,
returns the results in order, stores positions, and implements suspending, waiting and closing.

`close` makes each thread end after its current call, and callers of `join` choose how long to wait. The threads are
daemons, and are stopped when the interpreter exits. A forked child does not have the threads of its parent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from torchdata._native import ReadAheadQueue
from torchdata._threads import end_at_exit, start


class ReadAhead:
    """The queue of one iteration, and its threads.

    Args:
        capacity: the maximum number of items that were read from the source but were not returned yet.
        **options: arguments of the queue: `in_order`, `keeps`, `when_closed` and `place`.
    """

    def __init__(self, name: str, capacity: int, threads: str, *, several: bool = False, **options: Any) -> None:
        self.queue = ReadAheadQueue(name, capacity, **options)
        self._called, self._several = threads, several
        self.threads: list[threading.Thread] = []
        end_at_exit(self)

    def start(self, serve: Callable[..., object], *args: Any) -> bool:
        """Starts a thread. Returns whether the thread runs. If the system cannot start more threads, the iteration uses
        fewer threads than requested. Raises RuntimeError if the system cannot start even one thread."""
        name = f"{self._called}_{len(self.threads)}" if self._several else self._called
        thread = threading.Thread(target=_run, args=(self.queue, serve, args), name=name, daemon=True)
        self.threads.append(thread)  # Ctrl-C may interrupt the start, so the thread is stored first
        try:
            start(thread)
        except RuntimeError:
            self.threads.remove(thread)
            if not self.threads:
                raise
            return False
        return True

    @property
    def is_inherited(self) -> bool:
        """Whether this object is a copy in a forked child, which does not have the threads."""
        return self.queue.is_inherited

    def close(self) -> None:
        """Makes each thread end after its current call. This method may be called repeatedly, even by garbage
        collection."""
        self.queue.close()

    def join(self, seconds: float) -> bool:
        """Waits at most `seconds` for the threads to end. Returns whether the threads have ended."""
        if self.is_inherited:
            return True
        until = time.monotonic() + seconds
        others = self.others()
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def others(self) -> list[threading.Thread]:
        current = threading.current_thread()
        return [thread for thread in self.threads if thread.ident is not None and thread is not current]


def _run(queue: ReadAheadQueue, serve: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Runs `serve` in a thread, and ends a process that the user's function has forked in this thread."""
    try:
        serve(*args)
    finally:
        if queue.is_inherited:  # the user's function has forked, and the forked process has no consumer
            os._exit(0)


def without_own_frame(error: BaseException) -> BaseException:
    """Returns the error without the frame that caught it. The frame refers to the queue, so an error that is stored in
    the queue would keep the queue alive."""
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
