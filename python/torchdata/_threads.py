"""Starts the threads of this package, and ends them at interpreter exit.

Role: a daemon thread that runs foreign code at interpreter exit could crash the process. Therefore, code that starts
threads registers a `Work` object, and at exit, the main thread closes all of them and waits for their threads.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

OUT_OF_TASKS = (
    "the limit of processes and threads (ulimit -u, or pids.max of the container) is reached: raise it, or use fewer "
    "workers and threads"
)
#: The usual cause of hangs and crashes of forked children, and the remedy.
AFTER_FORK = (
    "with start method 'fork' the usual cause is a library whose threads do not survive a fork (JAX, PyAV, obstore, "
    "polars, lance, numba's OpenMP layer): use multiprocessing_context='forkserver'"
)
AT_HANGS = "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process"

#: The number of seconds that interpreter exit waits for all threads together.
PATIENCE = 2.0

#: Seconds between two checks while a thread waits for a flag.
_LOOK = 0.1


class Latch:
    """A flag that is set once, for threads that wait for it, and that is safe against Ctrl-C at any point.

    `threading.Event` acquires its lock in Python code: if Ctrl-C raises an exception right afterwards, the lock is
    never released, and the next thread that uses the `Event` hangs forever.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: `set` releases this lock, and each waiting thread acquires it. Waits of a `SimpleQueue` may miss their end on
        #: a busy machine with CPython 3.11.
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """May be called repeatedly, even by several threads at once."""
        if not self._is_set:
            self._is_set = True
            self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # another thread has just released the lock
            self._gate.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Returns whether the flag was set within `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._is_set:
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):
                # Releases the lock for the next waiting thread. If Ctrl-C prevents this, the waiting thread sees the
                # flag at its next check.
                self._open()
        return True


def start(thread: threading.Thread) -> None:
    """Raises RuntimeError, with the remedy, if the system cannot start another thread."""
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):  # for example, because the interpreter exits
            raise
        raise RuntimeError(f"{error} ({thread.name}): {OUT_OF_TASKS}, or there is no memory for its stack") from error


class Work(Protocol):
    """Ends the threads of one task."""

    def close(self) -> Any:
        """Makes the threads end after their current item, without waiting; may be called repeatedly."""

    def join(self, seconds: float) -> Any:
        """Waits at most `seconds` until all threads except the calling thread have ended."""


#: Objects with threads that must end at interpreter exit, by their `id()`. Not a WeakSet, which runs Python code when
#: an object is freed, because a KeyboardInterrupt in this code would be lost.
_running: dict[int, weakref.ref[Any]] = {}
#: At this size of `_running`, the entries of freed objects are removed.
_full = 64


def end_at_exit(work: Work) -> None:
    """The threads of `work` must end at interpreter exit, if `work` still exists then."""
    global _full
    if len(_running) >= _full:
        for key in list(_running):
            reference = _running.pop(key, None)
            if reference is not None and reference() is not None:
                _running[key] = reference
        _full = max(64, 2 * len(_running))
    _running[id(work)] = weakref.ref(work)


def _present() -> list[Any]:
    return [work for reference in list(_running.values()) if (work := reference()) is not None]


def are_there_any() -> bool:
    return bool(_present())


def _forget_inherited() -> None:
    _running.clear()


def end_all(works: Sequence[Work], seconds: float) -> None:
    """Makes all threads end after their current items, and waits at most `seconds` for all of them."""
    for work in works:
        work.close()
    until = time.monotonic() + seconds
    for work in works:
        work.join(max(0.0, until - time.monotonic()))


def _end_running() -> None:
    end_all(_present(), PATIENCE)


os.register_at_fork(after_in_child=_forget_inherited)
atexit.register(_end_running)
