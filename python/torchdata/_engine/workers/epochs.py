"""Controls the children of a `DataLoader2` from the main process, epoch by epoch.

This module sends commands to the children, and waits until they are executed; `epoch_restarts.py` replaces children
that exit.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torchdata._engine import snapshots
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.workers.epoch_restarts import EpochRestarts, RestartableEpoch
from torchdata._engine.workers.group import Group
from torchdata._engine.workers.hangs import NONE, Survived
from torchdata._engine.workers.program import EpochProgram
from torchdata._engine.workers.restart import Ended, Received
from torchdata._handlers import is_of_handler
from torchdata._observe.outside.stacks import stop_answering
from torchdata._observe.stats.counting import MAIN_PAGE

ANSWER_TIMEOUT = 600.0
#: Seconds between two checks whether a child has acknowledged a command.
SHORT_INTERVAL = 0.002


@dataclass(frozen=True)
class StopPosition:
    """The position in an epoch where an earlier run stopped, and where this run resumes.

    Args:
        accounts: for each shard, the number and the checksum of the delivered items.
        turn: the number of the shard that provides the next item.
        resumptions: the positions of the shards, followed by the position of the dispatching process.
        kept: the snapshots in `resumptions`, as the arguments for `Collector.keep`.
    """

    accounts: list[snapshots.Account]
    turn: int
    resumptions: list[snapshots.Resumption | None]
    kept: tuple[list[snapshots.Kept | None], snapshots.KeptDispatched | None]


class Children(Group):
    """The processes that run the graphs of a `DataLoader2`.

    Args:
        window: the number of items that each worker may be ahead of the main process.
        in_order: whether the main process takes one item from each shard in turn.
        survived: the kinds of exits after which a child is replaced.
        listener: an object with the methods `begin` and `receive`, or None. Each epoch first calls `begin()`. Each
            result of `EpochProgram.note` is passed to `receive(worker, note)`, which may raise an error in the user's
            program.
        of_group: further arguments of `Group`.
    """

    def __init__(
        self,
        context: BaseContext,
        num_workers: int,
        program: EpochProgram,
        dispatch: EpochProgram | None,
        *,
        num_shards: int,
        window: int,
        in_order: bool,
        timeout: float | None,
        survived: Survived = NONE,
        listener: Any = None,
        **of_group: Any,
    ) -> None:
        self._window = window
        self._epoch = 0
        self._calls = 0
        self._timeout = timeout
        self._listener = listener
        super().__init__(context, num_workers, program, dispatch, num_shards=num_shards, **of_group)
        self.num_shards = num_shards
        self._members = members = self.members
        self._names, self._processes = members.names, members.processes
        self._restarts = self.replace_exited(EpochRestarts, survived, in_order)
        try:
            outputs = self.start()
            self.collector = self.collect(outputs, num_shards=num_shards, in_order=in_order, timeout=timeout)
            self.watch(self.collector)
            if listener is not None:
                self.collector.take_note(listener.receive)
            own = weakref.ref(self)  # unlike a WeakMethod, this reference runs no Python code when it is collected
            self.collector.report_surplus(self.budget, lambda *what: own()._on_surplus(*what))  # type: ignore[union-attr]
        except BaseException:
            self.shutdown()
            raise
        self._shutdown.afterwards = partial(stop_answering, self.stats, MAIN_PAGE)

    def start_epoch(
        self,
        commands: Callable[[int], tuple[Any, Any]],
        resume: Callable[[Received], list[snapshots.Resumption | None]],
        *,
        announced: bool = False,
        position: StopPosition | None = None,
    ) -> None:
        """Starts an epoch, or resumes it at `position`; `RestartableEpoch` explains `commands` and `resume`.

        If `announced` is True, each worker sends a snapshot before its first item of the epoch, and this method waits
        for all snapshots.
        """
        restarts, collector = self._restarts, self.collector
        if restarts is None:
            self._check_alive()
        before = self._end_of_run() if announced else None
        if restarts is not None and announced:
            restarts.await_repeated()
        self._epoch += 1
        if self._listener is not None:
            self._listener.begin()
        if position is None:
            collector.start_epoch(self._epoch, self._window)
        else:
            collector.start_epoch(self._epoch, self._window, position.accounts, position.turn)
            collector.keep(*position.kept)
        processes = list(self._processes)
        self.begin_epoch()
        if restarts is not None:  # new processes receive these commands from `EpochRestarts`
            restarts.begin_run(RestartableEpoch(self._epoch, commands, resume, before))
            self._check_alive()
        # The dispatching process receives its command first, because the workers wait for its items.
        for index in (*range(self.num_workers, len(processes)), *range(self.num_workers)):
            command = (
                self._epoch,
                *self._members.seeds_of(index, commands),
                self._members.announced(index) if announced else snapshots.Announced.NONE,
                None if position is None else self._members.starts_of(index, position.resumptions),
            )
            self._send(index, "epoch", *command, to=processes[index])
        if announced:
            self._await_snapshots()

    def _await_snapshots(self) -> None:
        """Waits for the first snapshot of each worker, and replaces workers that exit or hang.

        Without `on_timeout="restart"`, the wait for snapshots ends after the timeout, and the next read of an item
        raises an error.
        """
        hangs = None if self._restarts is None else self._restarts.hangs
        began = time.monotonic()
        while True:
            called = time.monotonic()
            self.collector.await_snapshots(self.dispatches)
            if self._restarts is None:
                return
            if self._check_alive():
                began = time.monotonic()
                continue
            if hangs is None or time.monotonic() - called < hangs.seconds:
                return
            for worker in self._without_snapshot():
                hangs.look(worker, time.monotonic() - began, hangs.seconds)

    def _without_snapshot(self) -> list[int]:
        """Returns the workers that have not sent their snapshots. If only the dispatching process's snapshot is
        missing, returns worker 0, because worker 0 forwards this snapshot.
        """
        found = self.collector.positions()
        missing = [] if found is None else [shard for shard, (_, kept) in enumerate(found[0]) if kept is None]
        return sorted({shard % self.num_workers for shard in missing}) or [0]

    def _end_of_run(self) -> tuple[RestartableEpoch, list[snapshots.Resumption | None]] | None:
        run = None if self._restarts is None else self._restarts.run
        found = self.collector.positions()
        if run is None or found is None:
            return None
        positions, _, dispatched = found
        return replace(run, before=None), run.resume((positions, dispatched))

    def want_large_snapshots(self) -> int:
        """Requests snapshots of any size. Returns the size in bytes of the largest snapshot that was too large to send,
        or 0.
        """
        had = self.stats.wants_large_snapshots()
        self.stats.want_large_snapshots()
        return 0 if had else self.stats.oversized()

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies `function` to the graph of every child between two items, and waits until all have applied it.

        After `call`, the exit of a child is an error, because a new child's graph would lack the changes by `function`.
        """
        self._check_alive()
        if self._restarts is not None:
            self._restarts.has_called = True
        self._calls += 1
        for index in range(len(self._processes)):
            if not self._is_resting(index):
                self._send(index, "call", self._calls, function)
        self._await_acknowledgments()

    def _is_resting(self, index: int) -> bool:
        return self._restarts is not None and self._restarts.rests(index)

    def _await_acknowledgments(self) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT
        try:
            for index in range(len(self._processes)):
                began = time.monotonic()
                while not self._is_resting(index) and not self._has_acknowledged(index):
                    # All workers may now send further items, because this child may need a dispatched item while the
                    # dispatching process waits for a worker that has reached its limit.
                    self.collector.relieve(False)
                    began = self._end_if_it_hangs(index, began)
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{self._names[index]} executed no command for {ANSWER_TIMEOUT:.0f} s: it is slow or hangs"
                        )
        finally:
            self.collector.relieve(True)

    def _end_if_it_hangs(self, index: int, began: float) -> float:
        """Kills the child if the child has not executed its command within the timeout. Returns when the wait for the
        command began: the current time if the child was killed, and `began` otherwise.
        """
        hangs = None if self._restarts is None else self._restarts.hangs
        if hangs is not None and hangs.end_if_over(index, time.monotonic() - began):
            return time.monotonic()
        return began

    def current_frame(self, page: dict[str, Any]) -> tuple[str, str]:
        child: int = page["page"] - 1
        return self._processes[child].current_frame(page)

    def _has_acknowledged(self, index: int) -> bool:
        members = self._members
        try:
            return members.commanders[index].wait_acknowledged(
                members.sent[index], SHORT_INTERVAL, self._look_at(index)
            )
        except Ended:
            self._check_alive()
            return False

    def _send(self, index: int, kind: str, number: int, *content: Any, to: ChildProcess | None = None) -> None:
        """Sends a command to a child and, if the child exits meanwhile, to the process that replaces the child. If `to`
        is given, only the process `to` gets the command."""
        began = time.monotonic()
        while to is None or self._processes[index] is to:
            try:
                tick = self._look_at(index)
                self._members.send(index, kind, number, *content, seconds=self._timeout, tick=tick)
                return
            except Ended:
                self._check_alive()
            except TimeoutError as error:
                if self._timeout is None or is_of_handler(error):
                    raise
                hangs = None if self._restarts is None else self._restarts.hangs
                if hangs is not None:
                    began = self._end_if_it_hangs(index, began)
                    continue
                raise TimeoutError(
                    f"{self._names[index]} read no command for {self._timeout:g} s (`timeout`): it is stuck or stopped"
                ) from None

    def _look_at(self, index: int) -> Callable[[], object]:
        return self._check_alive if self._restarts is None else self._restarts.look_at_all(index)

    def _check_alive(self) -> bool:
        """Returns whether a child was replaced."""
        return self.check_alive(self.collector)

    def _on_surplus(self, waited_for: int, taken_in: int, size: int) -> None:
        waited_for, taken_in = waited_for % self.num_workers, taken_in % self.num_workers
        warnings.warn(
            f"the main process holds {size / 2**20:.0f} MiB of items, more than the memory budget, because "
            f"{self._names[waited_for]} must yield the next item, but receives its next dispatched item only after "
            f"{self._names[taken_in]}. The workers yield very different numbers of items per dispatched item: use "
            "in_order=False, or make the numbers similar (unbatch after the workers)",
            RuntimeWarning,
            stacklevel=2,
        )
