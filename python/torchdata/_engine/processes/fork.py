"""Forking children that can use what other threads of main may have locked at that moment.

Role: main forks when the locks of libraries are free (`fork_locks.py`), but one of them may be taken in between. So a
child takes each of them once, as its first step. The kernel ends one that cannot, and main forks another in its place
before it goes on: nothing of the user's has run in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, get_context
from typing import Any

from torchdata._engine.processes.bootstrap import ChildName
from torchdata._engine.processes.exit_messages import why_not_started
from torchdata._engine.processes.fork_locks import LOCKS, with_free_locks
from torchdata._engine.processes.shutdown import LOOK, ChildProcess

__all__ = ["ForkedChild", "fork_all"]

#: By try, the seconds within which a child has to have taken the locks. A stopped or busy machine may take its time.
LIMITS = (0.2,) * 8 + (1.0,) * 4 + (5.0,) * 2
#: Seconds that main waits for one that neither begins nor ends, as it is stopped. Others find out later.
PATIENCE = 10.0
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


class ForkedChild(ChildProcess):
    """A child that main itself forks.

    Args:
        name: what the child is called.
        process_name: what its process is called.
        target: what it runs.
        args: what that is called with.
        daemon: whether it may have no children of multiprocessing's.
    """

    def __init__(
        self,
        name: str,
        process_name: str,
        target: Callable[..., object],
        args: tuple[Any, ...],
        daemon: bool = True,
    ) -> None:
        self._process_name, self._daemon = ChildName(process_name), daemon
        self._target: _Target | None = _Target(target, args)
        super().__init__(self._new(), name)

    def _new(self) -> Any:
        return get_context("fork").Process(target=self._target, name=self._process_name, daemon=self._daemon)

    @property
    def target(self) -> _Target:
        """Its function, until it has begun."""
        assert self._target is not None
        return self._target

    def start(self) -> None:
        """Starts it, when the locks are free."""
        self.target.tries += 1
        with with_free_locks():
            super().start()

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
        """Takes another process, which is not started, for one that has met a lock."""
        self.replace_process(self._new())

    def leave_alone(self) -> None:
        """Notes that it will not be forked again, mostly because it has begun: main drops its target."""
        self._target = None


def fork_all(
    children: Sequence[ForkedChild],
    start: Callable[[ForkedChild], object],
    started: Callable[[int], object],
    deliver: Callable[[], object],
) -> None:
    """Starts the children, and waits until they have begun, or have ended in another way than at a lock.

    Args:
        children: the children.
        start: starts one.
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
            start(child)
            started(number)
            deliver()
        _await_all(children, reader, start, deliver)
    finally:
        for child in children:
            if child.pid is not None:
                child.leave_alone()
        os.close(reader)
        os.close(writer)


def _await_all(
    children: Sequence[ForkedChild],
    reader: int,
    start: Callable[[ForkedChild], object],
    deliver: Callable[[], object],
) -> None:
    waiting = dict(enumerate(children))
    deadline = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < deadline:
        connection.wait([reader, *(child.sentinel() for child in waiting.values())], LOOK)
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
                start(child)
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
