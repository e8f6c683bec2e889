"""Locks of libraries that other threads of main may hold when a child is forked.

Role: a fork copies every lock as it is, and of the threads only the one that forks. A lock that another thread holds
then is held in the child for ever. Python and the C library see to their own locks, but not to those of PyTorch's and
NumPy's global generators, which are held without the GIL while something is drawn (a loader of another thread draws its
seeds there), nor to that of a module that a thread is importing. So a thread that forks a child of the engine waits
right before until they are free, and keeps NumPy's, the one that can be kept from Python, until it has forked.
PyTorch's is taken last, by the extension (`forking.rs`). The buffers of standard output and error have locks, too, and
a thread that prints without a pause never leaves them free: the child makes its buffers anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchdata._importing import loaded
from torchdata._native import fork_waits_for

__all__ = ["LOCKS", "with_free_locks"]

#: Seconds that main waits for NumPy's lock: a thread that keeps it longer is found out by the child.
KEPT = 1.0


def _take_imports() -> None:
    for library in ("numpy", "torch"):  # a module of the user's may be the program, and be imported as long as it runs
        loaded(library)


def _renew_streams() -> None:
    """Empties the buffers of a forked child's standard streams, which main writes, and gives them new locks."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        buffer = getattr(stream, "buffer", None)
        if type(buffer) is io.BufferedWriter:
            with contextlib.suppress(OSError, ValueError):  # closed or detached
                size = buffer.__sizeof__() - io.BufferedWriter.__basicsize__
                io.BufferedWriter.__init__(buffer, buffer.raw, size)


def _numpy_lock() -> Any:
    """That of NumPy's global generator; None if it is not loaded, or not yet as a whole."""
    generator = getattr(sys.modules.get("numpy.random"), "get_bit_generator", None)
    return None if generator is None else generator().lock


def _take_numpy() -> None:
    lock = _numpy_lock()
    if lock is not None:
        with lock:
            pass


def _torch_generator() -> Any:
    """The global one; None if PyTorch is not loaded, or not yet as a whole."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


def _take_torch() -> None:
    generator = _torch_generator()
    if generator is not None:
        generator.get_state()


#: The function that waits for each lock, by the words for a thread that holds it.
LOCKS: Mapping[str, Callable[[], None]] = {
    "imports NumPy or PyTorch": _take_imports,
    "draws from NumPy's global generator": _take_numpy,
    "draws from PyTorch's global generator": _take_torch,
}


class _OfThisThread(threading.local):
    """Whether the thread forks a child, and NumPy's lock if it keeps it."""

    forks = False
    kept: Any = None


_own = _OfThisThread()


@contextmanager
def with_free_locks() -> Iterator[None]:
    """Context in which the forks of this thread wait until the locks are free."""
    _take_imports()  # which takes seconds: not in a hook, where Ctrl-C would be lost
    torch = _torch_generator()
    _own.forks = True
    fork_waits_for(None if torch is None else torch.get_state)
    try:
        yield
    finally:
        _forks_no_more()


def _forks_no_more() -> None:
    _own.forks = False
    fork_waits_for(None)


def _before_fork() -> None:
    if not _own.forks:
        return
    lock = _numpy_lock()
    if lock is not None and lock.acquire(timeout=KEPT):
        _own.kept = lock


def _after_fork() -> None:
    lock, _own.kept = _own.kept, None
    if lock is not None:
        lock.release()


def _begin_in_child() -> None:
    if _own.forks:
        _renew_streams()
    _after_fork()
    _forks_no_more()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_in_child)
