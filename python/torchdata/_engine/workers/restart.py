"""Other processes in the places of children that have died, in the middle of an epoch.

Role: main's side, called by the engine in the thread that reads, or by `Children` before it commands.
`protocol::Replacing` in the engine decides whose places are taken, and when that is given up; this module carries it
out. Items that a dead worker had sent count as received. The process that takes its place goes on behind the newest
snapshot, makes the items again that main has, and drops them, as a loaded loader does.

Whatever interrupts this (Ctrl-C, a warning that is an error) finds it done or not begun, and the next try goes on.
"""

from __future__ import annotations

import contextlib
import errno
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.children import new_child
from torchdata._engine.processes.exit_messages import how_it_died
from torchdata._engine.processes.forker import Forker
from torchdata._engine.processes.forking_process import Inherited
from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.processes.shutdown import KILLED, ChildProcess, Shutdown
from torchdata._engine.processes.start import start_all
from torchdata._engine.snapshots import Account, Announced, Call, Kept, KeptDealt, Resumption
from torchdata._engine.workers.calls import Calls, Noted
from torchdata._engine.workers.child import run_child
from torchdata._engine.workers.members import Members
from torchdata._native import Link, Replacing

__all__ = ["Received", "Restarts", "Run"]

#: How long the dispatching process may take to obey a function when a worker has died.
ACKNOWLEDGED = 1.0
#: More items than an epoch has.
ALL = 1 << 62
#: Seconds within which a process has to run what is left of an epoch that is over.
REPEATED = 600.0
#: Seconds within which the system may find room for another process.
ROOM = 3.0
#: Seconds between two looks at whatever is waited for.
GLANCE = 0.01

#: By worker, what was received and the newest snapshot before that; the dispatching process's that fits to these.
Received = tuple[list[tuple[Account, Kept | None]], KeptDealt | None]


@dataclass(frozen=True)
class Run:
    """An epoch, or what is left of it, as far as one who takes a place in it must know.

    Args:
        number: the epoch's.
        commands: by child, the seeds and the reset function.
        resume: from what was received, where each child goes on.
        before: the epoch before this one, and where each child goes on in it, where something in the graphs outlives
            epochs; this one began with a snapshot of each worker then.
    """

    number: int
    commands: Callable[[int], tuple[Any, Any]]
    resume: Callable[[Received], list[Resumption | None]]
    before: tuple[Run, list[Resumption | None]] | None = None


class _Gone(Exception):
    """The process to which something is sent has died, or the loader is shut down."""


