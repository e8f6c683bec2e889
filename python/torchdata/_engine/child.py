"""What runs in a child: a worker, or the dispatching process.

Role: takes commands from main over the control link (start an epoch, call a function on the graph, stop) and runs
the pipe graph in between, sending what it yields. Commands are taken between two items; `protocol::Obedience` in the
engine decides what a command does to the epoch that runs, and this module carries it out. A child leaves signals to
main, and ends when main does.

A command is a tuple: its kind, its number on the link, the number of the epoch or function, and the rest.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from torchdata import _engine
from torchdata._engine.codec import UNSENT  # imported late, another thread's fork might copy the import half done
from torchdata._engine.crossing import Handle, SharedPickle
from torchdata._engine.entering import CommonSetup
from torchdata._engine.failures import describe, reraise
from torchdata._engine.garbage import settle
from torchdata._engine.program import ChildInfo, Program
from torchdata._engine.snapshots import BETWEEN, Announced, Call, Resumption, place_of
from torchdata._importing import call_when_imported
from torchdata._native import Collector, Link, Obedience, Sender, StatsBoard
from torchdata._reporting import add_note, attributes_of
from torchdata._stats.counting import Counting
from torchdata._tracing.following import follow

__all__ = ["ChildSetup", "Lines", "run_child"]

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
    #: Index of its bell; workers count from 1, the dispatching process comes last.
    index: int
    #: By how much the numbers of the children's pages of counters are greater than those of their bells.
    pages_behind: int
    worker_id: int
    num_workers: int
    #: Whether this is the dispatching process.
    dispatches: bool
    program: Program | SharedPickle
    #: The module of the program, which takes long to import where nothing is inherited.
    module: str
    common: CommonSetup
    #: The counters of all processes.
    stats: Handle[StatsBoard]
    lines: Lines
    #: Bells of those to whom the items go.
    output_peers: list[int]
    #: Index of the dispatching process's bell.
    dispatcher_index: int
    #: Items that the dispatching process may be ahead.
    window: int
    #: How often it takes snapshots: at most every so many seconds, and after so many times what the last one took.
    cadence: tuple[float, float]

    @property
    def where(self) -> str:
        """The child in messages of exceptions that were raised in it, which old code matches."""
        return self.name.removeprefix("the ")

    @property
    def page(self) -> int:
        """Its page of counters."""
        return self.index + self.pages_behind

    @property
    def output_pages(self) -> list[int]:
        """Those of the processes that its items go to."""
        return [peer + self.pages_behind if peer != MAIN else MAIN for peer in self.output_peers]

    @property
    def dispatcher_page(self) -> int:
        """That of the dispatching process."""
        return self.dispatcher_index + self.pages_behind


def run_child(setup: ChildSetup) -> None:
    """The target of the process."""
    setup.stats.shared = setup.stats.shared.here()
    links = [handle.shared for handle in setup.lines.all()]
    if not setup.common.enter(setup.name, links, setup.stats.shared):
        return
    # What takes long where nothing is inherited, and is ours alone: until the child has its commands' link, main does
    # not wait for it to come to an end.
    importlib.import_module(setup.module)
    _Child(setup).run()


class _Child:
    def __init__(self, setup: ChildSetup) -> None:
        self.setup = setup
        board, control = setup.common.bells.shared, setup.lines.control.shared
        outputs = [handle.shared for handle in setup.lines.outputs]
        self.commands = Collector([control], board, setup.index, [MAIN], self._failed_command, name="main")
        self.sender = Sender(outputs, board, setup.index, setup.output_peers, control)
        self.dispatched: Collector | None = None
        if setup.lines.dispatched is not None:
            self.dispatched = Collector(
                [setup.lines.dispatched.shared],
                board,
                setup.index,
                [setup.dispatcher_index],
                lambda _peer, description: reraise(description),
                name="the dispatching process",
                on_demand=True,
            )
            self.dispatched.set_interrupt(control, Interrupted, outputs[0], board, MAIN)
        #: What is counted of this process.
        self.counting = Counting(setup.stats.shared, setup.page)
        self.counting.adopt_child(setup, self.sender, self.dispatched, self.commands)
        self.program: Program
        #: What commands do to the epoch that runs.
        self.obedience = Obedience(setup.dispatches)
        #: A command that was taken while an epoch ran, and ends it.
        self.pending: tuple[Any, ...] | None = None
        #: The epoch that runs, where this run of it began, and whether a stream of the share was opened in it.
        self.epoch, self.start, self.opened = 0, Resumption(), False
        #: Why there is no graph to run: reported in each epoch.
        self.failure: tuple[Any, ...] | None = None
        #: Those that are to be applied behind later items than the next one, in their order.
        self.due: list[Call] = []

    @staticmethod
    def _failed_command(_peer: int, description: Any) -> None:
        raise RuntimeError(f"main sent an error: {description!r}")

    def run(self) -> None:
        try:
            self._initialise()
        except BaseException as error:
            self.failure = describe(error, self.setup.where)
        settle(self.setup.common.gc_thresholds)
        while self._obey(self._next_command()) != "end":
            pass
        self.counting.close()
        gc.unfreeze()  # cycles in the user's graph are to be finalised where the interpreter ends in order

    def _obey(self, command: tuple[Any, ...]) -> str:
        """Carries out a command, and returns the step that it asked for. "leave" leaves the command pending."""
        kind, serial, number, *content = command
        step, before, behind = self.obedience.obey(kind, number)
        if before:
            self.commands.acknowledge(serial)
        if step == "leave":
            self.pending = command
        elif step == "run":
            self._run_epoch(number, *content)
        elif step == "apply":
            self._apply_due(BETWEEN)  # functions that are due come before this one
            self._apply(*content)
        if behind:
            self.commands.acknowledge(serial, place_of(*self.sender.made()) if self.obedience.runs else BETWEEN)
        return step

    def _goes_on(self) -> bool:
        """Obeys the command that waits; returns whether the epoch goes on after it."""
        return self._obey(self._next_command()) != "leave"

    def _next_command(self) -> tuple[Any, ...]:
        """Waits for a command, and gives shared memory back that is not used any more."""
        command, self.pending = self.pending, None
        while command is None:
            command = self.commands.receive(0, IDLE if self.sender.tidy() else None)
        return command

    def _initialise(self) -> None:
        setup = self.setup
        _limit_threads()  # before anything of the user's is imported
        program = setup.program.load() if isinstance(setup.program, SharedPickle) else setup.program
        self.program = _engine.current_program = program
        _engine.current_sender = self.sender
        opens = None if self.dispatched is None else self._open_dispatched
        share = None if self.dispatched is None else self._share
        program.prepare(ChildInfo(setup.worker_id, setup.num_workers, setup.dispatches, opens, share))
        self.sender.take_snapshots(program.snapshot, *setup.cadence)
        if self.dispatched is not None:
            self.sender.pass_on(self.dispatched)

    def _open_dispatched(self) -> Iterator[Any]:
        """A stream of the share: the pass begins with the first item that is asked for."""
        assert self.dispatched is not None
        start = self.start
        if self.opened and start.share[0] > 0 and self.dispatched.share()[0] == start.passed:
            # The run went on in the middle of a pass and has left it without asking for more: that was the pass.
            self.start = start = replace(start, passed=start.passed + 1, share=(0, 0))
            self.dispatched.start_epoch(self.epoch, self.setup.window, None, None, start.passed)
        self.opened = True
        return iter(self.dispatched)

    def _share(self) -> tuple[int, tuple[int, int]]:
        """Of the share: the latest pass that was opened, and what was read of it, or had been where this run began."""
        assert self.dispatched is not None
        reached, read = self.dispatched.share()
        return (reached, read) if reached > self.start.passed else (reached, self.start.share)

    def _run_epoch(
        self,
        epoch: int,
        seeds: bytes,
        iter_reset_fn: Any,
        announced: int,
        start: Resumption | None,
        trace: str | None = None,
    ) -> None:
        follow(trace)
        self.counting.begin(epoch)
        self.start = start = start or Resumption()
        self.epoch, self.opened = epoch, False
        self.due = list(start.calls)
        self.obedience.expect(max((serial for _, serial, _ in self.due), default=0))
        self.sender.start_epoch(epoch, 1, start.starts, start.turn)
        if self.dispatched is not None:
            self.dispatched.start_epoch(epoch, self.setup.window, [start.share], None, start.passed)
            if announced == Announced.DEALT:
                self.dispatched.await_relayed(epoch)
                self.sender.send_relayed()  # before the graph, which may read on at once, meets later ones
        try:
            self._send_epoch(partial(self._begin_epoch, seeds, iter_reset_fn, announced, start))
        finally:
            self.obedience.leave()
            self._apply_due(BETWEEN)
            self.counting.end()
            if self.dispatched is not None:
                self.dispatched.finish_epoch(epoch)  # what is still dealt to us is not to hold up the others

    def _send_epoch(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Runs the graph and sends what it yields, to its end or until another epoch, or the end, is commanded."""
        while self._send_pass(begin) and self._is_wanted_again():
            begin = self._begin_pass

    def _begin_epoch(self, seeds: bytes, iter_reset_fn: Any, announced: int, start: Resumption) -> Iterator[Any]:
        self.program.begin_epoch(seeds, iter_reset_fn)
        self.counting.bind(self.program.datapipe)
        self._apply_due(start.made - 1)  # a snapshot is older than what was applied behind the same item
        # Who goes on from a snapshot reads; main has that one, and does not wait for another.
        unread = announced and start.content is None
        with self.program.beginning_unread() if unread else nullcontext():
            iterator = self.program.go_on_from(start.content)
            if self.due:
                iterator = self._with_calls(iterator, start.made)
            if announced:
                self.sender.send_snapshot()  # a command that waits is obeyed by the pump, which sends the rest after it
        return iterator

    def _begin_pass(self) -> Iterator[Any]:
        self.counting.bind(self.program.datapipe)
        iterator = self.program.go_on_from(None)
        return self._with_calls(iterator, place_of(*self.sender.made())) if self.due else iterator

    def _send_pass(self, begin: Callable[[], Iterator[Any]]) -> bool:
        """Sends all items once, or why that fails. False where another epoch, or the end, is commanded."""
        failure = self.failure
        try:
            if failure is None:
                iterator = begin()
                while failure is None:
                    if self.sender.pump(iterator):
                        return True
                    if not self._goes_on():
                        return False
                    failure = self.failure  # of a call
        except Interrupted:
            if self._meets_superseding():
                return False
            failure = describe(RuntimeError(_NO_COMMAND), self.setup.where)
        except BaseException as error:
            if attributes_of(error).pop(UNSENT, False):
                add_note(error, f"It would have been item {self.sender.made()[1] + 1} of this process.")
            failure = self.failure or describe(error, self.setup.where)
        while not self.sender.send_error(failure):
            if not self._goes_on():
                return False
        return True

    def _is_wanted_again(self) -> bool:
        """In the dispatching process: waits until all workers have asked for the items once more, or for a command."""
        if not self.setup.dispatches:
            return False
        self.counting.end()
        while not self.sender.next_pass():
            if not self._goes_on():
                return False
        self.counting.begin()
        return True

    def _meets_superseding(self) -> bool:
        """Obeys commands up to the one that has ended a wait in the graph. Returns False if that does not come."""
        while (command := self.commands.receive(0, ORDERED)) is not None:
            if self._obey(command) == "leave":
                return True
        return False

    def _apply(self, function: Callable[[Any], Any]) -> None:
        """Applies a function to the graph. What it raises ends the epoch that runs, and each one after it."""
        try:
            if self.failure is None:
                self.program.call(function)
        except BaseException as error:
            self.failure = describe(error, self.setup.where)

    def _apply_due(self, made: int) -> None:
        """Applies the functions that were applied behind so many items, or fewer."""
        while self.due and self.due[0][0] <= made:
            self._apply(self.due.pop(0)[2])

    def _with_calls(self, iterator: Iterator[Any], made: int) -> Iterator[Any]:
        """The items behind so many, and between them main's functions where they were in the run before."""
        while self.due:
            self._apply_due(made)
            if self.failure is not None:
                raise RuntimeError("a function of main's has failed")  # which is reported instead
            for item in islice(iterator, 1):
                yield item
                break
            else:
                return
            made += 1
        yield from iterator


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
