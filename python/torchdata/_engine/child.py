"""What runs in a child: a worker, or the dispatching process.

Role: takes commands from main over the control link (start an epoch, call a function on the graph, stop) and runs
the pipe graph in between, sending what it yields. Commands are obeyed between two items, as `protocol::Control` in the
engine says: an epoch gives up the one that runs, a call leaves it running. A child ignores Ctrl-C, which is main's to
handle, and ends when main does.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torchdata._engine.codec  # noqa: F401 - imported late, another thread's fork might copy the import half done
from torchdata import _engine
from torchdata._engine.crossing import Handle, SharedPickle, close_inherited_pipes
from torchdata._engine.failures import describe, reraise
from torchdata._engine.garbage import settle
from torchdata._engine.interrupts import ignore_interrupts
from torchdata._engine.obituary import CANNOT_WATCH
from torchdata._engine.torch_worker import tell_torch
from torchdata._importing import call_when_imported
from torchdata._native import BellBoard, Collector, Link, Sender, drop_inherited, exit_with_parent
from torchdata.datapipes import _random

__all__ = ["ChildSetup", "Job", "run_child"]

#: Index of main's bell.
MAIN = 0
#: Seconds within which a command follows its order.
ORDERED = 10.0
_NO_COMMAND = (
    "the shared memory of a link is corrupted: an order came without its command; shut the loader down and start a new "
    "one"
)
#: Seconds between two looks at whether shared memory can be given back, between epochs.
IDLE = 1.0


class Interrupted(BaseException):
    """Main has ordered another epoch, or the end, while the graph waits for the dispatching process."""


@dataclass
class Job:
    """What the children run; the same for all of one kind, so that it is pickled once."""

    datapipe: Any
    init_fn: Callable[[Any, Any], Any] | None
    reset_fn: Callable[[Any, Any, Any], Any] | None
    #: What stands in place of `process_init_fn` and `process_reset_fn` in main, where users have replaced them.
    process_init_fn: Callable[..., Any] | None = None
    process_reset_fn: Callable[..., Any] | None = None


@dataclass
class ChildSetup:
    """Everything that one child needs."""

    #: What the child is called in messages.
    name: str
    #: Index of its bell; workers count from 1, the dispatching process comes last.
    index: int
    worker_id: int
    num_workers: int
    #: Whether this is the dispatching process.
    dispatches: bool
    job: Job | SharedPickle
    bells: Handle[BellBoard]
    control: Handle[Link]
    #: Where the items go: main, or each worker.
    outputs: list[Handle[Link]]
    #: Bells of those processes.
    output_peers: list[int]
    #: The link from the dispatching process, and the index of its bell.
    dispatched: Handle[Link] | None
    dispatcher_index: int
    #: Items that the dispatching process may be ahead.
    window: int
    main_pid: int
    #: Whether main is this process's parent, as it is under fork and spawn.
    is_child_of_main: bool
    #: Main's thresholds for collecting cyclic garbage.
    gc_thresholds: tuple[int, int, int]

    @property
    def where(self) -> str:
        """The child in messages of exceptions that were raised in it, which old code matches."""
        return self.name.removeprefix("the ")

    def links(self) -> list[Handle[Link]]:
        """All links of the child."""
        return [self.control, *self.outputs, *([] if self.dispatched is None else [self.dispatched])]


def run_child(setup: ChildSetup) -> None:
    """The target of the process."""
    ignore_interrupts()
    close_inherited_pipes()
    drop_inherited([handle.shared for handle in setup.links()], setup.bells.shared)
    try:
        exit_with_parent(setup.main_pid)
    except ProcessLookupError:  # main is gone already
        return
    except OSError as error:  # without it this process might outlive main for ever
        print(f"torchdata {setup.name} cannot watch the main process: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_WATCH)
    if setup.is_child_of_main and os.getppid() != setup.main_pid:
        return
    # What takes long where nothing is inherited, and is ours alone: until the child has its commands' link, main does
    # not wait for it to come to an end.
    import torchdata.dataloader2.reading_service  # noqa: F401

    _Child(setup).run()


class _Child:
    def __init__(self, setup: ChildSetup) -> None:
        self.setup = setup
        board, control = setup.bells.shared, setup.control.shared
        outputs = [handle.shared for handle in setup.outputs]
        self.commands = Collector([control], board, setup.index, [MAIN], self._failed_command, name="main")
        self.sender = Sender(outputs, board, setup.index, setup.output_peers, control)
        self.dispatched: Collector | None = None
        if setup.dispatched is not None:
            self.dispatched = Collector(
                [setup.dispatched.shared],
                board,
                setup.index,
                [setup.dispatcher_index],
                lambda _peer, description: reraise(description),
                name="the dispatching process",
                on_demand=True,
            )
            self.dispatched.set_interrupt(control, Interrupted, outputs[0], board, MAIN)
        self.datapipe: Any = None
        #: A command that was taken while an epoch ran, and ends it.
        self.pending: tuple[Any, ...] | None = None
        #: Why there is no graph to run: reported in each epoch.
        self.failure: tuple[Any, ...] | None = None

    @staticmethod
    def _failed_command(_peer: int, description: Any) -> None:
        raise RuntimeError(f"main sent an error: {description!r}")

    def run(self) -> None:
        try:
            self._initialise()
        except BaseException as error:
            self.failure = describe(error, self.setup.where)
        settle(self.setup.gc_thresholds)
        while True:
            command = self._next_command()
            if command[0] == "stop":
                gc.unfreeze()  # cycles in the user's graph are to be finalised where the interpreter ends in order
                return
            if command[0] == "epoch":
                _, number, *epoch = command
                self.commands.acknowledge(number)
                self._run_epoch(*epoch)
            else:
                self._call(*command[1:])

    def _goes_on(self) -> bool:
        """Takes the command that waits. Whether the epoch goes on after it: it does after a call."""
        command = self._next_command()
        if command[0] != "call":
            self.pending = command
            return False
        self._call(*command[1:])
        return True

    def _next_command(self) -> tuple[Any, ...]:
        """Waits for a command, and gives shared memory back that is not used any more."""
        command, self.pending = self.pending, None
        while command is None:
            command = self.commands.receive(0, IDLE if self.sender.tidy() else None)
        return command

    def _initialise(self) -> None:
        from torchdata.dataloader2 import reading_service
        from torchdata.dataloader2.graph import find_dps, traverse_dps
        from torchdata.dataloader2.utils import WorkerInfo
        from torchdata.dataloader2.utils.dispatch import DispatchedSource

        setup = self.setup
        _limit_threads()  # before anything of the user's is imported
        job = setup.job.load() if isinstance(setup.job, SharedPickle) else setup.job
        self.job: Job = job
        _engine.current_sender = self.sender
        self.worker_info = WorkerInfo(setup.num_workers, setup.worker_id)
        if setup.dispatches:
            self.datapipe = job.datapipe
            return
        for source in find_dps(traverse_dps(job.datapipe), DispatchedSource):
            assert isinstance(source, DispatchedSource)
            source.open_stream = self._open_dispatched
        tell_torch(setup.worker_id, setup.num_workers, job.datapipe)
        # Looked up in the module at call time: users replace it there. All that they may expect to get is given.
        init = job.process_init_fn or reading_service.process_init_fn
        _random.is_replica = True
        self.datapipe = init(
            job.datapipe,
            worker_info=self.worker_info,
            custom_init_fn=job.init_fn,
            worker_prefetch_cnt=0,
            dispatching_req_queue=None,
            dispatching_res_queue=None,
        )

    def _open_dispatched(self) -> Iterator[Any]:
        assert self.dispatched is not None
        return iter(self.dispatched)

    def _run_epoch(self, epoch: int, seeds: bytes, iter_reset_fn: Any) -> None:
        self.sender.start_epoch(epoch)
        if self.dispatched is not None:
            self.dispatched.start_epoch(epoch, self.setup.window)
        try:
            self._send_epoch(seeds, iter_reset_fn)
        finally:
            if self.dispatched is not None:
                self.dispatched.finish_epoch(epoch)  # what is still dealt to us is not to hold up the others

    def _send_epoch(self, seeds: bytes, iter_reset_fn: Any) -> None:
        """Runs the graph and sends what it yields, to its end or until another epoch, or the end, is commanded."""
        prepare: Callable[[], None] | None = partial(self._reset, seeds, iter_reset_fn)
        while self._send_pass(prepare) and self._is_wanted_again():
            prepare = None

    def _send_pass(self, prepare: Callable[[], None] | None) -> bool:
        """Sends all items once, or why that fails. False where another epoch, or the end, is commanded."""
        failure = self.failure
        try:
            if failure is None:
                if prepare is not None:
                    prepare()
                iterator = iter(self.datapipe)
                while failure is None:
                    if self.sender.pump(iterator):
                        return True
                    if not self._goes_on():
                        return False
                    failure = self.failure  # of a call
        except Interrupted:
            self.pending = self._superseding()
            if self.pending is not None:
                return False
            failure = describe(RuntimeError(_NO_COMMAND), self.setup.where)
        except BaseException as error:
            failure = describe(error, self.setup.where)
        while not self.sender.send_error(failure):
            if not self._goes_on():
                return False
        return True

    def _is_wanted_again(self) -> bool:
        """In the dispatching process: waits until all workers have asked for the items once more, or for a command."""
        if not self.setup.dispatches:
            return False
        while not self.sender.next_pass():
            if not self._goes_on():
                return False
        return True

    def _superseding(self) -> tuple[Any, ...] | None:
        """The command that has ended a wait in the graph; calls before it are obeyed. None where none comes."""
        while True:
            command: tuple[Any, ...] | None = self.commands.receive(0, ORDERED)
            if command is None or command[0] != "call":
                return command
            self._call(*command[1:])

    def _reset(self, seeds: bytes, iter_reset_fn: Any) -> None:
        from torchdata.dataloader2 import reading_service
        from torchdata.dataloader2.random import SeedGenerator

        reset = self.job.process_reset_fn or reading_service.process_reset_fn
        self.datapipe = reset(
            self.datapipe,
            self.worker_info,
            SeedGenerator.imported(seeds),
            distributed_shared_seed=self.setup.dispatches,
            iter_reset_fn=iter_reset_fn,
            custom_reset_fn=self.job.reset_fn,
        )
        if not self.setup.dispatches:
            tell_torch(self.setup.worker_id, self.setup.num_workers, self.datapipe)

    def _call(self, number: int, function: Callable[[Any], Any]) -> None:
        """Applies a function of main's to the graph; what it returns, if anything, replaces that in the next epoch.

        What it raises ends the epoch that runs, and each one after it.
        """
        try:
            replaced = function(self.datapipe)
            if replaced is not None:
                self.datapipe = replaced
        except BaseException as error:
            self.failure = describe(error, self.setup.where)
        self.commands.acknowledge(number)


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
