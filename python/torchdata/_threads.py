"""Starts the threads of this package, and ends them at interpreter exit.

A registered `Work` object ends its threads at interpreter exit. A daemon thread that still runs code of a library at
interpreter exit could crash the process.
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
    "the limit of processes and threads (ulimit -u, or pids.max of the container) is reached: raise this limit, or "
    "use fewer workers and threads"
)
AFTER_FORK = (
    "with start method 'fork' the usual cause is a library whose threads do not survive a fork (JAX, PyAV, obstore, "
    "polars, lance, numba's OpenMP layer): use multiprocessing_context='forkserver'"
)
AT_HANGS = "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process"

#: The number of seconds that interpreter exit waits for all threads together.
TIMEOUT = 2.0

_POLL_INTERVAL = 0.1


class Latch:
    """A flag for waiting threads that can be set at any time, even while Ctrl-C interrupts the code.

    If Ctrl-C interrupts `threading.Event` right after its lock was acquired, the next thread that uses the `Event`
    hangs forever.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: `set` releases the lock `_gate`, and each waiting thread acquires it. A `SimpleQueue` is not used instead,
        #: because its timed wait may never end on a busy machine with CPython 3.11.
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Sets the flag. Several threads may call `set` at once."""
        if not self._is_set:
            self._is_set = True
            self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):
            self._gate.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        while not self._is_set:
            left = _POLL_INTERVAL if until is None else min(_POLL_INTERVAL, until - time.monotonic())
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):
                self._open()
        return True


def start(thread: threading.Thread) -> None:
    """Starts a thread. Raises RuntimeError, with the remedy, if the system cannot start another thread."""
    try:
        thread.start()
    except RuntimeError as error:
        if "unlocked lock" in str(error) and error.__context__ is not None:  # Ctrl-C has interrupted `threading` itself
            raise error.__context__ from None
        if "start new thread" not in str(error):  # the error has another reason, such as the exit of the interpreter
            raise
        raise RuntimeError(f"{error} ({thread.name}): {OUT_OF_TASKS}, or there is no memory for its stack") from error


class Work(Protocol):
    def close(self) -> Any:
        """Makes the threads end after their current item, without waiting; may be called repeatedly."""

    def join(self, seconds: float) -> Any:
        """Waits at most `seconds` until all threads except the calling thread have ended."""


#: The registered works. A WeakSet would run Python code when a `Work` object is freed, and a KeyboardInterrupt in this
#: code would be lost.
_running: dict[int, weakref.ref[Any]] = {}
#: If `_running` has this many entries, the entries of freed objects are removed.
_full = 64


def end_at_exit(work: Work) -> None:
    """Makes the threads of `work` end at interpreter exit, unless `work` was freed before."""
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


def end_all(works: Sequence[Work], seconds: float) -> None:
    for work in works:
        work.close()
    until = time.monotonic() + seconds
    for work in works:
        work.join(max(0.0, until - time.monotonic()))


os.register_at_fork(after_in_child=_running.clear)
atexit.register(lambda: end_all(_present(), TIMEOUT))
