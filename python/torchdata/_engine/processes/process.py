"""One child process, as the one that has started it knows it: its number, a descriptor of it, and how it has ended.

Role: the base of what each start method makes. A process is made by multiprocessing's `Popen`, so that it begins and
ends as all of that library's do; it is then this module's own. multiprocessing's list of children has none of them:
its exit handler would end them by SIGTERM, which they take no notice of, and wait. Whether one has ended the kernel
tells, by a descriptor of the process if the system has such.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from multiprocessing.popen_fork import Popen
from typing import Any, Protocol

from torchdata._engine.processes.exit_messages import why_not_started
from torchdata._engine.processes.interrupts import interrupts_blocked
from torchdata._native import OwnedDescriptor

__all__ = [
    "LOOK",
    "ChildProcess",
    "Closes",
    "Pidfd",
    "close_here",
    "close_inherited",
    "close_pipes",
    "is_ready",
    "keep_from_children",
    "reap",
    "sentinels",
    "wait_for_all",
    "wait_for_any",
    "watch_the_parent",
]

#: Seconds between two looks at who has ended, if nothing tells.
LOOK = 0.02


class Closes(Protocol):
    """An object that can be closed."""

    def close(self) -> None: ...


#: What main alone has of the children of all loaders here, by identity. No weak keys: their callbacks are Python code,
#: and what a signal handler raises in one is lost.
_mains: dict[int, Closes] = {}


def keep_from_children(one: Closes) -> None:
    """Notes what children that are forked from now on are to close, until it is closed by `close_here`."""
    _mains[id(one)] = one


def close_here(one: Closes) -> None:
    """Closes what was kept from children."""
    _mains.pop(id(one), None)
    one.close()


def close_inherited() -> None:
    """In a child: closes what the main process alone has of its siblings, and of the children of other loaders."""
    while _mains:
        _mains.popitem()[1].close()


class Pidfd:
    """Another process, by a descriptor of it if the system has such, else by its number.

    Args:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: Becomes readable when it ends; -1 where there is none.
        self.descriptor = -1
        with contextlib.suppress(AttributeError, OSError):
            self.descriptor = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, reaped or not; without a descriptor, whether it was reaped."""
        if self.descriptor >= 0:
            return is_ready(self.descriptor, 0)
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            if self.descriptor >= 0:  # its number may be another's soon
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self._pid, number)

    def close(self) -> None:
        """Gives its descriptor back."""
        descriptor, self.descriptor = self.descriptor, -1  # first: another thread may fork
        if descriptor >= 0:
            os.close(descriptor)


def reap(pid: int) -> int | None:
    """The exit code of a child of this process, negative for a signal; None while it runs.

    Raises:
        ChildProcessError: it is not a child of this process, or somebody else has reaped it.
    """
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def is_ready(descriptor: int, seconds: float, events: int = select.POLLIN) -> bool:
    """Whether a descriptor can be read, or written; `select` knows none beyond 1023."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))


