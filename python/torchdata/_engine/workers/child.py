"""The child's side of a group: its first steps, its ends of the links, and the loop that takes main's commands.

Role: runs in every child, whatever its program is. A child enters (`CommonSetup`): it leaves signals to main, drops
what it inherited, and ties its life to main's. It takes its ends of the links, loads the program, and hands each
command to the program's runner until that has obeyed the command to stop.

Python's cyclic garbage collector is kept off what a child imports and what it keeps to its end. Importing torch makes
a quarter of a million objects that stay; searching them for cycles takes a tenth of that import, and each later search
of all objects takes as long again. In a forked child such a search also writes to, and so copies, every page that holds
an object of main's.
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

__all__ = ["MAIN", "Child", "ChildSetup", "CommonSetup", "Lines", "run_child"]

#: Index of main's bell.
MAIN = 0
#: Bytes of the largest block that glibc's allocator learns from (`M_MMAP_THRESHOLD` in mallopt(3)), less its header.
_LARGEST_LEARNT = (32 << 20) - (64 << 10)
#: Seconds between two looks at whether shared memory can be given back, while no command comes.
IDLE = 1.0


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
    #: The line of the program that began the children, as `place_outside` has it; None if they have it on their stacks,
    #: or it lies on another machine.
    begun_at: tuple[str, int, str] | None

    @classmethod
    def under(cls, start_method: str, bells: BellBoard, begun_at: tuple[str, int, str] | None = None) -> CommonSetup:
        """That of children which this process, main, starts.

        Args:
            start_method: multiprocessing's name of how.
            bells: the bells of all processes.
            begun_at: the line of the program that begins them.
        """
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
            name: what the child is called in messages.
            links: the links that are its own.
            stats: the board on which it counts, if it does.

        Returns:
            Whether there is anything to do: False if main is gone already.
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
        except ProcessLookupError:  # main is gone already
            return False
        except OSError as error:  # without it this process might outlive main for ever
            print(f"torchdata {name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
            sys.exit(CANNOT_WATCH)
        return not self.is_child_of_main or os.getppid() == self.main_pid


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


@dataclass
class ChildSetup:
    """Everything that one child needs."""

    #: What the child is called in messages.
    name: str
    #: Index of its bell and of its page of counters; workers count from 1, the dispatching process comes last.
    index: int
    worker_id: int
    num_workers: int
    #: The shards that it runs, and how many all workers run.
    shards: range
    num_shards: int
    #: Whether this is the dispatching process.
    dispatches: bool
    program: Program | SharedPickle | Inherited
    #: Module and name of the program's class. The module takes long to import where nothing is inherited.
    program_class: tuple[str, str]
    common: CommonSetup
    #: The counters of all processes.
    stats: Handle[StatsBoard]
    lines: Lines
    #: Bells of those to whom the items go.
    output_peers: list[int]
    #: Index of the dispatching process's bell, and its page of counters.
    dispatcher_index: int
    dispatcher_page: int
    #: Items that the dispatching process may be ahead.
    window: int
    #: How often it takes snapshots: at most every so many seconds, and after so many times what the last one took.
    cadence: tuple[float, float]

    @property
    def where(self) -> str:
        """The child in messages of exceptions that were raised in it, which old code matches."""
        return self.name.removeprefix("the ")


def run_child(setup: ChildSetup) -> None:
    """The target of the process."""
    try:
        setup.stats.shared = setup.stats.shared.here()
    except RuntimeError:  # the counters are damaged
        if setup.stats.spare is None:
            raise
        setup.stats.shared = setup.stats.spare()
    links = [handle.shared for handle in setup.lines.all()]
    if not setup.common.enter(setup.name, links, setup.stats.shared):
        return
    name_process("td_dispatch" if setup.dispatches else f"td_worker_{setup.worker_id}")
    # Until the child has its commands' link, main does not wait for this import to come to an end.
    module, name = setup.program_class
    runner: type[Runner] = getattr(importlib.import_module(module), name).runner
    child = Child(setup, runner.is_interrupted)
    child.run(runner(child))


class Child:
    """The child's ends of its links, and its loop.

    Args:
        setup: what the child is set up with.
        is_interrupted: whether a command that waits ends the pump's run between two items.
    """

    def __init__(self, setup: ChildSetup, is_interrupted: bool) -> None:
        self.setup = setup
        board, control = setup.common.bells.shared, setup.lines.control.shared
        outputs = [handle.shared for handle in setup.lines.outputs]
        self.commands = Collector([control], board, setup.index, [MAIN], _refuse, name="main")
        interrupting = control if is_interrupted else None
        shards = len(setup.shards)
        self.sender = Sender(outputs, board, setup.index, setup.output_peers, interrupting, shards)
        #: What the dispatching process sends to a worker.
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
        #: What is counted of this process.
        self.counting = Counting(setup.stats.shared, setup.index)
        self.counting.adopt_child(setup, self.sender, self.dispatched, self.commands)

    def run(self, runner: Runner) -> None:
        """Loads the program and obeys main until it says stop."""
        setup = self.setup
        try:
            _limit_threads()  # before anything of the user's is imported
            program = setup.program
            if isinstance(program, SharedPickle):
                shared, program = program, program.load(loads)
                shared.close()  # the memory is mapped
            _engine.current_sender = self.sender
            runner.prepare(program)
        except BaseException as error:
            runner.failure = describe(error, setup.where)
        _settle(setup.common.gc_thresholds)
        while runner.obey(self.next_command()):
            pass
        self.counting.close()
        gc.unfreeze()  # cycles in what is the user's are to be finalised where the interpreter ends in order

    def next_command(self) -> tuple[Any, ...]:
        """Waits for a command, and gives shared memory back that is not used any more.

        Raises:
            SystemExit: the memory of a link is damaged. The exit code tells the main process.
        """
        command = None
        try:
            while command is None:
                command = self.commands.receive(0, IDLE if self.sender.tidy() else None)
        except RuntimeError:
            sys.exit(DAMAGED)
        return command  # type: ignore[no-any-return]


def raise_failure(_peer: int, description: Any) -> NoReturn:
    """Raises the exception that a process has sent in the place of an item."""
    reraise(description)


def _refuse(_peer: int, description: Any) -> NoReturn:
    raise RuntimeError(f"main sent an error: {description!r}")


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


def _settle(thresholds: tuple[int, int, int]) -> None:
    """Ends a child's start-up: gives it main's thresholds, and takes all that lives now out of later searches.

    Thresholds that the user's program has set in the child meanwhile stay.
    """
    if gc.get_threshold()[0] == EARLY_THRESHOLD:
        gc.set_threshold(*thresholds)
    gc.freeze()


def _limit_threads() -> None:
    """One thread per child for torch's operators, now or once torch is imported: the workers are the parallelism."""

    def limit(torch: Any) -> None:
        torch.set_num_threads(1)

    def limit_late(torch: Any) -> None:
        limit(torch)
        gc.freeze()  # else the next search for cycles would go through all of torch

    torch = sys.modules.get("torch")
    if torch is not None:
        limit(torch)
    else:
        call_when_imported("threads", {"torch": limit_late})
