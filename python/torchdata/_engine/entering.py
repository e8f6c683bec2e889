"""The first steps of every child: it ignores Ctrl-C, drops what it inherited, and sees to it that it ends with main.

Role: called first in a child, of whatever kind: a worker of a loader, the dispatching process, a process of a node.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torchdata._engine.beginning import end_early_watch
from torchdata._engine.crossing import Handle, close_inherited_pipes
from torchdata._engine.interrupts import ignore_interrupts
from torchdata._engine.obituary import CANNOT_WATCH
from torchdata._native import BellBoard, Link, StatsBoard, drop_inherited, exit_with_parent

__all__ = ["CommonSetup", "enter_child"]

#: Bytes of the largest block that glibc's allocator learns from (`M_MMAP_THRESHOLD` in mallopt(3)), less its header.
_LARGEST_LEARNT = (32 << 20) - (64 << 10)


@dataclass
class CommonSetup:
    """What the setups of children have in common."""

    bells: Handle[BellBoard]
    main_pid: int
    #: Whether main is this process's parent, as it is under fork and spawn.
    is_child_of_main: bool
    gc_thresholds: tuple[int, int, int]

    @classmethod
    def under(cls, start_method: str, bells: BellBoard) -> CommonSetup:
        """That of children which this process, main, starts.

        Args:
            start_method: multiprocessing's name of how.
            bells: the bells of all processes.
        """
        return cls(Handle(bells), os.getpid(), start_method != "forkserver", gc.get_threshold())

    def enter(self, name: str, links: Sequence[Link]) -> bool:
        """See `enter_child`."""
        return enter_child(
            name, links, self.bells.shared, main_pid=self.main_pid, is_child_of_main=self.is_child_of_main
        )


def enter_child(
    name: str,
    links: Sequence[Link],
    bells: BellBoard,
    stats: StatsBoard | None = None,
    *,
    main_pid: int,
    is_child_of_main: bool,
) -> bool:
    """Makes this process a child of the engine.

    Args:
        name: what the child is called in messages.
        links: the links that are its own.
        bells: the bells of all processes.
        stats: the board on which it counts, if it does.
        main_pid: the process with which it is to end.
        is_child_of_main: whether that is its parent, as it is under fork and spawn.

    Returns:
        Whether there is anything to do: False where main is gone already.
    """
    ignore_interrupts()
    close_inherited_pipes()
    drop_inherited(links, bells, stats)
    end_early_watch()
    _keep_freed_memory()
    try:
        exit_with_parent(main_pid)
    except ProcessLookupError:  # main is gone already
        return False
    except OSError as error:  # without it this process might outlive main for ever
        print(f"torchdata {name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_WATCH)
    return not is_child_of_main or os.getppid() == main_pid


def _keep_freed_memory() -> None:
    """Lets the allocator keep up to twice so much memory that was freed, rather than give it back at once.

    What a child makes for one batch, it frees and makes again for the next. Given back in between, each page of it
    costs a fault: a tenth of the time where images are decoded. glibc learns that from the large blocks that it sees
    freed; in a child these lie in shared memory, and it sees none. So it is shown one, which is never touched. Limits
    that the user has set (`MALLOC_TRIM_THRESHOLD_`) stay as they are.
    """
    bytes(_LARGEST_LEARNT)
