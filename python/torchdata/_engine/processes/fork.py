"""Forking children that can use what other threads of main may have locked at that moment.

Role: a fork copies every lock as it is, and of the threads only the one that forks. A lock that another thread holds
then is held in the child for ever. Python and the C library see to their own locks, but not to those of PyTorch's and
NumPy's global generators, which are held without the GIL while something is drawn (a loader of another thread draws its
seeds there), nor to those that `torch.manual_seed` takes for devices, nor to that of a module that a thread is
importing. So a thread that forks a child of the engine waits right before until they are free. It keeps NumPy's and
the devices', which can be kept from Python, until it has forked. That of PyTorch's generator is taken last, by the
extension (`forking.rs`). The buffers of standard output and error have locks, too, and a thread that prints without a
pause never leaves them free: the child makes its buffers anew.

One of the locks may still be taken in between. So a child takes each of them once, as its first step. The kernel ends
one that cannot, and main forks another in its place before it goes on: nothing of the user's has run in it.

From Python 3.12 on, `os.fork` warns if the process has threads. If warnings are errors, Python 3.15 raises the warning
after the child was created, so the main process never learns the number of this child. Therefore the engine ignores the
warning while it forks.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import connection, get_context
from multiprocessing.popen_fork import Popen
from typing import Any

from torchdata._engine.processes.exit_messages import why_not_started
from torchdata._engine.processes.process import LOOK, ChildProcess, sentinels
from torchdata._importing import loaded
from torchdata._native import fork_waits_for

__all__ = ["LOCKS", "ForkedChild", "fork_all", "fork_process"]

#: Seconds that main waits for each lock that it keeps: a thread that has one for longer is found out by the child.
KEPT = 1.0
#: By try, the seconds within which a child has to have taken the locks. A stopped or busy machine may take its time.
LIMITS = (0.2,) * 8 + (1.0,) * 4 + (5.0,) * 2
#: Seconds that main waits for one that neither begins nor ends, as it is stopped. Others find out later.
PATIENCE = 10.0


# -- the locks --------------------------------------------------------------------------------------------------------


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


def _numpy_locks() -> list[Any]:
    """That of NumPy's global generator, if it is loaded as a whole."""
    generator = getattr(sys.modules.get("numpy.random"), "get_bit_generator", None)
    return [] if generator is None else [generator().lock]


def _device_locks() -> list[Any]:
    """Those that `torch.manual_seed` takes, even if there is no such device; of modules that are loaded as a whole."""
    modules = [sys.modules.get(f"torch.{device}") for device in ("cuda", "xpu", "mtia")]
    return [lock for lock in (getattr(one, "_initialization_lock", None) for one in modules) if lock is not None]


def _take(locks: Sequence[Any]) -> None:
    for lock in locks:
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
    "draws from NumPy's global generator": lambda: _take(_numpy_locks()),
    "seeds PyTorch or initializes a device": lambda: _take(_device_locks()),
    "draws from PyTorch's global generator": _take_torch,
}


class _OfThisThread(threading.local):
    """Whether the thread forks a child, and the locks that it keeps for that."""

    forks = False
    kept: tuple[Any, ...] = ()


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
    for lock in (*_numpy_locks(), *_device_locks()):
        if lock.acquire(timeout=KEPT):
            _own.kept += (lock,)


def _after_fork() -> None:
    locks, _own.kept = _own.kept, ()
    for lock in locks:
        lock.release()


def _begin_in_child() -> None:
    if _own.forks:
        _renew_streams()
    _after_fork()
    _forks_no_more()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_in_child)


# -- the warning ------------------------------------------------------------------------------------------------------

#: The filter of the warning that the process has threads.
_THREADS_IGNORED = ("ignore", re.compile(r"This process .* is multi-threaded"), DeprecationWarning, None, 0)


@contextmanager
def _threads_ignored() -> Iterator[None]:
    """Ignores the warning in this context.

    This filter alone is added and removed, because `warnings.catch_warnings` would also undo changes of other threads.
    """
    warnings.filters.insert(0, _THREADS_IGNORED)  # type: ignore[attr-defined] # a list
    try:
        yield
    finally:
        _no_longer_ignore()


def _no_longer_ignore() -> None:
    with contextlib.suppress(ValueError):  # another thread has replaced the filters
        warnings.filters.remove(_THREADS_IGNORED)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_no_longer_ignore)


# -- the children -----------------------------------------------------------------------------------------------------


#: The messages of a child: its number, and the lock that it is about to take; that it has them all.
_STEP, _BEGUN = struct.Struct("=II"), len(LOCKS)


