"""Threads that read ahead, and the queue between them and the consumer of their results.

Role: `ReadAhead` is what the threads of one iteration know; pipes, nodes and StatefulDataLoader derive theirs from it.
It refers neither to the pipe nor to the consumer's end, so dropping these can end the threads. The queue, in Rust,
keeps order, places and holds; it waits, and it closes.

There is one way to stop: `close` lets each thread end after the call that it is in, and nobody waits for longer than it
likes. Threads are daemons, and are asked to end when the interpreter exits. A forked child has none of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from torchdata._native import ReadAheadQueue
from torchdata._threads import end_at_exit, start

__all__ = ["ReadAhead", "without_own_frame"]


class ReadAhead:
    """The queue of one iteration, and the threads that work for it.

    Args:
        name: who reads ahead, in messages.
        capacity: most items that are taken and not yet given.
        threads: how the threads are called; a number is added if there may be several.
        several: whether there may be.
        **options: `in_order`, `keeps`, `when_closed` and `place` of the queue.
    """

    def __init__(self, name: str, capacity: int, threads: str, *, several: bool = False, **options: Any) -> None:
        self.queue = ReadAheadQueue(name, capacity, **options)
        self._called, self._several = threads, several
        self.threads: list[threading.Thread] = []
        end_at_exit(self)

    def start(self, serve: Callable[..., object], *args: Any) -> bool:
        """Starts a thread; returns whether it runs. Fewer than wanted will do if the system has no more to give.

        Args:
            serve: what it calls.
            *args: what with.

        Raises:
            RuntimeError: the system has not even one.
        """
        name = f"{self._called}_{len(self.threads)}" if self._several else self._called
        thread = threading.Thread(target=_run, args=(self.queue, serve, args), name=name, daemon=True)
        self.threads.append(thread)  # before it runs, as Ctrl-C may come between the two
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
        """Whether this is a forked child's copy, whose threads run in the parent."""
        return self.queue.is_inherited

    def close(self) -> None:
        """Lets each thread end after the call that it is in. May be called twice, and by the garbage collector."""
        self.queue.close()

    def join(self, seconds: float) -> bool:
        """Waits for the threads' end, for `seconds` at most; returns whether they have ended."""
        if self.is_inherited:
            return True
        until = time.monotonic() + seconds
        others = self.others()
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def others(self) -> list[threading.Thread]:
        """The threads that were started, without the one that calls this."""
        current = threading.current_thread()
        return [thread for thread in self.threads if thread.ident is not None and thread is not current]


def _run(queue: ReadAheadQueue, serve: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Runs `serve` in a thread, and ends a process that the user's function has forked in it."""
    try:
        serve(*args)
    finally:
        if queue.is_inherited:  # the user's function has forked, and nobody is here to give more work
            os._exit(0)


def without_own_frame(error: BaseException) -> BaseException:
    """The error without the frame that has caught it, which would keep alive the queue that is to keep the error."""
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
