"""Forks children that can use all locks, although other threads may hold locks during a fork.

A fork copies all locks, but only the thread that calls fork. In the child, a lock that another thread held would stay
locked forever. In the child, Python and the C library make their own locks usable, but not the locks of PyTorch, NumPy,
`torch.manual_seed` and imports. Before a fork, the forking thread waits until the locks of PyTorch, NumPy and modules
are free. During the fork, the forking thread holds the locks of NumPy and of torch's devices, so that no other thread
can acquire these locks. The child gets new buffers for standard output and error, because another thread may hold the
locks of these buffers while it prints.

Because another thread may still acquire a lock right before the fork, each new child first acquires and releases every
lock. If the child does not acquire all locks in time, a timer of the kernel kills the child, and the main process forks
another child. A child that is killed because of a held lock has not run any user code.

Since Python 3.12, `os.fork` warns if the process has threads. The engine suppresses this warning. If the user turns
warnings into errors, `os.fork` of Python 3.15 would raise the warning after the fork. If `os.fork` raised an exception
after the fork, the main process would not know the child's process id.
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
from torchdata._engine.processes.process import POLL_INTERVAL, ChildProcess, sentinels
from torchdata._importing import loaded
from torchdata._native import HeldLock, fork_waits_for

#: The maximum number of seconds to wait for each lock before a fork. If a lock is still held after `KEPT` seconds, the
#: thread forks anyway, and the child detects the held lock.
KEPT = 1.0
#: The time limit in seconds for a new child to acquire all locks, for each attempt to fork this child. The limits grow,
#: because a child may be slow on a busy machine.
LIMITS = (0.2,) * 8 + (1.0,) * 4 + (5.0,) * 2
#: The maximum number of seconds to wait until all new children report that they have acquired the locks. Children that
#: report later, for example suspended children, are checked during the epoch.
TIMEOUT = 10.0


def _take_imports() -> None:
    # The fork does not wait for imports of user modules, because such an import may last as long as the program.
    for library in ("numpy", "torch"):
        loaded(library)


def _renew_streams() -> None:
    """Drops the text in the buffers of standard output and error, because the main process also has this text and
    writes it."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        buffer = getattr(stream, "buffer", None)
        if type(buffer) is io.BufferedWriter:
            with contextlib.suppress(OSError, ValueError):  # a stream may be closed or detached
                size = buffer.__sizeof__() - io.BufferedWriter.__basicsize__
                io.BufferedWriter.__init__(buffer, buffer.raw, size)


def _numpy_locks() -> list[Any]:
    generator = getattr(sys.modules.get("numpy.random"), "get_bit_generator", None)
    return [] if generator is None else [generator().lock]


def _device_locks() -> list[Any]:
    """Returns the locks of torch's devices, which `torch.manual_seed` acquires even on a machine without devices."""
    modules = [sys.modules.get(f"torch.{device}") for device in ("cuda", "xpu", "mtia")]
    return [lock for lock in (getattr(one, "_initialization_lock", None) for one in modules) if lock is not None]


def _take(locks: Sequence[Any]) -> None:
    for lock in locks:
        with HeldLock(lock):
            pass


def _torch_generator() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)


def _take_torch() -> None:
    generator = _torch_generator()
    if generator is not None:
        generator.get_state()


#: Functions that wait for a lock; the key describes what a thread that holds this lock does.
LOCKS: Mapping[str, Callable[[], None]] = {
    "imports NumPy or PyTorch": _take_imports,
    "draws from NumPy's global generator": lambda: _take(_numpy_locks()),
    "seeds PyTorch or initializes a device": lambda: _take(_device_locks()),
    "draws from PyTorch's global generator": _take_torch,
}


class _OfThisThread(threading.local):
    forks = False
    kept: tuple[Any, ...] = ()


_own = _OfThisThread()


@contextmanager
def with_free_locks() -> Iterator[None]:
    # the hook `_before_fork` must not wait for imports, because Ctrl-C is lost in a hook
    _take_imports()
    torch = _torch_generator()
    _own.forks = True
    fork_waits_for(None if torch is None else torch.get_state)
    try:
        yield
    finally:
        _mark_fork_ended()


def _mark_fork_ended() -> None:
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
    _mark_fork_ended()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_in_child)


_THREADS_IGNORED = ("ignore", re.compile(r"This process .* is multi-threaded"), DeprecationWarning, None, 0)


@contextmanager
def _threads_ignored() -> Iterator[None]:
    """Suppresses the warning of `os.fork` about threads. `warnings.catch_warnings` would undo changes of the warning
    filters by other threads."""
    warnings.filters.insert(0, _THREADS_IGNORED)  # type: ignore[attr-defined] # a list
    try:
        yield
    finally:
        _stop_ignoring()


