"""A child process as its parent sees it: the process id, a file descriptor for the process, and its exit code.

`Popen` of multiprocessing creates each process, so that it starts and exits like other processes of multiprocessing.
Each process of the engine is removed from multiprocessing's list of children. At exit, multiprocessing would send
SIGTERM to the children in its list and wait for them, but the engine's children ignore SIGTERM.
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
from torchdata._handlers import raise_if_of_handler
from torchdata._native import OwnedDescriptor, continue_with_parent

POLL_INTERVAL = 0.02


class Closes(Protocol):
    def close(self) -> None: ...


#: The resources that every forked child must close, each under its `id()`. A weak dictionary is unsuitable, because
#: Python would ignore a KeyboardInterrupt in the callback of a weak reference.
_mains: dict[int, Closes] = {}


def keep_from_children(one: Closes) -> None:
    _mains[id(one)] = one


def close_here(one: Closes) -> None:
    _mains.pop(id(one), None)
    one.close()


def close_inherited() -> None:
    """Closes, in a child, the resources that the main process uses for other children."""
    while _mains:
        _mains.popitem()[1].close()


class Pidfd:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: A file descriptor that becomes readable when the process exits; -1 if there is none.
        self.descriptor = -1
        with contextlib.suppress(AttributeError, OSError):
            self.descriptor = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited. If the system has no pidfds, the property is True only after the process was
        reaped."""
        if self.descriptor >= 0:
            return is_ready(self.descriptor, 0)
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.descriptor >= 0:  # without a pidfd, the process id could soon belong to another process
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self._pid, number)

    def close(self) -> None:
        # `descriptor` is cleared before the file descriptor is closed, because a child that another thread forks in
        # between would otherwise close the descriptor again.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def reap(pid: int) -> int | None:
    """Returns the exit code of a child (negative for a signal), or None while the child runs. Raises ChildProcessError
    if the process is not a child of this process, or if other code has reaped it.
    """
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def is_ready(descriptor: int, seconds: float, events: int = select.POLLIN) -> bool:
    """The function uses `poll`, because `select` does not support file descriptors above 1023."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))


class ChildProcess(ABC):
    """A child process.

    The exit code is unknown if other code of the program has reaped the process by `waitpid`, or if the program ignores
    SIGCHLD.

    Args:
        name: the name that messages use for the child.
        process_name: the name of the child's `multiprocessing.current_process`.
    """

    is_copy_of_main = False

    def __init__(self, name: str, process_name: str) -> None:
        self.name = name
        #: Whether `watch` is called after all children have started, so that later children do not inherit the file
        #: descriptor that `watch` opens.
        self.is_watched_later = False
        self._process_name = process_name
        self.forget_process()

    def forget_process(self) -> None:
        self.pid: int | None = None
        #: The exit code, negative for a signal; None while the process runs, or if the exit code is unknown.
        self.exitcode: int | None = None
        self.is_orphan = False
        #: For a worker on another machine, a description of its exit, which replaces the exit code in messages.
        self.exit_reason: str | None = None
        self._watch: Pidfd | None = None
        self._pipes: Popen | None = None
        self._has_ended = False

    @abstractmethod
    def _launch(self) -> int:
        """Creates the process, and returns its id."""

    def start(self) -> None:
        """Starts the process, and delivers signals only after the start is complete. Raises OSError, with the child's
        name and the remedy, if the system cannot start a process.
        """
        try:
            with interrupts_blocked():
                self.pid = self._launch()
                if not self.is_watched_later:
                    self.watch()
        except OSError as error:
            raise why_not_started(self.name, error) from error

    def watch(self) -> None:
        if self._watch is None and self.pid is not None and not self._has_ended:
            self._watch = Pidfd(self.pid)
            keep_from_children(self._watch)

    def _take_over(self, popen: Popen) -> int:
        self._pipes = None if close_pipes(popen) else popen
        return popen.pid

    @property
    def ended(self) -> bool:
        if self.pid is not None and not self._has_ended:
            self._look(self.pid)
        return self._has_ended or self.pid is None

    def _look(self, pid: int) -> None:
        try:
            code = reap(pid)
        except ChildProcessError:  # from now on, the process id may belong to another process
            self._has_ended = True
            return
        if code is not None:  # if not, another thread has received the exit code
            self.exitcode, self._has_ended = code, True

    def wait(self, seconds: float) -> bool:
        return wait_for_all([self], seconds)

    def sentinel(self) -> int:
        """Returns a file descriptor that becomes readable when the process exits; -1 if there is none."""
        if self._pipes is not None:
            return int(self._pipes.sentinel)
        return -1 if self._watch is None else self._watch.descriptor

    @property
    def sign(self) -> int | OwnedDescriptor:
        """Returns the process id. For a process on another machine, returns a file descriptor that becomes readable at
        its exit."""
        return self.pid or 0

    @property
    def is_up(self) -> bool:
        """Returns False for a worker on another machine that has not started yet."""
        return True

    def has_page(self, page: dict[str, Any]) -> bool:
        """Returns whether `page` contains the counters of this process, and not of an exited process that this process
        replaces.
        """
        return bool(page["pid"] == self.pid)

    @property
    def is_stopped(self) -> bool:
        from torchdata._observe.outside.stacks import is_stopped

        return is_stopped(self.pid or 0)

    @property
    def is_running(self) -> bool:
        from torchdata._observe.outside.stacks import kernel_state

        return kernel_state(self.pid or 0) == "running"

    def worked(self, page: dict[str, Any] | None) -> float | None:
        """Returns the seconds that the process's threads have run or waited for a processor."""
        from torchdata._observe.stats.processor import working_time

        return working_time(self.pid or 0)

    def current_frame(self, page: dict[str, Any] | None, wakes: bool = False) -> tuple[str, str]:
        from torchdata._observe.outside.stacks import current_frame

        number, descriptor = (page["signal"], page["stack"]) if page is not None else (0, 0)
        return current_frame(self.pid or 0, number, descriptor, wakes=wakes)

    @property
    def called(self) -> str:
        """The child's name and process id, for messages about its exit. For a worker on another machine, the text also
        names the machine."""
        return f"{self.name} (pid {self.pid})"

    def kill(self) -> None:
        if not self.ended and self._watch is not None:
            self._watch.send_signal(signal.SIGKILL)

    def close(self) -> None:
        if self._watch is not None:
            close_here(self._watch)
        if self._pipes is not None:
            self._pipes.close()
            self._pipes = None


