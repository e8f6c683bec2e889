"""Runs in every child process, opens the child's links, and receives commands.

At its start, a child ignores signals, closes inherited resources, and ensures that it exits with the main process.
Then, the child loads its program.

After the start of a child, garbage collection ignores all existing objects. Importing torch creates 250,000 permanent
objects, and searching them takes a tenth of the import time. In a forked child, garbage collection would write to every
page with an inherited object, so the kernel would copy the page.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from torchdata import _engine
from torchdata._engine.items.codec import loads
from torchdata._engine.items.failures import describe, reraise
from torchdata._engine.processes.crossing import EARLY_THRESHOLD, Handle, SharedPickle
from torchdata._engine.processes.exit_messages import CANNOT_WATCH
from torchdata._engine.processes.forking_process import Inherited
from torchdata._engine.processes.interrupts import MainSignals
from torchdata._engine.processes.process import close_inherited, watch_the_parent
from torchdata._engine.processes.strangers import note_child
from torchdata._engine.workers.program import Program, Runner
from torchdata._importing import call_when_imported
from torchdata._native import (
    BellBoard,
    Collector,
    Link,
    Sender,
    StatsBoard,
    drop_inherited,
    exit_with_parent,
    name_process,
)
from torchdata._observe.stats.counting import Counting
from torchdata._reporting import begin_at

#: The index of the main process in the `BellBoard`, through which processes wake each other.
MAIN = 0
#: The size in bytes of the largest block that glibc's allocator adapts to (`M_MMAP_THRESHOLD` in mallopt(3)), minus the
#: block's header.
_LARGEST_LEARNT = (32 << 20) - (64 << 10)
#: The number of seconds without a command after which a child returns freed memory to the system. If the child returned
#: freed memory after a shorter time, it would spend a noticeable part of the next epoch on page faults.
LONG_IDLE = 5


class CommonSetup(NamedTuple):
    bells: Handle[BellBoard]
    main_pid: int
    #: Whether the main process is this process's parent; True unless the start method is "forkserver".
    is_child_of_main: bool
    gc_thresholds: tuple[int, int, int]
    signals: MainSignals
    #: The line of the user's program that started the children. `begun_at` is None for a child on another machine, and
    #: for a forked child, which finds the line in its own stack.
    begun_at: tuple[str, int, str] | None

    @classmethod
    def under(cls, start_method: str, bells: BellBoard, begun_at: tuple[str, int, str] | None = None) -> CommonSetup:
        is_child_of_main = start_method != "forkserver"
        begun_at = None if start_method == "fork" else begun_at
        return cls(Handle(bells), os.getpid(), is_child_of_main, gc.get_threshold(), MainSignals.now(), begun_at)

    def enter(self, name: str, links: Sequence[Link], stats: StatsBoard | None = None) -> bool:
        """Returns False if the main process has already exited."""
        self.signals.leave_to_main()
        note_child()
        if self.begun_at is not None:
            begin_at(self.begun_at)
        close_inherited()
        watch_the_parent()
        drop_inherited(links, self.bells.shared, stats)
        _keep_freed_memory()
        _keep_memory_of_tensors()
        try:
            exit_with_parent(self.main_pid)
        except ProcessLookupError:
            return False
        except OSError as error:  # without the watch, this process might outlive the main process
            print(f"torchdata {name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
            sys.exit(CANNOT_WATCH)
        return not self.is_child_of_main or os.getppid() == self.main_pid


class Lines(NamedTuple):
    #: The link that transmits commands from the main process.
    control: Handle[Link]
    #: The links that transmit items to the main process or to each worker.
    outputs: list[Handle[Link]]
    #: In a worker, the link that transmits items of the dispatching process.
    dispatched: Handle[Link] | None

    def all(self) -> list[Handle[Link]]:
        return [self.control, *self.outputs, *([] if self.dispatched is None else [self.dispatched])]


@dataclass
class ChildSetup:
    name: str
    #: The child's index in the `BellBoard`: from 1 on for workers, and the last index for the dispatching process.
    index: int
    page: int
    worker_id: int
    #: The number of the worker in statistics, where the workers of all groups of a loader are numbered together.
    number: int
    num_workers: int
    shards: range
    num_shards: int
    dispatches: bool
    program: Program | SharedPickle | Inherited
    #: The module and the name of the program's class.
    program_class: tuple[str, str]
    common: CommonSetup
    stats: Handle[StatsBoard]
    lines: Lines
    output_peers: list[int]
    dispatcher_index: int
    dispatcher_page: int
    #: The number of items that the dispatching process may be ahead of each worker.
    window: int
    #: The result of `snapshots.cadence`.
    cadence: tuple[float, float]
    #: The size in bytes of the largest snapshot that the child sends, until the main process requests larger ones; None
    #: for no limit.
    largest_snapshot: int | None = None

    @property
    def modules(self) -> list[str]:
        needed = () if isinstance(self.program, Inherited) else self.program.modules
        return [self.program_class[0], *needed]

    @property
    def where(self) -> str:
        """The child's name in error messages. The article "the" is omitted, because existing programs search messages
        for the name without the article."""
        return self.name.removeprefix("the ")


def run_child(setup: ChildSetup) -> None:
    try:
        setup.stats.shared = setup.stats.shared.here()
    except RuntimeError:  # the shared memory of the counters is damaged
        if setup.stats.replacement is None:
            raise
        setup.stats.shared = setup.stats.replacement()
    links = [handle.shared for handle in setup.lines.all()]
    if not setup.common.enter(setup.name, links, setup.stats.shared):
        return
    name_process("td_dispatch" if setup.dispatches else f"td_worker_{setup.number}")
    # The program is imported before `ChildLoop` opens the control link, because until the link is open, a shutdown
    # kills the child without waiting for the slow import.
    module, name = setup.program_class
    runner: type[Runner] = getattr(importlib.import_module(module), name).runner
    child = ChildLoop(setup, runner.is_interrupted)
    child.run(runner(child))


class ChildLoop:
    """Receives commands in a child. `is_interrupted`: whether a command that arrives during an epoch stops the sending
    of items after the current item.
    """

    def __init__(self, setup: ChildSetup, is_interrupted: bool) -> None:
        self.setup = setup
        board, control = setup.common.bells.shared, setup.lines.control.shared
        outputs = [handle.shared for handle in setup.lines.outputs]
        self.commands = Collector([control], board, setup.index, [MAIN], _refuse, name="main")
        interrupting = control if is_interrupted else None
        shards = len(setup.shards)
        self.sender = Sender(outputs, board, setup.index, setup.output_peers, interrupting, shards)
        self.dispatched: Collector | None = None
        if setup.lines.dispatched is not None:
            self.dispatched = Collector(
                [setup.lines.dispatched.shared],
                board,
                setup.index,
                [setup.dispatcher_index],
                raise_failure,
                name="the dispatching process",
                on_demand=True,
            )
        self.counting = Counting(setup.stats.shared, setup.page)
        self.counting.adopt_child(setup, self.sender, self.dispatched, self.commands)

    def run(self, runner: Runner) -> None:
        setup = self.setup
        try:
            _limit_threads()  # before the import of user code, which may start torch's threads
            program = setup.program
            if isinstance(program, SharedPickle):
                shared, program = program, program.load(loads, is_permanent=True)
                shared.close()
            _engine.current_sender = self.sender
            runner.prepare(program)
        except BaseException as error:
            runner.failure = describe(error, setup.where)
        _restore_gc(setup.common.gc_thresholds)
        while runner.execute(self.next_command()):
            pass
        self.counting.close()
        gc.unfreeze()  # so that the interpreter finalizes user objects in reference cycles at exit

    def next_command(self) -> tuple[Any, ...]:
        """Waits for a command, and meanwhile returns unused memory to the system."""
        idle_seconds = 0
        while True:
            looks_again = self.sender.tidy() or idle_seconds < LONG_IDLE
            command: tuple[Any, ...] | None = self.commands.receive(0, 1.0 if looks_again else None)
            if command is not None:
                return command
            idle_seconds += 1
            if idle_seconds == LONG_IDLE:
                _return_freed_memory()


def raise_failure(_peer: int, description: Any) -> NoReturn:
    """Raises the exception that a process has sent instead of an item."""
    reraise(description)


def _refuse(_peer: int, description: Any) -> NoReturn:
    raise RuntimeError(f"the main process has sent an error instead of a command: {description!r}")


def _keep_freed_memory() -> None:
    """Makes glibc keep freed memory, which it otherwise returns to the system.

    A child frees the objects of one batch, and allocates objects of the same sizes for the next batch. Each page that
    glibc has returned to the system causes a page fault when the child uses it again. If glibc returned freed memory, a
    worker that decodes images would spend a tenth of its time on page faults. When a process frees a large block, glibc
    raises its limit for kept memory, but a child with all large arrays in shared memory may never free a large block.
    To raise glibc's limit for kept memory, the function allocates and frees one large block, without touching its
    pages. A limit that the user has set by `MALLOC_TRIM_THRESHOLD_` remains in effect.
    """
    bytes(_LARGEST_LEARNT)


def _return_freed_memory() -> None:
    """Returns to the system the memory that glibc has kept (see `_keep_freed_memory`).

    For example, an idle child that had filled a `shuffle` buffer of 400 MB uses 17 MB after this call, and would use
    446 MB without it.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):  # other C libraries lack the function
        import ctypes  # importing the module earlier would delay the first item

        ctypes.CDLL(None).malloc_trim(0)