def _stop_ignoring() -> None:
    with contextlib.suppress(ValueError):  # another thread may have replaced the warning filters
        warnings.filters.remove(_THREADS_IGNORED)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_stop_ignoring)


#: The message that a child sends before it acquires a lock: the child's number and the index of the lock. When the
#: child has acquired all locks, it sends the index `len(LOCKS)`.
_STEP, _BEGUN = struct.Struct("=II"), len(LOCKS)


class _Target:
    """The function of a forked child: acquires all locks, reports that the child has begun, and calls `target`."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.target = target
        self.args = args
        #: The number of the child, and both ends of the pipe through which new children send messages.
        self.number, self.reader, self.writer = 0, -1, -1
        self.tries = 0
        self.step = 0

    def __call__(self) -> None:
        with _ended_after(LIMITS[self.tries - 1]):
            for step, take in enumerate(LOCKS.values()):
                self._write_step(step)
                take()
        self._write_step(_BEGUN)
        os.close(self.writer)
        # The read end is closed last, because writing to a pipe fails if all its read ends are closed.
        os.close(self.reader)
        self.target(*self.args)

    def _write_step(self, step: int) -> None:
        os.write(self.writer, _STEP.pack(self.number, step))


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Within this context, a timer of the kernel kills this process after `seconds`."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if handler is not None:  # None means that the handler was not set from Python
        signal.signal(signal.SIGALRM, handler)


#: Only one thread at a time forks a child, because filelock 4.3 makes concurrent forks raise RuntimeError on Python
#: 3.12 and later. The lock is reentrant, because a function that the program has registered to run at forks may start
#: another loader.
_forking = threading.RLock()
os.register_at_fork(after_in_child=_forking._at_fork_reinit)  # type: ignore[attr-defined] # missing in typeshed


def fork_process(process_name: str, target: Callable[..., object], args: tuple[Any, ...]) -> Popen:
    with HeldLock(_forking), _threads_ignored():
        return Popen(get_context("fork").Process(target=target, args=args, name=process_name, daemon=True))


class ForkedChild(ChildProcess):
    is_copy_of_main = True

    def __init__(self, name: str, process_name: str, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(name, process_name)
        self.is_watched_later = True
        self._target: _Target | None = _Target(target, args)

    @property
    def target(self) -> _Target:
        assert self._target is not None
        return self._target

    def _launch(self) -> int:
        self.target.tries += 1
        with with_free_locks():
            return self._take_over(fork_process(self._process_name, self.target, ()))

    @property
    def ended(self) -> bool:
        """Returns whether the child has exited; False if the child was killed because of a held lock, because such a
        child is forked again.
        """
        return super().ended and not self.was_blocked_by_lock

    @property
    def was_blocked_by_lock(self) -> bool:
        is_waited_for = self._target is not None and self.pid is not None
        return is_waited_for and super().ended and self.exitcode in (-signal.SIGALRM, None)

    def renew(self) -> None:
        self.close()
        self.forget_process()

    def leave_alone(self) -> None:
        self.watch()
        self._target = None


def fork_all(children: Sequence[ForkedChild], started: Callable[[int], object], deliver: Callable[[], object]) -> None:
    """Forks all children, replaces children that a held lock has blocked, and returns when all have begun or exited.

    Calls `started` with the index of each child after its first start. Calls `deliver` regularly, so that pending
    signals are delivered. Raises OSError if no process can be started, or if a lock never becomes free.
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


def _await_all(children: Sequence[ForkedChild], reader: int, deliver: Callable[[], object]) -> None:
    waiting = dict(enumerate(children))
    deadline = time.monotonic() + TIMEOUT
    while waiting and time.monotonic() < deadline:
        connection.wait([reader, *sentinels(waiting.values())], POLL_INTERVAL)
        # Exits are checked before messages are read, because a child may send a message right before its exit. Only
        # children that were killed because of a held lock are forked again. If a child has exited for a reason other
        # than a held lock, the loader reports the exit when it waits for the child's items.
        exited = [number for number, child in waiting.items() if child.ended]
        locked = [number for number, child in waiting.items() if child.was_blocked_by_lock]
        for number, step in _read_steps(reader):
            waiting[number].target.step = step
            if step == _BEGUN:
                waiting.pop(number).leave_alone()
        for number in exited:
            waiting.pop(number, None)
        for number in locked:
            child = waiting.get(number)
            if child is not None:
                _check_tries(child)
                child.renew()
                child.start()
                child.watch()
                deadline = time.monotonic() + TIMEOUT
        deliver()


def _read_steps(reader: int) -> Iterator[tuple[int, int]]:
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
        f"{child.name} could not be started: it was forked {target.tries} times, and each time another thread of this "
        f"program held a lock that the child needs, because this thread {what}. Start the loader while no thread does "
        "this, give the thread its own generator or stream, or use multiprocessing_context='forkserver'",
    )