class _Target:
    """The function of a forked child: takes the locks, says that it has begun, and calls the target."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.target = target
        self.args = args
        #: Its number among those that are forked with it, and the ends of the pipe over which it speaks.
        self.number, self.reader, self.writer = 0, -1, -1
        #: How many have been forked, this one included.
        self.tries = 0
        #: The lock that the last one was about to take.
        self.step = 0

    def __call__(self) -> None:
        with _ended_after(LIMITS[self.tries - 1]):
            for step, take in enumerate(LOCKS.values()):
                self._say(step)
                take()
        self._say(_BEGUN)
        os.close(self.writer)
        os.close(self.reader)  # main's may be closed by now: while there is one, writing is no error
        self.target(*self.args)

    def _say(self, step: int) -> None:
        os.write(self.writer, _STEP.pack(self.number, step))


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Context in which the kernel ends this process after so many seconds, whatever it waits for."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if handler is not None:  # else it was not set from Python
        signal.signal(signal.SIGALRM, handler)


def fork_process(process_name: str, target: Callable[..., object], args: tuple[Any, ...]) -> Popen:
    """Forks this process: multiprocessing's object for that."""
    with _threads_ignored():
        return Popen(get_context("fork").Process(target=target, args=args, name=process_name, daemon=True))


class ForkedChild(ChildProcess):
    """A child that main itself forks.

    Args:
        name: what the child is called in messages.
        process_name: what its process is called.
        target: what it runs.
        args: what that is called with.
    """

    is_copy_of_main = True

    def __init__(self, name: str, process_name: str, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(name, process_name)
        self.is_watched_later = True
        self._target: _Target | None = _Target(target, args)

    @property
    def target(self) -> _Target:
        """Its function, until it has begun."""
        assert self._target is not None
        return self._target

    def _launch(self) -> int:
        """Forks it, when the locks are free."""
        self.target.tries += 1
        with with_free_locks():
            return self._take_over(fork_process(self._process_name, self.target, ()))

    @property
    def ended(self) -> bool:
        """Whether it has ended, or was never started. One that is to be forked again has not."""
        return super().ended and not self.met_a_lock

    @property
    def met_a_lock(self) -> bool:
        """Whether its process has ended before it began, as far as one can know because a lock was held."""
        is_waited_for = self._target is not None and self.pid is not None
        return is_waited_for and super().ended and self.exitcode in (-signal.SIGALRM, None)

    def renew(self) -> None:
        """Begins as one that was never started, for one that has met a lock."""
        self.close()
        self.forget_process()

    def leave_alone(self) -> None:
        """Notes that it will not be forked again, mostly because it has begun: main drops its target."""
        self.watch()
        self._target = None


def fork_all(
    children: Sequence[ForkedChild],
    started: Callable[[int], object],
    deliver: Callable[[], object],
) -> None:
    """Starts the children, and waits until they have begun, or have ended in another way than at a lock.

    Args:
        children: the children.
        started: called with the number of each when it was started for the first time.
        deliver: called between two steps; what it raises is passed on.

    Raises:
        OSError: the system has no room for a process, or one of the locks is never free.
    """
    try:
        reader, writer = os.pipe()
    except OSError as error:
        raise why_not_started(children[0].name, error) from error
    try:
        os.set_blocking(reader, False)
        for number, child in enumerate(children):
            child.target.number, child.target.reader, child.target.writer = number, reader, writer
            child.start()
            started(number)
            deliver()
        for child in children:
            child.watch()
        _await_all(children, reader, deliver)
    finally:
        for child in children:
            if child.pid is not None:
                child.leave_alone()
        os.close(reader)
        os.close(writer)


def _await_all(
    children: Sequence[ForkedChild],
    reader: int,
    deliver: Callable[[], object],
) -> None:
    waiting = dict(enumerate(children))
    deadline = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < deadline:
        connection.wait([reader, *sentinels(waiting.values())], LOOK)
        # Deaths are looked for before the messages are read. Other deaths are reported by the looks for dead processes.
        dead = [number for number, child in waiting.items() if child.ended]
        locked = [number for number, child in waiting.items() if child.met_a_lock]
        for number, step in _said(reader):
            waiting[number].target.step = step
            if step == _BEGUN:
                waiting.pop(number).leave_alone()
        for number in dead:
            waiting.pop(number, None)
        for number in locked:
            child = waiting.get(number)
            if child is not None:
                _check_tries(child)
                child.renew()
                child.start()
                child.watch()
                deadline = time.monotonic() + PATIENCE
        deliver()


def _said(reader: int) -> Iterator[tuple[int, int]]:
    """The new messages of children: their numbers, and steps."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield from _STEP.iter_unpack(os.read(reader, 512 * _STEP.size))


def _check_tries(child: ForkedChild) -> None:
    target = child.target
    if target.tries < len(LIMITS):
        return
    what = list(LOCKS)[target.step]
    raise OSError(
        errno.EDEADLK,
        f"{child.name} could not be started: whenever it was forked, {target.tries} times, another thread of this "
        f"program was at something that a forked process cannot do then: it {what} all the time. Start the loader "
        "while it does not, have it use a generator or a stream of its own, or use "
        "multiprocessing_context='forkserver'",
    )
