"""Threads that read ahead, and the queue between these threads and the consumer of their results.

A `ReadAhead` must not refer to the pipe or to the consumer, so that its threads end when the pipe or the consumer is
freed.
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
    """Reads up to `capacity` items ahead of the consumer in threads. `options` are further arguments of the
    `ReadAheadQueue`."""

    def __init__(self, name: str, capacity: int, threads: str, *, several: bool = False, **options: Any) -> None:
        self.queue = ReadAheadQueue(name, capacity, **options)
        self._called, self._several = threads, several
        self.threads: list[threading.Thread] = []
        end_at_exit(self)

    def start(self, serve: Callable[..., object], *args: Any) -> bool:
        """Starts one more thread, and returns True. If the system cannot start the thread, this method returns False if
        another thread of this object is running, and raises RuntimeError otherwise.
        """
        name = f"{self._called}_{len(self.threads)}" if self._several else self._called
        thread = threading.Thread(target=_run, args=(self.queue, serve, args), name=name, daemon=True)
        self.threads.append(thread)  # stored first, because Ctrl-C may interrupt the start of the thread
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
        """Whether this object is a copy in a forked child, where the threads do not exist."""
        return self.queue.is_inherited

    def close(self) -> None:
        """Makes each thread end after its current call; may be called repeatedly, even by garbage collection."""
        self.queue.close()

    def join(self, seconds: float) -> bool:
        """Returns whether the threads have ended within `seconds`."""
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
    try:
        serve(*args)
    finally:
        if queue.is_inherited:  # the user's function has forked this process, and the fork does not have a consumer
            os._exit(0)


def without_own_frame(error: BaseException) -> BaseException:
    """Removes this module's frame from the error's traceback, because the frame and the queue, which stores the error,
    would keep each other alive.
    """
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
