"""The links of a group's children, and the memory that they may use.

Role: main makes the links and hands them to the children; each side takes its ends of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from torchdata._engine.processes.crossing import Handle
from torchdata._native import Link

__all__ = ["MAIN", "Lines", "default_budget"]

#: Index of main's bell.
MAIN = 0


def default_budget() -> int:
    """Shared memory that all links of one group may use: a quarter of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


@dataclass
class Lines:
    """The links of one child."""

    #: From main, with commands.
    control: Handle[Link]
    #: Where the items go: to main, or to each worker.
    outputs: list[Handle[Link]]
    #: From the dispatching process, in a worker.
    dispatched: Handle[Link] | None

    def all(self) -> list[Handle[Link]]:
        """All of them."""
        return [self.control, *self.outputs, *([] if self.dispatched is None else [self.dispatched])]
