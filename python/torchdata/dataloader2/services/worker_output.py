"""The pipe of the main process's graph that yields the workers' items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchdata._engine.snapshots import Resumption
from torchdata._engine.workers.epochs import Children, StopPosition
from torchdata._engine.workers.restart import Received
from torchdata._native import Delivery
from torchdata.dataloader2.services.local_shards import LocalShards
from torchdata.dataloader2.state.position import Shard, WorkersPosition
from torchdata.dataloader2.state.worker_positions import position_of, resumptions, unverified, why_unsaved
from torchdata.datapipes.datapipe import IterDataPipe


@dataclass(frozen=True)
class WorkersEpoch:
    """The processes and the items of one epoch. Both fields are replaced together, so that no thread reads the items of
    one epoch from the processes of another.
    """

    children: Children | LocalShards
    items: Iterator[Any]


class WorkerOutput(IterDataPipe[Any]):
    """Replaces, in the main process's graph, the pipes that run in the workers, and yields their items.

    Args:
        lasts: whether a pipe that runs in the child processes keeps state from one epoch to the next.
        may_count: whether pipes may change attributes that affect later epochs; each worker then sends a snapshot at
            the beginning of every epoch except the first.
        lasts_in_workers: the names of pipes in the workers that keep state between epochs.
        lasts_dispatched: the names of pipes in the dispatching process that keep state between epochs.
        shards: the shards that the processes run.
        divides_again: whether the shards change at the next epoch.
    """

    #: `WorkerOutput` does not save a state, because a loader's state contains the workers' positions separately.
    iteration_state = ()
    item_attributes = frozenset({"shards", "_lasts_in_workers", "_lasts_dispatched"})

    def __init__(
        self,
        children: Children | LocalShards,
        lasts: bool = False,
        may_count: bool = False,
        in_order: bool = True,
        lasts_in_workers: Sequence[str] = (),
        lasts_dispatched: Sequence[str] = (),
        shards: Sequence[Shard] = (),
        pipes: int = 0,
        divides_again: bool = False,
    ) -> None:
        self.pipes_in_workers = pipes
        self.shards, self.divides_again = shards, divides_again
        self.run = WorkersEpoch(children, iter(()))
        self.lasts, self.may_count = lasts, may_count
        self.in_order = in_order
        self._lasts_in_workers, self._lasts_dispatched = lasts_in_workers, lasts_dispatched
        self._commands: Callable[[int], tuple[Any, Any]] | None = None
        #: Whether the next iteration only restores a state from the end of an epoch, and yields no items.
        self.is_between_epochs = False
        self.is_unread = False
        #: Whether the next epoch resumes an epoch of an earlier run.
        self.resumes = False
        #: `_epochs` counts epochs, and `_passes` counts iterations over the workers' items. There are more iterations
        #: than epochs if a pipe in the main process rereads an epoch.
        self._epochs = self._passes = self._passes_before = 0
        #: The reason why a process could not take a snapshot for the last requested position.
        self.unsaved: str | None = None
        self._resume_at: tuple[WorkersPosition, bool] | None = None
        self._delivery: Delivery | None = None

    @property
    def _children(self) -> Children | LocalShards:
        return self.run.children

    @property
    def is_local(self) -> bool:
        return self._children.num_workers == 0

    @property
    def repeats_order(self) -> bool:
        return self.in_order or min(self._children.num_workers, len(self.shards)) <= 1

    def adopt(self, children: Children | LocalShards, shards: Sequence[Shard]) -> None:
        """Replaces the processes by `children`, which run the given shards from the next epoch on."""
        self.shards, self.divides_again = shards, False
        self.run = WorkersEpoch(children, iter(()))
        children.collector.follow(self._delivery)

    def _number_of_shares(self) -> int:
        return len(self.shards)

    @property
    def dispatches(self) -> bool:
        return self._children.dispatches

    def resume_at(self, position: WorkersPosition, strict: bool) -> None:
        """Makes the next epoch resume; if `strict` is True, recomputed items are compared with the original items.

        Raises ValueError if the saved epoch differs in the number of shards or in the use of a dispatching process.
        """
        if len(position.shards) != len(self.shards):
            raise ValueError("this state is from an epoch with another number of shards: save a state between epochs")
        resumptions(position, self._children.dispatches, strict)
        self._resume_at = position if strict else unverified(position), strict

    def start_epoch(self, commands: Callable[[int], tuple[Any, Any]]) -> None:
        self._commands = commands
        self._epochs += 1
        self._passes_before = self._passes
        self._start(commands)
        self.is_unread = True

    def _start(self, commands: Callable[[int], tuple[Any, Any]]) -> None:
        children, (position, strict) = self._children, self._resume_at or (None, True)
        self._resume_at = None
        self._passes += 1
        # `resume` does not refer to `children`, because such a reference would prevent `children` from being freed.
        resume = partial(_resume, children.dispatches, strict)
        left, announced = None, self.may_count and self._passes > 1
        if position is not None:
            self.want_large_snapshots()  # a user who has loaded a state will probably save states, too
            starts = resumptions(position, children.dispatches, strict)
            accounts, kept = (
                [shard.received for shard in position.shards],
                [shard.snapshot for shard in position.shards],
            )
            left, announced = StopPosition(accounts, position.turn, starts, (kept, position.dispatching)), False
        children.start_epoch(commands, resume, announced=announced, position=left)
        self.run = WorkersEpoch(children, iter(children.collector))

    def follow(self, delivery: Delivery | None) -> None:
        """Connects the collector to a counter of delivered items. With None, disconnects it."""
        if delivery is not self._delivery:  # `follow` waits for the collector's lock, which a reader may hold
            self._delivery = delivery
            self._children.collector.follow(delivery)

    def want_large_snapshots(self) -> int:
        """Calls `Children.want_large_snapshots`, and returns its result; 0 if no workers run."""
        children = self._children
        return 0 if isinstance(children, LocalShards) else children.want_large_snapshots()

    @property
    def delivered(self) -> int:
        return self._children.collector.delivered()

    def position(self, delivered: int) -> WorkersPosition | None:
        """Returns the workers' positions after `delivered` items; None if these positions were dropped.

        `position` may be called at any time, even while another thread takes items, or from a signal handler.
        """
        run = self.run
        found = run.children.collector.positions(delivered)
        if found is None:
            return None
        self.unsaved = why_unsaved(found)
        return position_of(found, run.children.dispatches)

    @property
    def shares(self) -> list[int] | None:
        """The number of items of each shard; None if items are delivered out of order or dispatched."""
        run = self.run
        if not self.in_order or self.dispatches:
            return None
        found = run.children.collector.positions()
        return None if found is None else [items for (items, _), _ in found[0]]

    @property
    def is_in_first_pass(self) -> bool:
        return self._passes == self._passes_before + 1

    def lacking(self, position: WorkersPosition | None) -> str | None:
        """Returns why `position` lacks state that pipes keep from earlier iterations; None if nothing is missing.
        `position=None` means the beginning of the epoch.
        """
        lasting = self._lasts_dispatched or self._lasts_in_workers
        if not lasting or (self._epochs if position is None else self._passes) <= 1:
            return None
        shards = () if position is None else position.shards
        missing = next((number for number, shard in enumerate(shards) if shard.snapshot is None), None)
        if position is None:
            name, owner = lasting[0], "the processes"
        elif self._lasts_dispatched and position.dispatching is None:
            name, owner = lasting[0], "the dispatching process"
        elif self._lasts_in_workers and missing is not None and self.unsaved is None:
            name, owner = self._lasts_in_workers[0], f"worker {missing}"
        else:
            return None
        return (
            f"{name} keeps a state from epoch to epoch, but no snapshot of {owner} arrived in this epoch before the "
            "position to be saved: save the state some items later, or between two epochs"
        )

    def read_out(self) -> None:
        """Makes the workers finish an epoch that is resumed after its last item, because no pipe in the main process
        requests a further item.

        Raises RuntimeError if the workers yield a further item.
        """
        for _ in self.run.items:
            raise RuntimeError(
                "this pipeline does not repeat itself, so it cannot resume from the state: the workers yield more "
                "items than were delivered before the state was saved"
            )
        self.is_unread = False  # another iteration in this epoch restarts the workers

    def __iter__(self) -> Iterator[Any]:
        if self.is_between_epochs:
            return iter(())
        if self._commands is None:
            raise RuntimeError(
                "the workers have not received a command to start an epoch: iterate the DataLoader2, not its pipe"
            )
        if not self.is_unread:  # a pipe in the main process reads the workers' output several times in one epoch
            self._start(self._commands)
        self.is_unread = False
        return self.run.items

    #: Error messages about this pipe use the plural, because it represents several processes.
    is_several = True

    def __repr__(self) -> str:
        return "the worker processes"

    def __getstate__(self) -> Any:
        raise TypeError("the output of running worker processes can be neither pickled nor copied")


def _resume(dispatches: bool, strict: bool, received: Received) -> list[Resumption | None]:
    positions, dispatched = received
    return resumptions(position_of((positions, 0, dispatched), dispatches), dispatches, strict)
