"""The child's side of a group: its startup, its ends of the links, and the loop that receives commands.

Role: runs in every child, for any program. At its start (`CommonSetup`), a child leaves signals to the main process,
closes inherited resources, and ensures that it exits with the main process. After this preparation, the child opens its
ends of the links, loads the program, and passes commands to the program's runner until the command to stop arrives.

Python's cyclic garbage collector does not search objects that a child imports at its start or keeps until its end.
Importing torch creates a quarter of a million permanent objects. Searching the imported objects for cycles takes a
tenth of the import time, and each later full search takes the same time again. In a forked child, a search for cycles
also writes to every page that holds an inherited object, so the kernel copies the page.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torchdata import _engine
from torchdata._engine.items.codec import loads
from torchdata._engine.items.failures import describe, reraise
from torchdata._engine.processes.crossing import EARLY_THRESHOLD, Handle, SharedPickle, end_early_watch
from torchdata._engine.processes.exit_messages import CANNOT_WATCH, DAMAGED
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

#: The index of the main process's wake-up word.
MAIN = 0
#: The largest block that glibc's allocator adapts to (`M_MMAP_THRESHOLD` in mallopt(3)), minus the block's header, in
#: bytes.
_LARGEST_LEARNT = (32 << 20) - (64 << 10)
#: The number of seconds between two attempts to return unused shared memory while no command arrives.
IDLE = 1.0


@dataclass
class CommonSetup:
    """The part of the setup that all children have in common."""

    bells: Handle[BellBoard]
    #: The process number of the main process. The child exits when the main process exits.
    main_pid: int
    #: Whether the main process is the parent of this process, as with "fork" and "spawn".
    is_child_of_main: bool
    #: The main process's thresholds for cyclic garbage collection.
    gc_thresholds: tuple[int, int, int]
    signals: MainSignals
    #: The line of the user's program that started the children, from `place_outside`. `begun_at` is None if the child's
    #: own stack contains the line, or if the program runs on another machine.
    begun_at: tuple[str, int, str] | None

    @classmethod
    def under(cls, start_method: str, bells: BellBoard, begun_at: tuple[str, int, str] | None = None) -> CommonSetup:
        """Creates the setup for children that this process starts."""
        is_child_of_main = start_method != "forkserver"
        begun_at = None if start_method == "fork" else begun_at
        return cls(Handle(bells), os.getpid(), is_child_of_main, gc.get_threshold(), MainSignals.now(), begun_at)

    def enter(
        self,
        name: str,
        links: Sequence[Link],
        stats: StatsBoard | None = None,
    ) -> bool:
        """Makes this process a child of the engine.

        Args:
            stats: the board with the child's counters; None if the child has none.

        Returns:
            Whether the child should run; False if the main process has exited already.
        """
        self.signals.leave_to_main()
        note_child()
        if self.begun_at is not None:
            begin_at(self.begun_at)
        close_inherited()
        watch_the_parent()
        drop_inherited(links, self.bells.shared, stats)
        end_early_watch()
        _keep_freed_memory()
        _keep_memory_of_tensors()
        try:
            exit_with_parent(self.main_pid)
        except ProcessLookupError:  # the main process has already exited
            return False
        except OSError as error:  # this process might not exit with the main process
            print(f"torchdata {name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
            sys.exit(CANNOT_WATCH)
        return not self.is_child_of_main or os.getppid() == self.main_pid


@dataclass
class Lines:
    """The links of one child."""

    #: The control link, from the main process.
    control: Handle[Link]
    #: The links for items, to the main process or to each worker.
    outputs: list[Handle[Link]]
    #: In a worker, the link from the dispatching process.
    dispatched: Handle[Link] | None

    def all(self) -> list[Handle[Link]]:
        return [self.control, *self.outputs, *([] if self.dispatched is None else [self.dispatched])]


@dataclass
class ChildSetup:
    """Everything that one child needs."""

    #: The child's name in messages.
    name: str
    #: Index of the child's wake-up word. Workers have indices from 1, and the dispatching process has the last index.
    index: int
    #: Index of the child's page of counters.
    page: int
    worker_id: int
    #: The number of the worker in statistics, where the workers of all groups of the loader are numbered.
    number: int
    num_workers: int
    #: `shards` contains the numbers of the child's shards, and `num_shards` is the number of shards of all workers.
    shards: range
    num_shards: int
    #: Whether this is the dispatching process.
    dispatches: bool
    program: Program | SharedPickle | Inherited
    #: Module and name of the program's class. Importing the module takes long, except when the child inherits the
    #: imported module.
    program_class: tuple[str, str]
    common: CommonSetup
    #: The counters of all processes.
    stats: Handle[StatsBoard]
    lines: Lines
    #: The wake-up words of the processes that receive the items.
    output_peers: list[int]
    #: The index of the dispatching process's wake-up word, and of its page of counters.
    dispatcher_index: int
    dispatcher_page: int
    #: The number of items that the dispatching process may be ahead of each worker.
    window: int
    #: The minimum time between two snapshots: in seconds, and as a multiple of the last snapshot's duration.
    cadence: tuple[float, float]
    #: The maximum number of bytes of a snapshot that the child sends without a request; None for no limit. The limit
    #: does not apply once the main process wants larger snapshots.
    largest_snapshot: int | None = None

    @property
    def modules(self) -> list[str]:
        needed = () if isinstance(self.program, Inherited) else self.program.modules
        return [self.program_class[0], *needed]

    @property
    def where(self) -> str:
        """Returns the child's name for messages, without "the", because existing code matches such messages."""
        return self.name.removeprefix("the ")


