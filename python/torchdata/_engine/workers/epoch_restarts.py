"""Where those go on that take the places of a `DataLoader2`'s children: behind the newest snapshot.

Role: main's side. What was received beyond that is made again and dropped, as a loaded loader does it, with the
functions of main's between the same two items.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.shutdown import Shutdown
from torchdata._engine.snapshots import Announced, Call, Resumption
from torchdata._engine.workers.calls import Calls, Noted
from torchdata._engine.workers.hangs import STARTING, Hangs
from torchdata._engine.workers.members import Members, begins
from torchdata._engine.workers.restart import GLANCE, Gone, Received, Restarts
from torchdata._native import Replacing

__all__ = ["EpochRestarts", "Run"]

#: How long the dispatching process may take to obey a function when a worker has died.
ACKNOWLEDGED = 1.0
#: More items than an epoch has.
ALL = 1 << 62
#: Seconds within which a process has to run what is left of an epoch that is over.
REPEATED = 600.0


@dataclass(frozen=True)
class Run:
    """An epoch, or what is left of it, as far as one who takes a place in it must know.

    Args:
        number: the epoch's.
        commands: by shard, and for the dispatching process behind them, the seeds and the reset function.
        resume: from what was received, where each shard goes on, and the dispatching process.
        before: the epoch before this one, and where they go on in it, where something in the graphs outlives
            epochs; this one began with a snapshot of each worker then.
    """

    number: int
    commands: Callable[[int], tuple[Any, Any]]
    resume: Callable[[Received], list[Resumption | None]]
    before: tuple[Run, list[Resumption | None]] | None = None


class EpochRestarts(Restarts):
    """Who takes the places of children that run a graph, epoch by epoch.

    Args:
        members: the children. Its lists are changed.
        context: multiprocessing's context that starts them.
        shutdown: what ends them.
        hangs: what ends those that hang; None: nothing.
        deaths: whether the places of those are taken that have died otherwise, too.
    """

    def __init__(
        self,
        members: Members,
        context: BaseContext,
        shutdown: Shutdown,
        hangs: Hangs | None = None,
        deaths: bool = True,
    ) -> None:
        super().__init__(members, context, shutdown, hangs, deaths)
        #: The epoch that runs, if any has begun.
        self.run: Run | None = None
        self._calls = Calls(members)
        #: Those that run what is left of an epoch of which main has everything.
        self._repeating: set[int] = set()

    def begin_run(self, run: Run) -> None:
        """A run begins: who takes a place from now on takes it there."""
        with self._members.sending:
            self._calls.begin(run.before is not None)
        self.run = run
        self.begin(run.number)
        self._repeating.clear()

    def note_call(self, function: Callable[[Any], Any]) -> Noted:
        """Notes a function of main's that is about to be sent: those who take a place get it, too."""
        with self._members.sending:
            return self._calls.note(function)

    def note_resting(self, noted: Noted, index: int) -> None:
        """Notes that a child rests: the one that takes its place in the next epoch gets the function then."""
        with self._members.sending:
            self._calls.rest(noted, index)

    def _settle(self, indices: Sequence[int], received: Received) -> None:
        members, items = self._members, [items for (items, _), _ in received[0]]
        for index in indices:
            if index < members.num_workers:
                self._calls.settle_behind(index, members.received_of(index, items))

    def _check(self, dead: Sequence[int]) -> None:
        """Gives up where nobody knows between which items the dispatching process has met a function."""
        members = self._members
        if members.num_shards > members.num_workers and self._calls.any_now():
            self._refuse(dead[0], "between which items of its shards they came")
        if not members.dispatches:
            return
        dispatching = len(members.processes) - 1
        deadline = time.monotonic() + ACKNOWLEDGED
        while True:
            with members.sending:
                if self._calls.is_placed(dispatching):
                    return
            if dispatching in dead or members.processes[dispatching].ended or time.monotonic() >= deadline:
                break
            time.sleep(GLANCE)  # it lives, and has the function or is about to get it
        self._refuse(dead[0], "how much was dispatched before them")

    def _refuse(self, index: int, unknown: str) -> NoReturn:
        """Raises the error of a child that nobody can replace, as a function was applied in the epoch."""
        members = self._members
        process = members.processes[index]
        how, advice = self._how_it_died(process)
        raise WorkerExitedError(
            f"{how}; {advice}. No other processes can take the places: a reading service was applying a function to "
            f"the graphs in the middle of this epoch (to pause, to resume or to limit them), and {unknown} is not "
            "known, so the items behind it might be others. Apply such functions between two epochs, or let each "
            "worker run one share that sharding_filter deals out",
            worker=index if index < members.num_workers else None,
            exitcode=process.exitcode,
            stage="reading items" if index < members.num_workers else "dispatching items",
        )

    # -- what they are told ------------------------------------------------------------------------

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        run = self.run
        if run is None:
            self._apply(indices, runs=False, repeats=False)
            return
        members, starts = self._members, run.resume(received)
        begin = any(begins(start) for index in indices for start in members.starts_of(index, starts))
        repeats = Replacing.repeats_earlier(run.before is not None, begin)
        self._apply(indices, runs=True, repeats=repeats)
        if repeats:
            assert run.before is not None
            self._repeat(indices, *run.before)
        for index in reversed(indices):  # the dispatching process first: the others wait for it
            own = members.starts_of(index, starts)
            if self._replacing.repeats(index, self._ended(ended)):
                self._send_repeat(index, run, own, self._calls.within(index))
                continue
            announced = Announced.NONE if run.before is None else members.announced(index, starts)
            if index < members.num_workers:
                shards = zip(members.shards_of(index), own, strict=True)
                own = [_to_the_end(start) if ended[shard] else start for shard, start in shards]
            own[0] = _with_calls(own[0], self._calls.within(index))
            self._send(index, "epoch", run.number, *members.seeds_of(index, run.commands), announced, own)

    def _apply(self, indices: Sequence[int], *, runs: bool, repeats: bool) -> None:
        """Has functions applied before what is commanded next."""
        for index in indices:
            for noted in self._calls.ahead(index, runs, repeats):
                self._send(index, "call", noted.serial, noted.function)

    def _repeat(self, indices: Sequence[int], run: Run, starts: Sequence[Resumption | None]) -> None:
        """Has the rest of an epoch that is over run again, for what outlives it."""
        for index in reversed(indices):
            own = self._members.starts_of(index, starts)
            self._send_repeat(index, run, own, self._calls.within(index, earlier=True))
        self.await_repeated()

    def _send_repeat(self, index: int, run: Run, starts: list[Resumption | None], calls: tuple[Call, ...]) -> None:
        """Has a child run the rest of an epoch of which main has everything, and send nothing."""
        members = self._members
        starts = [_with_calls(starts[0], calls), *starts[1:]]
        if index < members.num_workers:
            starts = [_to_the_end(start) for start in starts]
        self._send(index, "repeat", run.number, *members.seeds_of(index, run.commands), Announced.NONE, starts)
        self._repeating.add(index)

    def await_repeated(self) -> None:
        """Waits for those that run the rest of an epoch, where what they do then matters to the next one."""
        members, deadline = self._members, time.monotonic() + REPEATED
        while self._repeating:
            index = self._repeating.pop()
            with contextlib.suppress(Gone):
                look = self._look_at_all(index)
                while not members.commanders[index].wait_acknowledged(members.sent[index], GLANCE, look):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{members.names[index]} did not come to the end of the last epoch within "
                            f"{REPEATED:.0f} s: its pipe is stuck"
                        )

    def _look_at_all(self, index: int) -> Callable[[], None]:
        """The look at a child that repeats an epoch: one whose dispatching process has died comes to no end."""
        look, processes = self.look_at(index), self._members.processes

        def look_at_all() -> None:
            look()
            if self._members.dispatches and any(one.ended for i, one in enumerate(processes) if not self.rests(i)):
                raise Gone

        return look_at_all

    def _send(self, index: int, kind: str, number: int, *content: Any) -> None:
        hangs = self.hangs
        seconds = None if hangs is None else max(STARTING, hangs.most)
        try:
            self._members.send(index, kind, number, *content, seconds=seconds, tick=self.look_at(index))
        except Gone:
            pass  # its death is noticed like any other
        except TimeoutError:
            if hangs is not None and seconds is not None:
                hangs.end(index, seconds)


def _with_calls(start: Resumption | None, calls: tuple[Call, ...]) -> Resumption | None:
    return replace(start or Resumption(), calls=calls) if calls else start


def _to_the_end(start: Resumption | None) -> Resumption:
    """The way of a shard that makes the rest of its epoch again, and sends nothing."""
    start = start or Resumption()
    ((sent, _, _),) = start.starts or [((0, 0), 0, None)]
    return replace(start, starts=[(sent, ALL, None)])
