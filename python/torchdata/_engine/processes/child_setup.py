"""The first steps of every child: it leaves signals to main, drops what it inherited, and ties its life to main's.

Role: called first in a child, of whatever kind: a worker of a loader, the dispatching process, a process of a node.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torchdata._engine.processes.bootstrap import end_early_watch
from torchdata._engine.processes.crossing import Handle, close_inherited_pipes
from torchdata._engine.processes.exit_messages import CANNOT_WATCH
from torchdata._engine.processes.interrupts import MainSignals
from torchdata._engine.processes.strangers import note_child
from torchdata._native import BellBoard, Link, StatsBoard, drop_inherited, exit_with_parent

__all__ = ["CommonSetup"]

#: Bytes of the largest block that glibc's allocator learns from (`M_MMAP_THRESHOLD` in mallopt(3)), less its header.
_LARGEST_LEARNT = (32 << 20) - (64 << 10)


@dataclass
class CommonSetup:
    """The common part of all children's setups."""

    bells: Handle[BellBoard]
    #: The process with which the child is to end.
    main_pid: int
    #: Whether main is this process's parent, as it is under fork and spawn.
    is_child_of_main: bool
    #: Main's thresholds for collecting cyclic garbage.
    gc_thresholds: tuple[int, int, int]
    signals: MainSignals

    @classmethod
    def under(cls, start_method: str, bells: BellBoard) -> CommonSetup:
        """That of children which this process, main, starts.

        Args:
            start_method: multiprocessing's name of how.
            bells: the bells of all processes.
        """
        is_child_of_main = start_method != "forkserver"
        return cls(Handle(bells), os.getpid(), is_child_of_main, gc.get_threshold(), MainSignals.now())

    def enter(self, name: str, links: Sequence[Link], stats: StatsBoard | None = None) -> bool:
        """Makes this process a child of the engine.

        Args:
            name: what the child is called in messages.
            links: the links that are its own.
            stats: the board on which it counts, if it does.

        Returns:
            Whether there is anything to do: False if main is gone already.
        """
        self.signals.leave_to_main()
        note_child()
        close_inherited_pipes()
        drop_inherited(links, self.bells.shared, stats)
        end_early_watch()
        _keep_freed_memory()
        _keep_memory_of_tensors()
        try:
            exit_with_parent(self.main_pid)
        except ProcessLookupError:  # main is gone already
            return False
        except OSError as error:  # without it this process might outlive main for ever
            print(f"torchdata {name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
            sys.exit(CANNOT_WATCH)
        return not self.is_child_of_main or os.getppid() == self.main_pid


def _keep_freed_memory() -> None:
    """Lets the allocator keep up to twice so much memory that was freed, rather than give it back at once.

    A child frees the objects of one batch, and allocates the same sizes for the next. Given back in between, each page
    costs a fault: a tenth of the time if images are decoded. glibc learns that from the large blocks that it sees
    freed; in a child these lie in shared memory, and it sees none. So it is shown one, which is never touched. Limits
    that the user has set (`MALLOC_TRIM_THRESHOLD_`) stay as they are.
    """
    bytes(_LARGEST_LEARNT)


def _keep_memory_of_tensors() -> None:
    """Lets torch ask for large pages for large tensors, unless the user has said that it shall not.

    Torch aligns each tensor to 64 bytes. Older releases of glibc leave a gap beside it for that, which may never be
    filled: then the next tensor of the same size does not fit where the last one was. The process grows by one tensor
    with each, and all their pages are new. With large pages the alignment is that of a page, and gaps of that size are
    closed again. Measured in a worker, glibc 2.36: filling a tensor of 20 MB took 4,864 page faults and takes none, one
    of 38 MB 9,729 and 531. A worker that kept a small tensor beside each large one of 20 MB had grown by 1.2 GB after
    60 items, and grows by 20 MB. Torch looks at this once, for its first tensor: under fork that may be one of main's,
    and then it is as in main.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