def run_child(setup: ChildSetup) -> None:
    """The main function of every child process."""
    try:
        setup.stats.shared = setup.stats.shared.here()
    except RuntimeError:  # the counters are damaged
        if setup.stats.spare is None:
            raise
        setup.stats.shared = setup.stats.spare()
    links = [handle.shared for handle in setup.lines.all()]
    if not setup.common.enter(setup.name, links, setup.stats.shared):
        return
    name_process("td_dispatch" if setup.dispatches else f"td_worker_{setup.number}")
    # Importing the program does not delay a shutdown, because a shutdown waits only for children that have opened their
    # control links.
    module, name = setup.program_class
    runner: type[Runner] = getattr(importlib.import_module(module), name).runner
    child = ChildLoop(setup, runner.is_interrupted)
    child.run(runner(child))


class ChildLoop:
    """Contains the child's ends of its links, and the loop that receives commands.

    Args:
        setup: the setup of the child.
        is_interrupted: whether the pump, which sends the items, returns between two items if a command is waiting.
    """

    def __init__(self, setup: ChildSetup, is_interrupted: bool) -> None:
        self.setup = setup
        board, control = setup.common.bells.shared, setup.lines.control.shared
        outputs = [handle.shared for handle in setup.lines.outputs]
        self.commands = Collector([control], board, setup.index, [MAIN], _refuse, name="main")
        interrupting = control if is_interrupted else None
        shards = len(setup.shards)
        self.sender = Sender(outputs, board, setup.index, setup.output_peers, interrupting, shards)
        #: In a worker, the collector of dispatched items.
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
        #: The counters of this process.
        self.counting = Counting(setup.stats.shared, setup.page)
        self.counting.adopt_child(setup, self.sender, self.dispatched, self.commands)

    def run(self, runner: Runner) -> None:
        """Loads the program, and executes commands until the command to stop."""
        setup = self.setup
        try:
            _limit_threads()  # this call must precede every import of user code
            program = setup.program
            if isinstance(program, SharedPickle):
                shared, program = program, program.load(loads, is_permanent=True)
                shared.close()  # the memory is mapped, so the descriptor is not needed
            _engine.current_sender = self.sender
            runner.prepare(program)
        except BaseException as error:
            runner.failure = describe(error, setup.where)
        _settle(setup.common.gc_thresholds)
        while runner.obey(self.next_command()):
            pass
        self.counting.close()
        gc.unfreeze()  # at a normal exit, user objects in reference cycles are then finalized

    def next_command(self) -> tuple[Any, ...]:
        """Waits for a command. Raises the same exceptions as `command_within`."""
        while (command := self.command_within()) is None:
            pass
        return command

    def command_within(self, seconds: float | None = None) -> tuple[Any, ...] | None:
        """Waits for a command.

        Args:
            seconds: the maximum number of seconds to wait. If `seconds` is None, the method first returns unused shared
                memory, and then waits without a limit, or for `IDLE` seconds if more memory may become unused.

        Returns:
            The command; None if it did not arrive in time.

        Raises:
            SystemExit: the memory of a link is damaged. The exit code reports the damaged link to the main process.
        """
        try:
            return self.commands.receive(0, seconds or (IDLE if self.sender.tidy() else None))  # type: ignore[no-any-return]
        except RuntimeError:
            sys.exit(DAMAGED)


