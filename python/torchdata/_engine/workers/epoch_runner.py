"""Runs a pipe graph in a worker of a `DataLoader2` or in the dispatching process.

The runner carries out the main process's commands (start an epoch, call a function on the graph, stop), which it
receives between two items. The Rust engine (`protocol::CommandState`) decides how a command affects the running epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torchdata._bounded_pickles import TooLargeError
from torchdata._engine.items.codec import UNSENT
from torchdata._engine.items.failures import describe
from torchdata._engine.snapshots import Account, Announced, Resumption, Taken
from torchdata._engine.workers.child import MAIN, ChildLoop
from torchdata._engine.workers.program import ChildInfo, EpochProgram
from torchdata._native import CommandState, ShardTurns
from torchdata._reporting import add_note, attributes_of, name_of
from torchdata.datapipes._pipe.state.halting import beginning_unread

#: The maximum number of seconds between the announcement of a command in shared memory and its arrival.
ORDERED = 10.0
_FROM_THE_BEGINNING: list[tuple[Account, int, int | None]] = [((0, 0), 0, None)]
_NO_COMMAND = (
    "the shared memory of a link is corrupted: a command was announced but did not arrive; shut the loader down and "
    "start a new one"
)


class Interrupted(BaseException):
    """Raised if the main process starts another epoch or stops the child while the graph waits for dispatched items."""


class EpochRunner:
    is_interrupted: ClassVar[bool] = True

    def __init__(self, child: ChildLoop) -> None:
        self.child = child
        self.setup, self.commands, self.sender = child.setup, child.commands, child.sender
        self.dispatched, self.counting = child.dispatched, child.counting
        if self.dispatched is not None:
            lines, bells = self.setup.lines, self.setup.common.bells.shared
            self.dispatched.set_interrupt(lines.control.shared, Interrupted, lines.outputs[0].shared, bells, MAIN)
        self.programs: Sequence[EpochProgram] = ()
        #: Determines which shard sends the next item; empty until all programs are prepared.
        self.turns = ShardTurns((), self._exchange, 0)
        self.command_state = CommandState(self.setup.dispatches)
        #: A received command that ends the running epoch, and that is executed after the epoch has ended.
        self.pending: tuple[Any, ...] | None = None
        #: The number of the running epoch, the position where its first shard starts, and whether the graph has
        #: requested dispatched items in this epoch.
        self.epoch, self.start, self.opened = 0, Resumption(), False
        #: `_announces`: whether the main process needs the current snapshot before the epoch's first item.
        #: `_has_failed`: whether the shard that runs now has raised an exception in this epoch.
        self._announces = self._has_failed = False
        #: An exception that was raised while the graph was prepared, and that is sent to the main process in each
        #: epoch.
        self.failure: tuple[Any, ...] | None = None

    def prepare(self, program: EpochProgram) -> None:
        setup = self.setup
        opens = None if self.dispatched is None else self._open_dispatched
        share = None if self.dispatched is None else self._share
        programs = self.programs = program.replicas(len(setup.shards))
        for index, (shard, each) in enumerate(zip(setup.shards, programs, strict=True)):
            if index:
                programs[index - 1].leave()
            most = setup.largest_snapshot
            each.prepare(ChildInfo(shard, setup.num_shards, setup.dispatches, opens, share, most))
        if len(programs) > 1:
            of_each = [each.globals for each in programs]
            self.turns = ShardTurns(of_each, self._exchange, len(programs) - 1)
        self.sender.take_snapshots(self._snapshot, *setup.cadence)
        if not setup.dispatches:
            self.sender.take_notes(lambda shard: programs[shard].note())
        if self.dispatched is not None:
            self.sender.pass_on(self.dispatched)

    def _snapshot(self, shard: int, waits: bool) -> Taken | None:
        if not waits and not all(program.globals.is_all for program in self.programs[1:]):
            return None  # switching between these shards waits for their threads
        setup, stats = self.setup, self.setup.stats.shared
        any_size, largest = self._announces or stats.wants_large_snapshots(), setup.largest_snapshot
        self.turns.enter(shard)  # threads of other shards would draw from the generators of this shard
        try:
            found = self.programs[shard].snapshot(None if any_size else largest, begins=self._announces, waits=waits)
        except TooLargeError as error:
            stats.set_oversized(setup.page, error.size)
            return None
        if found is not None and largest is not None and len(found[2]) > largest:
            stats.set_oversized(setup.page, len(found[2]))
        return found

    def execute(self, command: tuple[Any, ...]) -> bool:
        step = self._execute(command)
        while self.pending is not None:
            step = self._execute(self._next_command())
        return step != "end"

    def _execute(self, command: tuple[Any, ...]) -> str:
        """Executes a command, and returns the name of the step, such as "run" or "apply". If the step is "leave", the
        command waits in `pending` until the running epoch has ended.
        """
        kind, serial, number, *content = command
        step, before, after = self.command_state.accept(kind, number)
        if before:
            self.commands.acknowledge(serial)
        if step == "leave":
            self.pending = command
        elif step == "run":
            self._run_epoch(number, *content)
        elif step == "apply":
            self._apply(*content)
        if after:
            self.commands.acknowledge(serial)
        return step

    def _exchange(self, left: int, entered: int) -> None:
        self.programs[left].leave()
        self.programs[entered].enter()

    def _continues(self) -> bool:
        return self._execute(self._next_command()) != "leave"

    def _next_command(self) -> tuple[Any, ...]:
        command, self.pending = self.pending, None
        return self.child.next_command() if command is None else command

    def _open_dispatched(self) -> Iterator[Any]:
        assert self.dispatched is not None
        start = self.start
        if self.opened and start.share[0] > 0 and self.dispatched.share()[0] == start.passed:
            # The graph begins a new iteration over the dispatched items, so the remaining items of the resumed
            # iteration are skipped.
            self.start = start = replace(start, passed=start.passed + 1, share=(0, 0))
            self.dispatched.start_epoch(self.epoch, self.setup.window, None, None, start.passed)
        self.opened = True
        return iter(self.dispatched)

    def _share(self) -> tuple[int, tuple[int, int]]:
        """Returns the position in the dispatched items, including items that were read before the epoch was resumed."""
        assert self.dispatched is not None
        reached, read = self.dispatched.share()
        return (reached, read) if reached > self.start.passed else (reached, self.start.share)

    def _run_epoch(
        self,
        epoch: int,
        seeds: Sequence[bytes],
        iter_reset_fn: Any,
        announced: int,
        starts: Sequence[Resumption | None] | None,
    ) -> None:
        self.counting.begin(epoch)
        self.setup.stats.shared.set_oversized(self.setup.page, 0)
        shards = self.setup.shards
        each = [start or Resumption() for start in starts or [None] * len(shards)]
        self.start = start = each[0]
        self.epoch, self.opened, self._has_failed = epoch, False, False
        links, turn = start.starts, start.turn
        if not self.setup.dispatches:
            links = [(one.starts or _FROM_THE_BEGINNING)[0] for one in each]
            turn = next((index for index, shard in enumerate(shards) if shard >= start.turn), 0)
        self.sender.start_epoch(epoch, 1, links, turn)
        if self.dispatched is not None:
            self.dispatched.start_epoch(epoch, self.setup.window, [start.share], None, start.passed)
            if announced == Announced.DISPATCHED:
                self.dispatched.await_relayed(epoch)
                self.sender.send_relayed()  # before the graph reads ahead and receives later snapshots
        try:
            self._send_epoch(partial(self._begin_epoch, seeds, iter_reset_fn, announced, each))
        finally:
            self.command_state.leave()
            for index, program in enumerate(self.programs):
                program.end_epoch(self._has_failed and index == self.turns.entered)
            self.counting.end()
            if self.dispatched is not None:
                # Dispatched items that this worker leaves unread would block other workers.
                self.dispatched.finish_epoch(epoch)

    def _send_epoch(self, begin: Callable[[], Any]) -> None:
        while self._send_pass(begin) and self._is_wanted_again():
            begin = self._begin_pass

    def _begin_epoch(
        self, seeds: Sequence[bytes], iter_reset_fn: Any, announced: int, starts: Sequence[Resumption]
    ) -> Any:
        for index, (program, seed) in enumerate(zip(self.programs, seeds, strict=True)):
            self.turns.enter(index)
            program.epoch = self.epoch - 1
            program.begin_epoch(seed, iter_reset_fn)
            self.counting.bind(program.datapipe, index)
        iterators = []
        for index, start in enumerate(starts):  # after all shards are seeded, because one shard may read for all shards
            self.turns.enter(index)
            iterators.append(self._begin_shard(index, announced, start))
        return iterators[0] if len(iterators) == 1 else tuple(iterators)

    def _begin_shard(self, index: int, announced: int, start: Resumption) -> Iterator[Any]:
        program = self.programs[index]
        # Only a graph that starts from its beginning sends a snapshot before it reads its sources.
        unread = announced and start.content is None
        # Until this worker has sent its snapshot, threads of pipes must not read ahead, because they might wait forever
        # for dispatched items that other workers delay.
        with beginning_unread() if unread else nullcontext():
            iterator = program.resume_from(start.content, start.strict)
            if unread:
                # If a command is waiting, `send_snapshot` does nothing, and `pump` sends the snapshot later.
                self._announces = True
                try:
                    self.sender.send_snapshot(index)
                finally:
                    self._announces = False
        return iterator

    def _begin_pass(self) -> Iterator[Any]:
        (program,) = self.programs
        self.counting.bind(program.datapipe)
        return program.resume_from(None)

    def _send_pass(self, begin: Callable[[], Any]) -> bool:
        """Sends the items of one iteration over the shard's graph; returns False if a command ends the epoch."""
        failure = self.failure
        try:
            if failure is None:
                iterator = begin()
                while failure is None:
                    if self.sender.pump(iterator, self.turns):
                        return True
                    if not self._continues():
                        return False
                    failure = self.failure  # `call(function)` may have failed meanwhile
        except Interrupted:
            if self._meets_superseding():
                return False
            failure = describe(RuntimeError(_NO_COMMAND), self.setup.where)
        except BaseException as error:
            self._has_failed = True
            if attributes_of(error).pop(UNSENT, False):
                pipe_name = name_of(self.programs[self.turns.entered].datapipe)
                add_note(error, f"The object is in item {self.sender.made()[1] + 1} of {pipe_name} in this process.")
            failure = self.failure or describe(error, self.setup.where)
        while not self.sender.send_error(failure):
            if not self._continues():
                return False
        return True

    def _is_wanted_again(self) -> bool:
        if not self.setup.dispatches:
            return False
        self.counting.end()
        while not self.sender.next_pass():
            if not self._continues():
                return False
        self.counting.begin()
        return True

    def _meets_superseding(self) -> bool:
        """Executes commands until one of them ends the running epoch. Returns False if no command that ends the epoch
        arrives within `ORDERED` seconds.
        """
        while (command := self.commands.receive(0, ORDERED)) is not None:
            if self._execute(command) == "leave":
                return True
        return False

    def _apply(self, function: Callable[[Any], Any]) -> None:
        """Applies `function` to the graph of each shard. If the function fails, the current epoch and all later epochs
        end with its exception."""
        try:
            if self.failure is None:
                for index, program in enumerate(self.programs):
                    self.turns.enter(index)
                    program.call(function)
        except BaseException as error:
            self.failure = describe(error, self.setup.where)