class Restarts:
    """Who takes the places of children that have died.

    Args:
        members: the children. Its lists are changed.
        context: multiprocessing's context that starts them.
        shutdown: what ends them.
        trace: from a child's number and name, where it writes its trace; None where nothing is traced.
    """

    def __init__(
        self, members: Members, context: BaseContext, shutdown: Shutdown, trace: Callable[[int, str], str | None]
    ) -> None:
        self._members = members
        self._context = context
        self._shutdown = shutdown
        self._trace = trace
        self._forker: Forker | None = None
        #: The epoch that runs, if any has begun.
        self.run: Run | None = None
        self._replacing = Replacing(members.num_workers, members.dispatches)
        self._calls = Calls(members)
        #: Those that run what is left of an epoch of which main has everything.
        self._repeating: set[int] = set()
        #: By child: how the last one that died there has ended.
        self._exitcodes: dict[int, int | None] = {}
        #: Deaths that no warning tells of yet, in words.
        self._untold: list[str] = []
        #: Who has taken a place, before the engine knows.
        self._made: list[tuple[int, Link | None, int]] | None = None

    def keep_forker(self) -> None:
        """Starts the process that forks others later, where they are forked. Main needs what they run no more."""
        if self._context.get_start_method() == "fork":
            members = self._members
            forker = Forker.forked([setup.program for setup in members.setups], members.bells)
            self._shutdown.forker = self._forker = forker
            for index, setup in enumerate(members.setups):
                common = replace(setup.common, is_child_of_main=False)
                members.setups[index] = replace(setup, program=Inherited(index), common=common)

    def begin(self, run: Run) -> None:
        """A run begins: who takes a place from now on takes it there."""
        with self._members.sending:
            self._calls.begin(run.before is not None)
        self.run = run
        self._replacing.begin()
        self._repeating.clear()

    def rests(self, index: int) -> bool:
        """Whether a child has died, and is not wanted any more in this epoch."""
        return self._replacing.rests(index)

    def note_call(self, function: Callable[[Any], Any]) -> Noted:
        """Notes a function of main's that is about to be sent: those who take a place get it, too."""
        with self._members.sending:
            return self._calls.note(function)

    # -- called by the engine ----------------------------------------------------------------------

    def on_death(self, dead: Sequence[int], received: Sequence[int], ended: Sequence[bool], paused: bool) -> list[int]:
        """Says whose places are to be taken; all of these have ended then.

        Args:
            dead: those that have died.
            received: by worker, how many items were received.
            ended: by worker, whether nothing more is to come of it in this epoch.
            paused: whether nobody is to make items: who dies then has not tried.

        Raises:
            WorkerExitedError: it is no use.
        """
        if self._made is not None:
            return [index for index, *_ in self._made]
        members = self._members
        wanted = self._replacing.wanted(dead, ended)
        for index in dead:
            members.processes[index].wait(1.0)
            if index in wanted:
                self._judge(index, received, paused)
        if wanted and members.dispatches:
            self._check_calls(dead)
        for index in wanted:
            members.processes[index].kill()
        for index in wanted:
            members.processes[index].wait(KILLED)
        return wanted

    def _judge(self, index: int, received: Sequence[int], paused: bool) -> None:
        """Notes a death, and gives up where it has come too often without progress."""
        members, process = self._members, self._members.processes[index]
        if process.pid is None:  # the place was left empty
            return
        self._exitcodes[index] = process.exitcode
        is_worker = index < members.num_workers
        item = self._replacing.item_of(index, received)
        epoch = 0 if self.run is None else self.run.number
        deaths, is_new, is_final = self._replacing.judge(index, process.pid, epoch, received, paused)
        how, advice = how_it_died(process)
        where = f"at {'its' if is_worker else 'the'} item number {item} (counted from 0 in the epoch)"
        if is_final:
            text = (
                f"{how} {where}, as {deaths - 1} before it in its place; {advice}. Whatever makes that item ends its "
                "process each time: leave the item out, or mend the pipe"
            )
        elif self._shutdown.has_begun:
            text = f"{how} {where} while the loader was shut down; {advice}"
        else:
            self._untold += [f"{how} {where}; {advice}"] if is_new else []
            return
        raise WorkerExitedError(
            text,
            worker=index if is_worker else None,
            exitcode=process.exitcode,
            stage="reading items" if is_worker else "dispatching items",
            item=item,
        )

    def _check_calls(self, dead: Sequence[int]) -> None:
        """Gives up where nobody knows between which items the dispatching process has met a function."""
        members = self._members
        dispatching = len(members.processes) - 1
        deadline = time.monotonic() + ACKNOWLEDGED
        while True:
            with members.sending:
                if self._calls.is_placed(dispatching):
                    return
            if dispatching in dead or members.processes[dispatching].ended or time.monotonic() >= deadline:
                break
            time.sleep(GLANCE)  # it lives, and has the function or is about to get it
        index = dead[0]
        process = members.processes[index]
        how, advice = how_it_died(process)
        raise WorkerExitedError(
            f"{how}; {advice}. No other processes can take the places: a reading service was applying a function to "
            "the graphs in the middle of this epoch (to pause, to resume or to limit them), and how much was "
            "dispatched before it is not known, so the items behind it might be others. Apply such functions between "
            "two epochs, or share the items out by sharding_filter",
            worker=index if index < members.num_workers else None,
            exitcode=process.exitcode,
            stage="reading items" if index < members.num_workers else "dispatching items",
        )

    def on_replace(
        self, indices: Sequence[int], received: Received, ended: Sequence[bool]
    ) -> list[tuple[int, Link | None, int]]:
        """Puts other processes into these places, and has them go on where what was received ends.

        Args:
            indices: the places.
            received: what was received of the workers.
            ended: by worker, whether that is all of this epoch.

        Returns:
            By place: its number, the link over which it sends to main, if it does, and the process's number.
        """
        if self._made is None:
            began = time.monotonic()
            with InterruptsDeferred():
                self._made = self._replace(indices, received, ended)
            took = time.monotonic() - began
            untold, self._untold = self._untold, []
            all_of_them = ": all processes were replaced" if len(indices) > len(untold) else ""
            for words in untold:
                warnings.warn(
                    f"{words}. Another process has taken its place within {1000 * took:.0f} ms{all_of_them}; nothing "
                    'is lost, as on_worker_exit="restart" says',
                    RuntimeWarning,
                    stacklevel=2,
                )
        made, self._made = self._made, None
        return made

    def _replace(
        self, indices: Sequence[int], received: Received, ended: Sequence[bool]
    ) -> list[tuple[int, Link | None, int]]:
        members, shutdown = self._members, self._shutdown
        method = self._context.get_start_method()
        with members.sending:
            for index in indices:
                if index < members.num_workers:
                    self._calls.settle_behind(index, received[0][index][0][0])
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
            if shutdown.has_begun:  # it may not have seen them
                for child in started:
                    child.kill()
                    child.wait(KILLED)
            self._command(indices, received, ended)
        workers = members.num_workers
        return [
            (index, members.items_of(index) if index < workers else None, members.processes[index].pid or 0)
            for index in indices
        ]

    def _give_up(self, indices: Sequence[int], error: OSError) -> NoReturn:
        """Leaves the places empty: the next epoch tries again."""
        members = self._members
        for index in indices:
            members.processes[index].kill()
            members.processes[index].wait(KILLED)
            members.processes[index] = self._new_child(index)
            self._shutdown.replace(index, members.processes[index], members.control(index), members.commanders[index])
        untold, self._untold = self._untold, []
        died = "; ".join(untold) or "The place of one that has died is empty"
        index = next((index for index in indices if members.names[index] in died), indices[0])
        is_worker = index < members.num_workers
        raise WorkerExitedError(
            f"{died}. No other process could take its place: {error.strerror}",
            worker=index if is_worker else None,
            exitcode=self._exitcodes.get(index),
            stage="reading items" if is_worker else "dispatching items",
        ) from error

    def _new_child(self, index: int) -> ChildProcess:
        members, setup = self._members, self._members.setups[index]
        return new_child(self._context, members.names[index], run_child, (setup,), self._forker)

    # -- what they are told ------------------------------------------------------------------------

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        calls, run = self._calls, self.run
        self._apply(indices, calls.before)
        if run is None:
            self._apply(indices, calls.now)
            return
        starts = run.resume(received)
        begins = any(_begins(starts[index]) for index in indices)
        if Replacing.repeats_earlier(run.before is not None, begins):
            assert run.before is not None
            self._repeat(indices, *run.before)
        else:
            self._apply(indices, calls.earlier)
        for index in reversed(indices):  # the dispatching process first: the others wait for it
            if self._replacing.repeats(index, ended):
                self._send_repeat(index, run, starts[index], calls.now)
                continue
            announced = Announced.NONE if run.before is None else self._members.announced(index, starts)
            trace = self._trace(index, self._members.names[index])
            start = _with_calls(starts[index], calls.of(index, calls.now))
            command = (run.number, *run.commands(index), announced, start, trace)
            self._send(index, "epoch", *command)

    def _apply(self, indices: Sequence[int], calls: Sequence[Noted]) -> None:
        """Has functions applied before what is commanded next."""
        for noted in calls:
            for index in filter(noted.concerns, indices):
                self._send(index, "call", noted.serial, noted.function)

    def _repeat(self, indices: Sequence[int], run: Run, starts: Sequence[Resumption | None]) -> None:
        """Has the rest of an epoch that is over run again, for what outlives it."""
        for index in reversed(indices):
            self._send_repeat(index, run, starts[index], self._calls.earlier)
        self.await_repeated()

    def _send_repeat(self, index: int, run: Run, start: Resumption | None, calls: Sequence[Noted]) -> None:
        """Has a child run the rest of an epoch of which main has everything, and send nothing."""
        start = _with_calls(start, self._calls.of(index, calls)) or Resumption()
        if index < self._members.num_workers:
            ((sent, _, _),) = start.starts or [((0, 0), 0, None)]
            start = replace(start, starts=[(sent, ALL, None)])
        self._send(index, "repeat", run.number, *run.commands(index), Announced.NONE, start, None)
        self._repeating.add(index)

    def await_repeated(self) -> None:
        """Waits for those that run the rest of an epoch, where what they do then matters to the next one."""
        members, deadline = self._members, time.monotonic() + REPEATED
        while self._repeating:
            index = self._repeating.pop()
            with contextlib.suppress(_Gone):
                look = self._look_at(index)
                while not members.commanders[index].wait_acknowledged(members.sent[index], GLANCE, look):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{members.names[index]} did not come to the end of the last epoch within "
                            f"{REPEATED:.0f} s: its pipe is stuck"
                        )

    def _send(self, index: int, kind: str, number: int, *content: Any) -> None:
        with contextlib.suppress(_Gone):  # whose death is noticed like any other
            self._members.send(index, kind, number, *content, tick=self._look_at(index))

    def _look_at(self, index: int) -> Callable[[], None]:
        def look() -> None:
            if self._members.processes[index].ended or self._shutdown.has_begun:
                raise _Gone

        return look


def _start(child: ChildProcess, method: str) -> None:
    """Starts a child; where there is no room for another process, waits a little for it."""
    deadline = time.monotonic() + ROOM
    while True:
        try:
            return start_all([child], method)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM) or time.monotonic() >= deadline:
                raise
        time.sleep(GLANCE)


def _with_calls(start: Resumption | None, calls: tuple[Call, ...]) -> Resumption | None:
    return replace(start or Resumption(), calls=calls) if calls else start


def _begins(start: Resumption | None) -> bool:
    """Whether nothing but the epoch's beginning is there to go on from."""
    return start is None or start.content is None
