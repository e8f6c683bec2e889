"""A child process from the view of its parent: the process id, a descriptor for the process, and its exit.

Role: the base class for the children of each start method. `Popen` of multiprocessing creates each process, so that the
process starts and exits like other processes of multiprocessing. After the start, this module owns the process. The
process is not in multiprocessing's list of children, because multiprocessing's exit handler sends SIGTERM, which the
engine's children ignore, to all processes in this list, and waits for the processes. The kernel reports whether a
process has exited, through a descriptor for the process if the system supports it.
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
from torchdata._native import OwnedDescriptor, continue_with_parent

#: The number of seconds between two checks for exited processes, if the system does not report exits.
LOOK = 0.02


class Closes(Protocol):
    def close(self) -> None: ...


#: Resources that only the main process needs for the children of all its loaders, by their `id()`. The dictionary does
#: not use weak references, because an exception of a signal handler would be lost in the Python callback of a weak
#: reference.
_mains: dict[int, Closes] = {}


def keep_from_children(one: Closes) -> None:
    _mains[id(one)] = one


def close_here(one: Closes) -> None:
    """Closes an object that children must not inherit."""
    _mains.pop(id(one), None)
    one.close()


def close_inherited() -> None:
    """In a child, closes the inherited resources that the main process uses for the other children of all its
    loaders."""
    while _mains:
        _mains.popitem()[1].close()


class Pidfd:
    """Another process, identified by a descriptor if the system supports it, otherwise by its process id.

    Args:
        pid: the id of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: A descriptor that becomes readable when the process exits; -1 if there is none.
        self.descriptor = -1
        with contextlib.suppress(AttributeError, OSError):
            self.descriptor = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """Returns whether the process has exited. If the process has no descriptor, an exit is only detected after the
        process was reaped."""
        if self.descriptor >= 0:
            return is_ready(self.descriptor, 0)
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, if it exists."""
        with contextlib.suppress(ProcessLookupError):
            if self.descriptor >= 0:  # without a descriptor, the id could soon belong to another process
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self._pid, number)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1  # cleared first, because another thread may fork now
        if descriptor >= 0:
            os.close(descriptor)


def reap(pid: int) -> int | None:
    """Returns the exit code of a child of this process, negative for a signal; None while it runs. Raises
    ChildProcessError if the process is not a child of this process, or other code has reaped it."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def is_ready(descriptor: int, seconds: float, events: int = select.POLLIN) -> bool:
    """Returns whether a descriptor can be read or written. `select` does not support descriptors above 1023."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))


class ChildProcess(ABC):
    """A child process. Other code may reap the process before this class does.

    Exit codes are unavailable if a program ignores SIGCHLD, or if its handler of SIGCHLD reaps all children. If the
    kernel reports that the child does not exist, the child has exited.

    Args:
        name: the name of the child in messages.
        process_name: the name that `multiprocessing.current_process` has in the child.
    """

    #: Whether the child's memory began as a copy of the main process's memory, as with start method "fork".
    is_copy_of_main = False

    def __init__(self, name: str, process_name: str) -> None:
        self.name = name
        #: Whether the caller of `start` calls `watch` itself. A caller that starts several children does so after the
        #: last start, so that the children inherit fewer descriptors.
        self.is_watched_later = False
        self._process_name = process_name
        self.forget_process()

    def forget_process(self) -> None:
        """Resets the object, as if the child had not been started."""
        #: The process id, or None before the process was started.
        self.pid: int | None = None
        #: The exit code, negative for a signal; None while the process runs, or if the code is unknown.
        self.exitcode: int | None = None
        #: Whether the exit code is unknown because the forking process has exited before the child.
        self.is_orphan = False
        #: For a worker on another machine, a description of its exit; messages contain this description instead of the
        #: exit code.
        self.told: str | None = None
        self._watch: Pidfd | None = None
        #: The object that holds multiprocessing's pipes to the child, if the system lacks process descriptors.
        self._pipes: Popen | None = None
        self._has_ended = False

    @abstractmethod
    def _launch(self) -> int:
        """Creates the process, and returns its id."""

    def start(self) -> None:
        """Starts the process. Signals that the main process handles are delivered after the start is complete. Raises
        OSError if the system cannot start another process; the message names the child and the remedy."""
        try:
            with interrupts_blocked():
                self.pid = self._launch()
                if not self.is_watched_later:
                    self.watch()
        except OSError as error:
            raise why_not_started(self.name, error) from error

    def watch(self) -> None:
        """Creates the descriptor that reports the exit of the process, if the process runs and has no descriptor
        yet."""
        if self._watch is None and self.pid is not None and not self._has_ended:
            self._watch = Pidfd(self.pid)
            keep_from_children(self._watch)

    def _take_over(self, popen: Popen) -> int:
        """Takes over a process that multiprocessing has started, and returns its id."""
        self._pipes = None if close_pipes(popen) else popen
        return popen.pid

    @property
    def ended(self) -> bool:
        if self.pid is not None and not self._has_ended:
            self._look(self.pid)
        return self._has_ended or self.pid is None

    def _look(self, pid: int) -> None:
        """Checks whether the process has exited, and with which code."""
        try:
            code = reap(pid)
        except ChildProcessError:  # from now on, the id may belong to another process
            self._has_ended = True
            return
        if code is not None:  # another thread may have received the code in the meantime
            self.exitcode, self._has_ended = code, True

    def wait(self, seconds: float) -> bool:
        """Waits until the process has exited. Returns whether the process has exited."""
        return wait_for_all([self], seconds)

    def sentinel(self) -> int:
        """Returns a descriptor that becomes readable when the process exits; -1 if there is none."""
        if self._pipes is not None:
            return int(self._pipes.sentinel)
        return -1 if self._watch is None else self._watch.descriptor

    @property
    def sign(self) -> int | OwnedDescriptor:
        """Returns what a reader of links monitors to detect the exit: the process id, or a descriptor that becomes
        readable when the process exits."""
        return self.pid or 0

    @property
    def is_up(self) -> bool:
        """Returns whether the process is running. A worker on another machine may have been requested without running
        yet."""
        return True

    def has_page(self, page: dict[str, Any]) -> bool:
        """Returns whether this process, and not an earlier process that it replaces, has written a page of counters."""
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
        """Returns how many seconds the threads of the process have run or waited for a processor; None if unknown.

        Args:
            page: the counters of the process. For a process on another machine, the result is read from `page`.
        """
        from torchdata._observe.stats.processor import working_time

        return working_time(self.pid or 0)

    def where_it_stands(self, page: dict[str, Any] | None, wakes: bool = False) -> tuple[str, str]:
        """Returns the kernel's description of the process's state, and its Python stacks or the reason why there are
        none."""
        from torchdata._observe.outside.stacks import where_it_stands

        number, descriptor = (page["signal"], page["stack"]) if page is not None else (0, 0)
        return where_it_stands(self.pid or 0, number, descriptor, wakes=wakes)

    @property
    def called(self) -> str:
        """Returns the name of the process and its machine, for messages about its exit."""
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
    """Closes the parent's ends of multiprocessing's pipes to a process. Children that are started later would inherit
    the pipes.

    The pipes are not needed, because descriptors report the exits of the child and of its parent (`watch_the_parent`).

    Returns:
        Whether the ends were closed. If the system lacks process descriptors, the pipes stay open.
    """
    own = Pidfd(os.getpid())
    has_descriptors = own.descriptor >= 0
    own.close()
    if has_descriptors:
        popen.close()
    return has_descriptors


def watch_the_parent() -> None:
    """In a child, makes `multiprocessing.parent_process` monitor the parent through a descriptor for that process.

    By default, `parent_process` monitors a pipe, but the parent has closed the pipe's other end (`close_pipes`). If the
    child is stopped, the kernel continues it when the parent exits, so that the child can exit, too.
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
    """Returns the descriptors that become readable when children exit, for all children that have a descriptor."""
    return [one for one in (child.sentinel() for child in children) if one >= 0]


def wait_for_all(children: Sequence[ChildProcess], seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
    """Waits until all children have exited, but at most `seconds`, or until `enough` returns True.

    Returns:
        Whether all children have exited.
    """
    deadline = time.monotonic() + seconds
    while True:
        running = [child for child in children if not child.ended]
        left = deadline - time.monotonic()
        if not running or left <= 0 or enough():
            return not running
        with contextlib.suppress(ValueError, OSError):  # the descriptor was closed in the meantime
            connection.wait(sentinels(running), min(left, LOOK))


def wait_for_any(children: Sequence[ChildProcess], seconds: float) -> None:
    """Waits until one of the children is known to have exited, but at most `seconds`."""
    wait_for_all(children, seconds, lambda: any(child.ended for child in children))