class ChildProcess(ABC):
    """One child, even if other code reaps it.

    A program that ignores SIGCHLD, or whose handler reaps all children, takes exit codes away. If the kernel then
    answers that the child does not exist, it has ended.

    Args:
        name: what the child is called in messages.
        process_name: what its process is called, which `multiprocessing.current_process` tells in it.
    """

    #: Whether its memory began as a copy of the main process, as under start method "fork".
    is_copy_of_main = False

    def __init__(self, name: str, process_name: str) -> None:
        self.name = name
        #: Whether `watch` is called later, by who starts several: children that are forked meanwhile inherit less.
        self.is_watched_later = False
        self._process_name = process_name
        self.forget_process()

    def forget_process(self) -> None:
        """Begins as one that was never started."""
        #: Its process number, once started.
        self.pid: int | None = None
        #: Its exit code, negative for a signal; None while it runs, and if nobody knows it.
        self.exitcode: int | None = None
        #: Whether the exit code is not known because the process that had forked it for this one has ended before it.
        self.is_orphan = False
        #: A better description of its end than the exit code, from another source.
        self.told: str | None = None
        self._watch: Pidfd | None = None
        #: What holds multiprocessing's pipes to it, where the system has no descriptors of processes.
        self._pipes: Popen | None = None
        self._has_ended = False

    @abstractmethod
    def _launch(self) -> int:
        """Makes the process; returns its number."""

    def start(self) -> None:
        """Starts it, as a whole: signals that the main process handles are delivered later.

        Raises:
            OSError: the system has no room for another process; the message names the child and the remedy.
        """
        try:
            with interrupts_blocked():
                self.pid = self._launch()
                if not self.is_watched_later:
                    self.watch()
        except OSError as error:
            raise why_not_started(self.name, error) from error

    def watch(self) -> None:
        """Makes the descriptor that tells when it ends, if it runs and there is none yet."""
        if self._watch is None and self.pid is not None and not self._has_ended:
            self._watch = Pidfd(self.pid)
            keep_from_children(self._watch)

    def _take_over(self, popen: Popen) -> int:
        """Makes a process that multiprocessing has started this one's; returns its number."""
        self._pipes = None if close_pipes(popen) else popen
        return popen.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, or was never started."""
        if self.pid is not None and not self._has_ended:
            self._look(self.pid)
        return self._has_ended or self.pid is None

    def _look(self, pid: int) -> None:
        """Looks whether it has ended, and how."""
        try:
            code = reap(pid)
        except ChildProcessError:  # from here on its number may be another's
            self._has_ended = True
            return
        if code is not None:  # another thread may have got it meanwhile
            self.exitcode, self._has_ended = code, True

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended; returns whether it has."""
        return wait_for_all([self], seconds)

    def sentinel(self) -> int:
        """A descriptor that becomes readable when it ends; -1 where there is none."""
        if self._pipes is not None:
            return int(self._pipes.sentinel)
        return -1 if self._watch is None else self._watch.descriptor

    @property
    def sign(self) -> int | OwnedDescriptor:
        """What a reader of links watches it by: its number, or a descriptor that becomes readable when it ends."""
        return self.pid or 0

    @property
    def is_up(self) -> bool:
        """Whether it is there to be judged: one on another machine may wait for room."""
        return True

    def has_page(self, page: dict[str, Any]) -> bool:
        """Whether the counters of a page are this process's, and not of one before it in its place."""
        return bool(page["pid"] == self.pid)

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, by a signal or a debugger."""
        from torchdata._observe.outside.stacks import is_stopped

        return is_stopped(self.pid or 0)

    @property
    def is_running(self) -> bool:
        """Whether its main thread runs, or stands in the queue of a processor."""
        from torchdata._observe.outside.stacks import kernel_state

        return kernel_state(self.pid or 0) == "running"

    def worked(self, page: dict[str, Any] | None) -> float | None:
        """Seconds that its threads have run, or have waited for a processor; None if nobody knows.

        Args:
            page: its counters, which tell it of a process on another machine.
        """
        from torchdata._observe.stats.processor import working_time

        return working_time(self.pid or 0)

    def where_it_stands(self, page: dict[str, Any] | None, wakes: bool = False) -> tuple[str, str]:
        """The kernel's word on it, and its Python stacks, or why there are none.

        Args:
            page: its counters; None where they are not its own yet.
            wakes: whether it is stopped, and may continue so that it can answer.
        """
        from torchdata._observe.outside.stacks import where_it_stands

        number, descriptor = (page["signal"], page["stack"]) if page is not None else (0, 0)
        return where_it_stands(self.pid or 0, number, descriptor, wakes=wakes)

    @property
    def called(self) -> str:
        """Its name, and where it is, in messages of its end."""
        return f"{self.name} (pid {self.pid})"

    def kill(self) -> None:
        """Sends SIGKILL."""
        if not self.ended and self._watch is not None:
            self._watch.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Gives its descriptors back, once it has ended."""
        if self._watch is not None:
            close_here(self._watch)
        if self._pipes is not None:
            self._pipes.close()
            self._pipes = None


def close_pipes(popen: Popen) -> bool:
    """Closes the parent's ends of multiprocessing's pipes to a process: children that follow would inherit them.

    A descriptor of the process tells when it ends, and that watches its parent by one (`watch_the_parent`).

    Returns:
        Whether it has: the pipes are needed where the system has no such descriptors.
    """
    own = Pidfd(os.getpid())
    has_descriptors = own.descriptor >= 0
    own.close()
    if has_descriptors:
        popen.close()
    return has_descriptors


def watch_the_parent() -> None:
    """In a child: has `multiprocessing.parent_process` watch the process that has started it by a descriptor of that.

    It watches by a pipe of which the parent has closed its end.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid != os.getppid():
        return
    watch = Pidfd(parent.pid)
    if watch.descriptor >= 0:
        os.dup2(watch.descriptor, parent.sentinel, inheritable=False)
        watch.close()


def sentinels(children: Iterable[ChildProcess]) -> list[int]:
    """Descriptors that become readable when children end, of those that have one."""
    return [one for one in (child.sentinel() for child in children) if one >= 0]


def wait_for_all(children: Sequence[ChildProcess], seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
    """Waits until all have ended, but not longer than this many seconds or than until it is `enough`.

    Returns:
        Whether all have ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        running = [child for child in children if not child.ended]
        left = deadline - time.monotonic()
        if not running or left <= 0 or enough():
            return not running
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            connection.wait(sentinels(running), min(left, LOOK))


def wait_for_any(children: Sequence[ChildProcess], seconds: float) -> None:
    """Waits until one of the children is known to have ended, but not longer than this many seconds."""
    wait_for_all(children, seconds, lambda: any(child.ended for child in children))