def raise_failure(_peer: int, description: Any) -> NoReturn:
    """Raises the exception that a process has sent instead of an item."""
    reraise(description)


def _refuse(_peer: int, description: Any) -> NoReturn:
    raise RuntimeError(f"main sent an error: {description!r}")


def _keep_freed_memory() -> None:
    """Makes the allocator keep freed memory instead of immediately returning it to the system. glibc keeps freed memory
    up to twice the size of the largest block to which it adapts.

    A child frees the objects of one batch, and allocates objects of the same sizes for the next batch. If freed memory
    is returned to the system between two batches, each page of the next batch causes a page fault. When images are
    decoded, page faults take a tenth of the time. glibc raises its limit for kept memory when a large block is freed.
    In a child, large blocks are in shared memory, so glibc never frees a large block. To raise the limit, this function
    allocates and frees one large block, without touching its pages. Limits that the user has set
    (`MALLOC_TRIM_THRESHOLD_`) remain in effect.
    """
    bytes(_LARGEST_LEARNT)


def _keep_memory_of_tensors() -> None:
    """Lets torch request huge pages for large tensors, except when the user has disabled huge pages.

    Torch aligns each tensor to 64 bytes. Older releases of glibc leave a gap next to an aligned tensor, and this gap
    may never be reused. Because of the gap, the next tensor of the same size does not fit into the freed memory, so the
    process grows by one tensor each time and uses only new pages. With huge pages, torch aligns tensors to the size of
    a page, and glibc reuses gaps of that size. Measurements in a worker with glibc 2.36: with huge pages, filling a
    tensor of 20 MB causes 0 page faults instead of 4,864, and filling a tensor of 38 MB causes 531 instead of 9,729. A
    worker that kept a small tensor next to each large tensor of 20 MB grew by 1.2 GB after 60 items. With huge pages,
    the same worker grows by 20 MB. Torch reads the environment variable once, for its first tensor. With "fork", a
    child inherits the value that torch has read in the main process, if the main process has already created a tensor.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _settle(thresholds: tuple[int, int, int]) -> None:
    """Completes a child's startup: sets the main process's garbage collection thresholds, and excludes all existing
    objects from later searches for cycles.

    If user code in the child has already set other thresholds, they stay in effect.
    """
    if gc.get_threshold()[0] == EARLY_THRESHOLD:
        gc.set_threshold(*thresholds)
    gc.freeze()


def _limit_threads() -> None:
    """Limits torch's operators to one thread per child, because the workers run in parallel. If torch is not loaded
    yet, the limit is set when torch is imported.
    """

    def limit(torch: Any) -> None:
        torch.set_num_threads(1)

    def limit_late(torch: Any) -> None:
        limit(torch)
        gc.freeze()  # later searches for cycles then skip the objects of torch

    torch = sys.modules.get("torch")
    if torch is not None:
        limit(torch)
    else:
        call_when_imported("threads", {"torch": limit_late})