def _keep_memory_of_tensors() -> None:
    """Makes torch request huge pages for large tensors, unless the user has disabled huge pages.

    Without huge pages, older releases of glibc leave a gap next to each tensor, because torch aligns tensors to 64
    bytes. Because of the gaps, the memory of a freed tensor is slightly too small for the next tensor of the same size,
    so the process grows with each tensor. For example, a worker that keeps a small tensor and frees a tensor of 20 MB
    for each item grows by 1.2 GB in 60 items, but by only 20 MB with huge pages. With huge pages, filling a tensor of
    20 MB causes 0 page faults instead of 4,864 (glibc 2.36). Torch reads `THP_MEM_ALLOC_ENABLE` when it creates its
    first tensor. If the main process has already created a tensor, forked children ignore `THP_MEM_ALLOC_ENABLE`.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _restore_gc(thresholds: tuple[int, int, int]) -> None:
    """Restores the thresholds of garbage collection after the start of a child, unless user code has changed them."""
    if gc.get_threshold()[0] == EARLY_THRESHOLD:
        gc.set_threshold(*thresholds)
    gc.freeze()


def _limit_threads() -> None:
    """Limits torch's operators to one thread per child, because the workers run in parallel."""

    def limit(torch: Any) -> None:
        torch.set_num_threads(1)

    def limit_late(torch: Any) -> None:
        limit(torch)
        gc.freeze()  # garbage collection then skips the objects of torch

    torch = sys.modules.get("torch")
    if torch is not None:
        limit(torch)
    else:
        call_when_imported("threads", {"torch": limit_late})
