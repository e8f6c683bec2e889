"""Processes that others have forked for this one: whether one has ended, and signals that reach no other of its number.

Role: what main does itself for children that are not its own. Their parent reaps them, and may itself be gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

__all__ = ["Pidfd", "is_ready"]


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

    def reap(self) -> int | None:
        """Its exit code, negative for a signal, if its parent has ended and it is left to this process; else None.

        The first process of a container is one to which such processes are left.
        """
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if pid else None

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            if self.descriptor >= 0:  # its number may be another's soon
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self._pid, number)

    def close(self) -> None:
        """Gives its descriptor back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_ready(descriptor: int, seconds: float, events: int = select.POLLIN) -> bool:
    """Whether a descriptor can be read, or written; `select` knows none beyond 1023."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))
