"""Ending the children of one loader: asked, terminated, killed, reaped, whatever happens meanwhile.

Role: main's side of a child's end. `ChildProcess` knows whether a child has ended, whoever reaped it; `Ending` ends all
of them, from wherever it is called first and as often as it is called: it goes on where it was cut off.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from torchdata._engine.crossing import note_pipes
from torchdata._engine.interrupts import InterruptsHeld
from torchdata._native import BellBoard, Link, Sender

__all__ = ["ChildProcess", "Ending"]

#: How long a child may take to finish what it does after it was asked to stop.
ASKED = 3.0
#: How long it may take after SIGTERM.
TERMINATED = 1.0
#: The same where somebody presses Ctrl-C.
TERMINATED_IN_A_HURRY = 0.2
#: How long it may take after SIGKILL, which nothing but the kernel can hold up.
KILLED = 5.0
#: The order that is later than any epoch.
STOP = 1 << 32
#: Seconds between two looks at who has ended, where nothing tells.
LOOK = 0.02


class ChildProcess:
    """The process of one child, whoever reaps it.

    A program that ignores SIGCHLD, or whose handler reaps all children, keeps multiprocessing from learning that one
    has ended: it takes such a child for alive for ever. The kernel's answer that there is no such child tells.

    Args:
        process: multiprocessing's process, not started yet.
        name: what the child is called in messages.
    """

    def __init__(self, process: BaseProcess, name: str) -> None:
        self.name = name
        #: Its process number, once started.
        self.pid: int | None = None
        #: Its exit code, negative for a signal; None while it runs, and where nobody knows it.
        self.exitcode: int | None = None
        self._process = process
        self._ended = False
        self._closed = False

    def start(self) -> None:
        """Starts it."""
        self._process.start()
        note_pipes(self._process)
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, or was never started."""
        if not self._ended and self.pid is not None:
            try:
                self.exitcode = self._process.exitcode  # reaps it
                self._ended = self.exitcode is not None or self._was_reaped_by_others()
            except ValueError:  # closed meanwhile, by another thread or by what interrupted this one
                self._ended = True
        return self._ended or self.pid is None

    def _was_reaped_by_others(self) -> bool:
        popen: Any = self._process._popen  # type: ignore[attr-defined]
        if popen.method == "forkserver":  # the server's child, which it reaps itself
            return False
        if not _is_nobodys_child(popen.pid):
            return False
        # Nobody is to send a signal to this number any more: it may belong to another process by now.
        popen.returncode = 0
        return True

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended; returns whether it has."""
        return _wait([self], seconds)

    def sentinel(self) -> int:
        """A descriptor that becomes readable when it ends."""
        return self._process.sentinel

    def terminate(self) -> None:
        """Sends SIGTERM."""
        if not self.ended:
            with contextlib.suppress(ValueError):  # closed meanwhile
                self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL."""
        if not self.ended:
            with contextlib.suppress(ValueError):
                self._process.kill()

    def close(self) -> None:
        """Gives its descriptors back, once it has ended."""
        if not self._closed and self.pid is not None:
            self._closed = True
            self._process.close()


def _is_nobodys_child(pid: int) -> bool:
    """Whether this process has no child of that number, not even one that has ended."""
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _wait(children: list[ChildProcess], seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
    """Waits until all have ended, but not longer than so many seconds or than until it is `enough`."""
    deadline = time.monotonic() + seconds
    while True:
        running = [child for child in children if not child.ended]
        left = deadline - time.monotonic()
        if not running or left <= 0 or enough():
            return not running
        # Not the sentinels alone: a process that a child has started may hold its other end.
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            connection.wait([child.sentinel() for child in running], min(left, LOOK))


class Ending:
    """Ends the children of a loader; harmless in a forked child that inherited the object.

    Args:
        children: the children, some of which may not be started. Owned by this object from now on.
        controls: the link over which each takes its commands, once it is up.
        bells: what is to live as long as they do.
    """

    def __init__(self, children: list[ChildProcess], controls: list[Link], bells: BellBoard) -> None:
        self._owner_pid = os.getpid()
        self._children = children
        self._controls = controls
        self._bells = bells
        #: Over which each child is asked to stop, once they all can be.
        self.commanders: list[Sender] = []

    def run(self, later: bool = False) -> None:
        """Asks, waits, terminates, kills, reaps. Ctrl-C hurries it up, and is delivered when nothing is left.

        Args:
            later: deliver it when the caller has returned, as `InterruptsHeld` says.
        """
        if os.getpid() != self._owner_pid:
            return
        with InterruptsHeld(later) as held:
            children = list(self._children)
            for child, control in zip(children, self._controls, strict=True):
                if (
                    not control.has_consumer()
                ):  # it still imports the program: nothing in it is to be finished
                    child.terminate()
            self._ask(held)
            for child in children:
                child.terminate()
            if not _wait(children, TERMINATED, lambda: held.noted) and held.noted:
                _wait(children, TERMINATED_IN_A_HURRY)
            for child in children:
                child.kill()
            if not _wait(children, KILLED):
                stuck = ", ".join(f"{child.name} (pid {child.pid})" for child in children if not child.ended)
                warnings.warn(
                    f"{stuck} did not end within {KILLED:.0f} s of SIGKILL: it is stuck in the kernel, most often in "
                    "a file system that does not answer",
                    RuntimeWarning,
                    stacklevel=2,
                )
            for child in children:
                if child.ended:
                    child.close()
            self._children.clear()
            self._controls.clear()
            self.commanders.clear()

    def _ask(self, held: InterruptsHeld) -> None:
        """Asks all children to stop, and waits until they have, if they all can be asked."""
        if len(self.commanders) != len(self._children):
            return
        deadline = time.monotonic() + ASKED
        for commander in list(self.commanders):
            with contextlib.suppress(Exception):
                commander.send_message(("stop",), min(0.1, max(0.0, deadline - time.monotonic())), STOP)
        _wait(list(self._children), deadline - time.monotonic(), lambda: held.noted)

    def run_later(self) -> None:
        """What the finaliser calls: an exception could not leave it."""
        self.run(later=True)