def close_pipes(popen: Popen) -> bool:
    """Closes the pipes that multiprocessing has opened between the parent and a child, so that later children do not
    inherit these pipes.

    Pidfds replace the pipes. On a system without pidfds, the pipes stay open, and the function returns False.
    """
    own = Pidfd(os.getpid())
    has_descriptors = own.descriptor >= 0
    own.close()
    if has_descriptors:
        popen.close()
    return has_descriptors


def watch_the_parent() -> None:
    """Makes `multiprocessing.parent_process` monitor the parent through a pidfd, because `close_pipes` has closed the
    pipe that multiprocessing uses to monitor the parent. The kernel resumes a suspended child when the parent exits, so
    that the child can exit, too.
    """
    continue_with_parent()
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid != os.getppid():
        return
    watch = Pidfd(parent.pid)
    if watch.descriptor >= 0:
        os.dup2(watch.descriptor, parent.sentinel, inheritable=False)
        watch.close()


def sentinels(children: Iterable[ChildProcess]) -> list[int]:
    return [one for one in (child.sentinel() for child in children) if one >= 0]


def wait_for_all(children: Sequence[ChildProcess], seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
    """Waits until all children have exited, `seconds` have passed, or `enough` returns True. Returns whether all have
    exited.
    """
    deadline = time.monotonic() + seconds
    while True:
        running = [child for child in children if not child.ended]
        left = deadline - time.monotonic()
        if not running or left <= 0 or enough():
            return not running
        try:
            connection.wait(sentinels(running), min(left, POLL_INTERVAL))
        except (ValueError, OSError) as error:  # another thread may have closed a file descriptor
            raise_if_of_handler(error)
