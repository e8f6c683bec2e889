"""Replaces child processes that exit in the middle of an epoch.

The Rust engine (`protocol::Replacing`) decides which children are replaced, and when to give up.

If an exception, for example after Ctrl-C, interrupts `replace_processes`, each child is either replaced completely or
unchanged. After such an interruption, the next call of `replace_processes` replaces the remaining children.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import NoReturn

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.exit_messages import how_it_exited
from torchdata._engine.processes.forker import ForkingProcess
from torchdata._engine.processes.forking_process import Inherited
from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.processes.shutdown import KILLED, Shutdown
from torchdata._engine.processes.start import new_child, start_all, start_method_of
from torchdata._engine.snapshots import Account, Kept, KeptDispatched
from torchdata._engine.workers.child import run_child
from torchdata._engine.workers.hangs import Hangs
from torchdata._engine.workers.members import Members
from torchdata._native import Collector, Link, OwnedDescriptor, Replacing
from torchdata._reporting import warn_outside

ROOM = 3.0
SHORT_INTERVAL = 0.01

#: A pair: for each shard, the `Account` of the items that the main process has received, and the shard's newest
#: snapshot; and the dispatching process's snapshot that fits the shards' positions.
Received = tuple[list[tuple[Account, Kept | None]], KeptDispatched | None]


class Ended(Exception):
    """Raised if the process that should receive a command has exited or was replaced, or if the loader is shut down."""


class Restarts:
    """Replaces child processes. If `hangs` is given, children that hang are replaced; if `exits` is True, children
    that have exited are replaced."""

    def __init__(
        self, members: Members, context: BaseContext, shutdown: Shutdown, hangs: Hangs | None = None, exits: bool = True
    ) -> None:
        self._members = members
        self.hangs, self._survives_exits = hangs, exits
        self._context = context
        self._shutdown = shutdown
        self._forker: ForkingProcess | None = None
        self._epoch = 0
        self._replacing = Replacing(members.num_workers, members.dispatches)
        self._exitcodes: dict[int, int | None] = {}
        #: Exits of processes that the next warning must report. For each exit: a description, the name of the loader's
        #: argument that allows the restart, and the stacks of a process that hung.
        self._queued: list[tuple[str, str, str]] = []
        #: Replacement processes that were started, but not yet reported to the engine.
        self._made: list[tuple[int, Link | None, int | OwnedDescriptor]] | None = None

    def keep_forker(self) -> None:
        """With start method "fork", moves the children's programs from the main process to a forking process."""
        if start_method_of(self._context) == "fork":
            members = self._members
            programs = [setup.program for setup in members.setups]
            with InterruptsDeferred() as deferred:
                self._shutdown.forker = self._forker = ForkingProcess.forked(programs, members.bells, deferred.deliver)
            for index, setup in enumerate(members.setups):
                common = setup.common._replace(is_child_of_main=False)
                members.setups[index] = replace(setup, program=Inherited(index), common=common)

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._replacing.begin()

    def rests(self, index: int) -> bool:
        return self._replacing.rests(index)

    def replace_processes(self, collector: Collector) -> bool:
        """Replaces the children that have exited. Returns whether any child had exited. Raises WorkerExitedError if a
        child cannot be replaced."""
        processes = self._members.processes
        while True:
            exited = [i for i, process in enumerate(processes) if process.ended and not self.rests(i)]
            if not exited or collector.replace_processes(exited):
                return bool(exited)
            time.sleep(SHORT_INTERVAL)  # a thread that is reading replaces the child itself

    def look_at(self, index: int) -> Callable[[], None]:
        """Returns a function that raises `Ended` if the child has exited, or if the loader is shut down."""

        def look() -> None:
            if self._members.processes[index].ended or self._shutdown.has_begun:
                raise Ended

        return look

    def _check(self, exited: Sequence[int]) -> None:
        """Raises an error if the epoch cannot continue even after the exited children are replaced."""

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        """Sends commands to the new processes, which then resume after the items received from the old processes."""

    def on_loss(self, exited: Sequence[int], received: Sequence[int], ended: Sequence[bool], paused: bool) -> list[int]:
        """Ends the processes of the children that must be replaced, and returns these children.

        Args:
            received: for each shard, the number of received items.
            ended: for each shard, whether it sends no further items in this epoch.
            paused: whether the workers are paused. A paused worker computes no item, so its exit does not count as a
                failure to compute an item.
        """
        if self._made is not None:
            return [index for index, *_ in self._made]
        members = self._members
        shards = map(members.shards_of, range(members.num_workers))
        received = [sum(received[shard] for shard in each) for each in shards]
        wanted = self._replacing.wanted(exited, self._ended(ended))
        for index in exited:
            members.processes[index].wait(1.0)
            if index in wanted:
                self._judge(index, received, paused)
        if wanted:
            self._check(exited)
        for index in wanted:
            members.processes[index].kill()
        for index in wanted:
            members.processes[index].wait(KILLED)
        return wanted

    def _ended(self, ended: Sequence[bool]) -> list[bool]:
        members = self._members
        return [all(ended[shard] for shard in members.shards_of(worker)) for worker in range(members.num_workers)]

    def _judge(self, index: int, received: Sequence[int], paused: bool) -> None:
        """Raises an error if the child has exited too often without progress."""
        members, process = self._members, self._members.processes[index]
        if process.pid is None:  # the start of this child has failed
            return
        self._exitcodes[index] = process.exitcode
        is_worker, kind = index < members.num_workers, members.program_class
        item = self._replacing.item_of(index, received)
        exits, is_new, is_final = self._replacing.judge(index, process.pid, self._epoch, received, paused)
        hung = self.hangs.of(process) if self.hangs is not None else None
        if hung is None and not self._survives_exits:
            raise kind.exit_error(process, index if is_worker else None)
        how, advice = self._how_it_exited(process)
        stack = "" if hung is None else f"\n{hung.stack}"
        where = f"at {'its' if is_worker else 'the'} {kind.item} number {item} (counted from 0{kind.counted})"
        if is_final:
            text = (
                f"{how} {where}, in attempt {exits} to compute it; {advice}. No attempt to compute this {kind.item} "
                f"has succeeded: leave the {kind.item} out, or correct the {kind.to_correct}{stack}"
            )
        elif self._shutdown.has_begun:
            text = f"{how} {where} while the loader was shut down; {advice}"
        else:
            why = "on_worker_exit" if hung is None else "on_timeout"
            self._queued += [(f"{how} {where}; {advice}", why, stack)] if is_new and not (hung and hung.shown) else []
            return
        raise kind.exit_error(process, index if is_worker else None, text, item)

    def _how_it_exited(self, process: ChildProcess) -> tuple[str, str]:
        hung = self.hangs.of(process) if self.hangs is not None else None
        if hung is None:
            return how_it_exited(process)
        return f"{process.called} {hung.how}", f"raise `{hung.limit}` if the process was slow, but not stuck"

    def on_replace(
        self, indices: Sequence[int], received: Received, ended: Sequence[bool]
    ) -> list[tuple[int, Link | None, int | OwnedDescriptor]]:
        """Starts new processes, which resume after the items that the main process has received. Returns, for each new
        process, the number of the child, the link (or None) to the main process, and the handle that signals the
        process's exit.
        """
        if self._made is None:
            began = time.monotonic()
            with InterruptsDeferred():
                self._made = self._replace(indices, received, ended)
            took = time.monotonic() - began
            queued, self._queued = self._queued, []
            all_of_them = ": all processes were replaced" if len(indices) > len(queued) else ""
            for words, why, stack in queued:
                warn_outside(
                    f"{words}. A new process replaced it within {1000 * took:.0f} ms{all_of_them}; "
                    f'no item is lost, because {why}="restart"{stack}',
                    RuntimeWarning,
                )
        made, self._made = self._made, None
        return made

    def _replace(
        self, indices: Sequence[int], received: Received, ended: Sequence[bool]
    ) -> list[tuple[int, Link | None, int | OwnedDescriptor]]:
        members, shutdown = self._members, self._shutdown
        method = start_method_of(self._context)
        with members.sending:
            for index, lines in zip(indices, members.new_lines(indices), strict=True):
                members.setups[index].lines = lines
                members.processes[index] = self._new_child(index)
                members.commanders[index], members.sent[index] = members.commander(index), 0
                shutdown.replace(index, members.processes[index], members.control(index), members.commanders[index])
            started = [members.processes[index] for index in indices]
            try:
                for child in started:
                    _start(child, method)
            except OSError as error:
                self._give_up(indices, error)
            finally:
                members.close_descriptors(indices)
            if shutdown.has_begun:  # a shutdown in another thread may not know the new processes
                for child in started:
                    child.kill()
                    child.wait(KILLED)
            self._command(indices, received, ended)
        workers = members.num_workers
        return [
            (index, members.items_of(index) if index < workers else None, members.processes[index].sign)
            for index in indices
        ]

    def _give_up(self, indices: Sequence[int], error: OSError) -> NoReturn:
        """Raises an error, because a new process could not be started for a child that has exited. In the next epoch,
        the loader starts new processes."""
        members = self._members
        for index in indices:
            members.processes[index].kill()
            members.processes[index].wait(KILLED)
            members.processes[index] = self._new_child(index)
            self._shutdown.replace(index, members.processes[index], members.control(index), members.commanders[index])
        queued, self._queued = self._queued, []
        reasons = "; ".join(words for words, *_ in queued) or "A process has exited"
        index = next((index for index in indices if members.names[index] in reasons), indices[0])
        is_worker = index < members.num_workers
        raise WorkerExitedError(
            f"{reasons}. No new process could be started: {error.strerror or error}",
            worker=index if is_worker else None,
            exitcode=self._exitcodes.get(index),
            stage=members.program_class.stage if is_worker else "dispatching items",
        ) from error

    def _new_child(self, index: int) -> ChildProcess:
        members, setup = self._members, self._members.setups[index]
        return new_child(self._context, members.names[index], run_child, (setup,), setup.modules, self._forker)


def _start(child: ChildProcess, method: str) -> None:
    deadline = time.monotonic() + ROOM
    while True:
        try:
            return start_all([child], method)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM) or time.monotonic() >= deadline:
                raise
        time.sleep(SHORT_INTERVAL)
