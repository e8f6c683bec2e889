"""Starts the threads of this package, with a clear error on failure, and ends the threads at interpreter exit.

Role: ends the threads at exit, because a daemon thread that still runs foreign code could crash the process. Code that
starts threads registers a `Work` object that ends the threads. At exit, the main thread closes all `Work` objects, and
then waits for all threads together. A forked child has none of its parent's threads, and therefore removes the parent's
`Work` objects.
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

#: The reason why the system cannot start a process or thread, and the remedy.
OUT_OF_TASKS = (
    "the limit of processes and threads (ulimit -u, or pids.max of the container) is reached: raise it, or use fewer "
    "workers and threads"
)
#: The usual cause of hangs and crashes in a child that was started by "fork", and the remedy.
AFTER_FORK = (
    "with start method 'fork' the usual cause is a library whose threads do not survive a fork (JAX, PyAV, obstore, "
    "polars, lance, numba's OpenMP layer): use multiprocessing_context='forkserver'"
)
#: The part of a message that explains what to do if a child hangs.
AT_HANGS = "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process"

#: The number of seconds that interpreter exit waits for all threads together.
PATIENCE = 2.0

#: Seconds between two checks while a thread waits for a flag.
_LOOK = 0.1


class Latch:
    """A flag that is set once, for threads that wait for it. The flag is safe against Ctrl-C at any point.

    `threading.Event` is not used, because it acquires its lock in Python code. If Ctrl-C raises an exception right
    after the lock was acquired, the lock is never released, and the next thread that uses the `Event` hangs forever.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: A lock that `set` releases, and that each waiting thread acquires. A `SimpleQueue` is unsuitable, because its
        #: waits in CPython 3.11 may miss their end on a busy machine.
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Sets the flag. This method may be called repeatedly, even by several threads at once."""
        if not self._is_set:
            self._is_set = True
            self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # another thread has just opened the lock
            self._gate.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Waits at most `seconds` for the flag. Returns whether the flag is set."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._is_set:
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):
                # `_open` releases the lock for the next waiting thread. If Ctrl-C prevents the release, the waiting
                # thread sees the flag at its next check.
                self._open()
        return True


def start(thread: threading.Thread) -> None:
    """Starts a thread. Raises RuntimeError if the system cannot start another thread; the message names the remedy."""
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):  # for example, because the interpreter exits
            raise
        raise RuntimeError(f"{error} ({thread.name}): {OUT_OF_TASKS}, or there is no memory for its stack") from error


class Work(Protocol):
    """An object that ends the threads of one task."""

    def close(self) -> Any:
        """Makes the threads end after their current item, without waiting. This method may be called repeatedly."""

    def join(self, seconds: float) -> Any:
        """Waits at most `seconds` until all threads except the calling thread have ended."""


#: References to `Work` objects with threads that must end at interpreter exit, by the object's id. A WeakSet is
#: unsuitable, because it runs Python code when an object is freed, and a KeyboardInterrupt in this code would be lost.
_running: dict[int, weakref.ref[Any]] = {}
#: When `_running` has this many entries, the entries of freed objects are removed.
_full = 64


def end_at_exit(work: Work) -> None:
    """Registers an object whose threads must end at interpreter exit, if the object still exists at that time."""
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
    """Returns whether this process may have threads of this package."""
    return bool(_present())


def _forget_inherited() -> None:
    _running.clear()


def end_all(works: Sequence[Work], seconds: float) -> None:
    """Makes all threads end after their current items, and waits for them together, for at most `seconds`."""
    for work in works:
        work.close()
    until = time.monotonic() + seconds
    for work in works:
        work.join(max(0.0, until - time.monotonic()))


def _end_running() -> None:
    end_all(_present(), PATIENCE)


os.register_at_fork(after_in_child=_forget_inherited)
atexit.register(_end_running)
