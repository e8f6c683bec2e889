"""Resumes the replacements of a `DataLoader2`'s children from their newest snapshots.

Role: runs in the main process. A replacement replays the items that were received after its snapshot, as a loader does
when it loads a state. Functions of the main process are applied between the same two items as before.
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

__all__ = ["EpochRestarts", "Run"]

#: How many seconds the dispatching process has to apply a function after a worker has exited.
ACKNOWLEDGED = 1.0
#: A number of items that no epoch reaches.
ALL = 1 << 62
#: How many seconds a process has to finish the previous epoch.
REPEATED = 600.0


@dataclass(frozen=True)
class Run:
    """An epoch, or what remains of it, with the data that a replacement needs to join it.

    Args:
        number: the number of the epoch.
        commands: returns the seeds and the reset function of a shard. The dispatching process has the number after the
            last shard.
        resume: computes where each shard and the dispatching process resume, given the received items.
        before: the previous epoch and the children's positions in it, if a part of the graphs outlives epochs. In this
            case, each worker began this epoch with a snapshot.
    """

    number: int
    commands: Callable[[int], tuple[Any, Any]]
    resume: Callable[[Received], list[Resumption | None]]
    before: tuple[Run, list[Resumption | None]] | None = None


class EpochRestarts(Restarts):
    """Replaces children that run a graph, epoch by epoch.

    Args:
        members: the children. Their lists are updated.
        context: the multiprocessing context that starts the children.
        shutdown: the object that ends the children.
        hangs: kills children that hang; None if no child is killed for that.
        deaths: whether children that exit for any other reason are replaced, too.
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
        #: The current epoch; None before the first one.
        self.run: Run | None = None
        self._calls = Calls(members)
        #: Children that finish an epoch without sending items, because all of them were received.
        self._repeating: set[int] = set()

    def begin_run(self, run: Run) -> None:
        """Records that an epoch begins or resumes. Later replacements join it."""
        with self._members.sending:
            self._calls.begin(run.before is not None)
        self.run = run
        self.begin(run.number)
        self._repeating.clear()

    def note_call(self, function: Callable[[Any], Any]) -> Noted:
        """Records a function that is about to be sent to the children, so that replacements apply it, too."""
        with self._members.sending:
            return self._calls.note(function)

    def note_resting(self, noted: Noted, index: int) -> None:
        """Records that a child does not run in this epoch. Its replacement in the next epoch applies the function."""
        with self._members.sending:
            self._calls.rest(noted, index)

    def _settle(self, indices: Sequence[int], received: Received) -> None:
        members, items = self._members, [items for (items, _), _ in received[0]]
        for index in indices:
            if index < members.num_workers:
                self._calls.settle_behind(index, members.received_of(index, items))

    def _check(self, dead: Sequence[int]) -> None:
        """Raises an error if it is unknown between which items the dispatching process has applied a function."""
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
            time.sleep(GLANCE)  # the process is alive, and has received the function or is about to
        self._refuse(dead[0], "how much was dispatched before them")

    def _refuse(self, index: int, unknown: str) -> NoReturn:
        """Raises the error for a child that cannot be replaced because a function was applied in the epoch."""
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

    # -- commands ----------------------------------------------------------------------------------

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        run = self.run
        if run is None:
            self._apply(indices, runs=False, repeats=False)
            return
        members, starts = self._members, run.resume(received)
        begin = any(begins(start) for index in indices for start in members.starts_of(index, starts))
        # State that outlives an epoch is restored by repeating the end of the previous one. A snapshot of this epoch
        # would contain that state.
        repeats = run.before is not None and begin
        self._apply(indices, runs=True, repeats=repeats)
        if repeats:
            assert run.before is not None
            self._repeat(indices, *run.before)
        for index in reversed(indices):  # the dispatching process first, because the workers wait for it
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
        """Commands the children to apply functions before their next command."""
        for index in indices:
            for noted in self._calls.ahead(index, runs, repeats):
                self._send(index, "call", noted.serial, noted.function)

    def _repeat(self, indices: Sequence[int], run: Run, starts: Sequence[Resumption | None]) -> None:
        """Commands the children to finish the previous epoch, for the parts of the graph that outlive it."""
        for index in reversed(indices):
            own = self._members.starts_of(index, starts)
            self._send_repeat(index, run, own, self._calls.within(index, earlier=True))
        self.await_repeated()

    def _send_repeat(self, index: int, run: Run, starts: list[Resumption | None], calls: tuple[Call, ...]) -> None:
        """Commands a child to finish an epoch without sending items, because all of them were received."""
        members = self._members
        starts = [_with_calls(starts[0], calls), *starts[1:]]
        if index < members.num_workers:
            starts = [_to_the_end(start) for start in starts]
        self._send(index, "repeat", run.number, *members.seeds_of(index, run.commands), Announced.NONE, starts)
        self._repeating.add(index)

    def await_repeated(self) -> None:
        """Waits for children that finish the previous epoch, if its effects matter in the next one."""
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
        """Returns a function that checks the processes while a child repeats an epoch, which never ends if the
        dispatching process has exited.
        """
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
            pass  # the exit of the child is noticed elsewhere
        except TimeoutError:
            if hangs is not None and seconds is not None:
                hangs.end(index, seconds)


def _with_calls(start: Resumption | None, calls: tuple[Call, ...]) -> Resumption | None:
    return replace(start or Resumption(), calls=calls) if calls else start


def _to_the_end(start: Resumption | None) -> Resumption:
    """Returns the resumption of a shard that recomputes the rest of its epoch, and sends nothing."""
    start = start or Resumption()
    ((sent, _, _),) = start.starts or [((0, 0), 0, None)]
    return replace(start, starts=[(sent, ALL, None)])
