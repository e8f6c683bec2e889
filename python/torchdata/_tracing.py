"""The trace of this process, if there is one: the one place where pipes and processes ask for it.

Role: at the bottom, so that pipes can ask without knowing who answers. Runs in every process; a forked child begins
without a trace, until its first epoch says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchdata._native import StatsBoard, TraceLog

__all__ = ["Registration", "Traceable", "Writing", "current", "switch"]

#: The log, the pipe's number in it, and what makes ranges for profilers.
Registration = tuple["TraceLog", int, Callable[[bool], None] | None]


class Traceable(Protocol):
    """A child that can write a log."""

    def carried_log(self, capacity: int) -> Any:
        """The `CarriedLog` that a child on another machine writes until it is stopped; None: it is on this one."""


class Writing(Protocol):
    """A trace that this process writes."""

    def register(self, datapipe: Any) -> Registration:
        """Gives a pipe that is about to be iterated its number."""

    def path_for(self, board: StatsBoard, page: int, name: str, child: Traceable) -> str | None:
        """In main: where the child of that page finds the log that it is to write; None: it writes none."""


#: The trace that this process writes, if it does. Looked at where an iterator is made, never for an item.
current: Writing | None = None


def switch(writing: Writing | None) -> None:
    """Makes it the trace that this process writes; None: it writes none any more."""
    global current
    current = writing


os.register_at_fork(after_in_child=lambda: switch(None))
