"""Replaces exited children of a `DataLoader2` by new processes, which resume from the newest snapshots.

A new process restores a snapshot, and recomputes the items that were received after the snapshot. After the main
process has applied a function to the children's graphs, the exit of a child is an error, because a new graph would lack
the function's changes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdata._engine.snapshots import Announced, Resumption
from torchdata._engine.workers.hangs import STARTING
from torchdata._engine.workers.members import begins
from torchdata._engine.workers.restart import SHORT_INTERVAL, Ended, Received, Restarts
from torchdata._handlers import is_of_handler

ALL = 1 << 62
REPEATED = 600.0


@dataclass(frozen=True)
class RestartableEpoch:
    """The data that a new process needs to resume the epoch of an exited child.

    Args:
        commands: a function that returns the seeds and the reset function for the shard with the given number. With the
            number of shards as its argument, `commands` returns the data for the dispatching process.
        resume: a function that computes the positions where the shards and the dispatching process resume, given the
            items that were received.
        before: the previous epoch, and each child's position in that epoch; None if no pipe keeps state from one epoch
            to the next. If `before` is given, each worker has sent a snapshot at the beginning of this epoch.
    """

    number: int
    commands: Callable[[int], tuple[Any, Any]]
    resume: Callable[[Received], list[Resumption | None]]
    before: tuple[RestartableEpoch, list[Resumption | None]] | None = None


class EpochRestarts(Restarts):
    run: RestartableEpoch | None = None
    has_called = False
    #: Children that must finish an epoch without sending items, because all its items were received.
    _repeating: frozenset[int] = frozenset()

    def begin_run(self, run: RestartableEpoch) -> None:
        self.run = run
        self.begin(run.number)
        self._repeating = frozenset()

    def _check(self, exited: Sequence[int]) -> None:
        if not self.has_called:
            return
        members, index = self._members, exited[0]
        process, worker = members.processes[index], index if index < members.num_workers else None
        how, advice = self._how_it_exited(process)
        raise members.program_class.exit_error(
            process,
            worker,
            f"{how}; {advice}. It cannot be replaced, because a reading service has applied a function to the graphs "
            "of the running processes (to pause, to resume or to limit them), and a new process would lack these "
            "changes. Change the graph in `worker_reset_fn` instead, because each new process calls that function",
        )

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        run = self.run
        if run is None:
            return
        members, starts = self._members, run.resume(received)
        begin = any(begins(start) for index in indices for start in members.starts_of(index, starts))
        # If pipes keep state between epochs, and no snapshot of this epoch exists, a new child first recomputes the end
        # of the previous epoch.
        repeats = run.before is not None and begin
        if repeats:
            assert run.before is not None
            self._repeat(indices, *run.before)
        for index in reversed(indices):  # the dispatching process comes first, because the workers wait for it
            own = members.starts_of(index, starts)
            if self._replacing.repeats(index, self._ended(ended)):
                self._send_repeat(index, run, own)
                continue
            announced = Announced.NONE if run.before is None else members.announced(index, starts)
            if index < members.num_workers:
                shards = zip(members.shards_of(index), own, strict=True)
                own = [_to_the_end(start) if ended[shard] else start for shard, start in shards]
            self._send(index, "epoch", run.number, *members.seeds_of(index, run.commands), announced, own)

    def _repeat(self, indices: Sequence[int], run: RestartableEpoch, starts: Sequence[Resumption | None]) -> None:
        for index in reversed(indices):
            self._send_repeat(index, run, self._members.starts_of(index, starts))
        self.await_repeated()

    def _send_repeat(self, index: int, run: RestartableEpoch, starts: list[Resumption | None]) -> None:
        """Makes a child finish an epoch without sending items, because all its items were received."""
        members = self._members
        if index < members.num_workers:
            starts = [_to_the_end(start) for start in starts]
        self._send(index, "repeat", run.number, *members.seeds_of(index, run.commands), Announced.NONE, starts)
        self._repeating |= {index}

    def await_repeated(self) -> None:
        """Waits for children that finish the previous epoch, if the next epoch depends on their state."""
        members, deadline = self._members, time.monotonic() + REPEATED
        while self._repeating:
            index = min(self._repeating)
            self._repeating -= {index}
            with contextlib.suppress(Ended):
                look = self.look_at_all(index)
                while not members.commanders[index].wait_acknowledged(members.sent[index], SHORT_INTERVAL, look):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{members.names[index]} did not reach the end of the last epoch within "
                            f"{REPEATED:.0f} s, because a pipe is slow or hangs"
                        )

    def look_at_all(self, index: int) -> Callable[[], None]:
        """Returns a function that raises `Ended` if the child has exited or was replaced. With a dispatching process,
        the exit of any child raises `Ended`, because child `index` may wait for the exited child forever.
        """
        look, processes = self.look_at(index), self._members.processes
        process = processes[index]

        def look_at_all() -> None:
            look()
            others = enumerate(processes) if self._members.dispatches else ()
            if processes[index] is not process or any(one.ended for i, one in others if not self.rests(i)):
                raise Ended

        return look_at_all

    def _send(self, index: int, kind: str, number: int, *content: Any) -> None:
        hangs = self.hangs
        seconds = None if hangs is None else max(STARTING, hangs.most)
        try:
            self._members.send(index, kind, number, *content, seconds=seconds, tick=self.look_at(index))
        except Ended:
            pass
        except TimeoutError as error:
            if hangs is None or seconds is None or is_of_handler(error):
                raise
            hangs.end(index, seconds)


def _to_the_end(start: Resumption | None) -> Resumption:
    """Returns the position where a shard starts if it recomputes the whole epoch without sending items."""
    start = start or Resumption()
    ((sent, _, _),) = start.starts or [((0, 0), 0, None)]
    return replace(start, starts=[(sent, ALL, None)])
