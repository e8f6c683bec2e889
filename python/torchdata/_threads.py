"""Threads of this package: starts them, with an error in words if the system has none to give, and ends them at exit.

Role: a daemon thread that is still in foreign code at that time could take the process down with it. Code that starts
threads notes here the `Work` that ends them; at exit all are told to end, and waited for together. Runs in the main
thread. A forked child has none of its parent's threads and forgets them.
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

__all__ = ["AFTER_FORK", "AT_HANGS", "OUT_OF_TASKS", "Flag", "Work", "are_there_any", "end_all", "end_at_exit", "start"]

#: Why the system gives no process or thread, and what to do.
OUT_OF_TASKS = (
    "the limit of processes and threads (ulimit -u, or pids.max of the container) is reached: raise it, or use fewer "
    "workers and threads"
)
#: The usual cause of hangs and crashes in a child that start method "fork" has made, and the remedy.
AFTER_FORK = (
    "with start method 'fork' the usual cause is a library whose threads do not survive a fork (JAX, PyAV, obstore, "
    "polars, lance, numba's OpenMP layer): use multiprocessing_context='forkserver'"
)
#: What to do about a child that hangs.
AT_HANGS = "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process"

#: Seconds that interpreter exit waits for all threads together.
PATIENCE = 2.0

#: Seconds after which a wait for a flag looks for itself.
_LOOK = 0.1


class Flag:
    """A flag that is set once, for threads that wait for it. Ctrl-C does no harm, wherever in a call it comes.

    An `Event` of `threading` takes its lock in Python code. If an exception comes right then, nobody gives the lock
    back: the next one who waits, or sets the event, stands still for ever.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: Open once the flag is set. No `SimpleQueue`: in CPython 3.11 its waits miss their end if the machine is busy.
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Sets the flag. May be called again, also by several threads at once."""
        if not self._is_set:
            self._is_set = True
            self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # another thread has just done it
            self._gate.release()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the flag, for this many seconds at most; returns whether it is set."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._is_set:
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):
                self._open()  # for the next one who waits; if Ctrl-C comes before that, they look for themselves
        return True


def start(thread: threading.Thread) -> None:
    """Starts the thread.

    Raises:
        RuntimeError: the system cannot start another thread; the message says what to do.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):  # the interpreter exits, for one
            raise
        raise RuntimeError(f"{error} ({thread.name}): {OUT_OF_TASKS}, or there is no memory for its stack") from error


class Work(Protocol):
    """The work of threads."""

    def close(self) -> Any:
        """Lets the threads end after the item that they are at, without waiting. May be called twice."""

    def join(self, seconds: float) -> Any:
        """Waits until the threads have ended, this many seconds at most; for none that calls this itself."""


#: Work whose threads end with the interpreter, by identity; some of it is gone. No WeakSet, which calls Python code
#: when work exits: what Ctrl-C raises there is lost.
_running: dict[int, weakref.ref[Any]] = {}
#: Number of entries at which entries of finished work are removed.
_full = 64


def end_at_exit(work: Work) -> None:
    """Notes work whose threads are to end with the interpreter, unless it is gone by then."""
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
    """Whether this process may have threads of this package."""
    return bool(_present())


def _forget_inherited() -> None:
    _running.clear()


def end_all(works: Sequence[Work], seconds: float) -> None:
    """Lets all threads end after the items that they are at, and waits for them together, this many seconds at most."""
    for work in works:
        work.close()
    until = time.monotonic() + seconds
    for work in works:
        work.join(max(0.0, until - time.monotonic()))


def _end_running() -> None:
    end_all(_present(), PATIENCE)


os.register_at_fork(after_in_child=_forget_inherited)
atexit.register(_end_running)
