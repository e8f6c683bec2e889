"""Replaces workers of a `StatefulDataLoader` that exit, or that hang and are killed.

Role: runs in the main process. For each worker, the iterator stores its last snapshot, the batches received since then,
and the outstanding orders. A replacement process loads this snapshot, like a loader that resumes. It then reads and
drops the batches that the main process has received. The outstanding orders are sent to it.

Before the first batch of an epoch, a worker has no snapshot in that epoch. Its replacement therefore repeats what the
worker had read in the previous epoch, and begins the new epoch after that, as the worker did.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torchdata._engine.snapshots import Account
from torchdata._engine.workers import restart
from torchdata._engine.workers.group import Group
from torchdata._engine.workers.hangs import Survived
from torchdata.stateful_dataloader._pinning import PinnedUnits
from torchdata.stateful_dataloader._with_workers import WorkersIterator
from torchdata.stateful_dataloader._worker import Received, Start

__all__ = ["RestartingIterator", "survived_by"]


def survived_by(loader: Any) -> Survived:
    """Returns which kinds of worker exits a loader survives."""
    return Survived.chosen(loader.on_worker_exit, loader.timeout, loader.on_timeout, loader.patience)


@dataclass
class _Beginning:
    """How a worker began an epoch.

    Args:
        place: the snapshot from which it resumed, or None.
        fresh: whether the epoch of this snapshot was over.
        shared_seed: the seed of PyTorch pipes.
        before: orders that repeat earlier, finished epochs.
    """

    place: Any
    fresh: bool
    shared_seed: int | None
    before: list[tuple[Any, ...]] = field(default_factory=list)


class _Restarts(restart.Restarts):
    """Replaces the workers of one iterator, without keeping the iterator alive."""

    def __init__(
        self, owner: weakref.ref[RestartingIterator], survived: Survived, group: Group, context: BaseContext
    ) -> None:
        hangs = group.hangs(survived, owner()._in_order)  # type: ignore[union-attr]
        super().__init__(group.members, context, group.ending, hangs, survived.deaths)
        self._owner = owner

    def _command(self, indices: Sequence[int], received: restart.Received, ended: Sequence[bool]) -> None:
        owner = self._owner()
        for worker in indices if owner is not None else ():
            owner.instruct(worker, [account for account, _ in received[0]])  # type: ignore[union-attr]


class RestartingIterator(WorkersIterator):
    """Reads in worker processes, and replaces workers that exit.

    A pinning thread may replace a worker while the program's thread sends orders. The data that it reads here is
    therefore modified only under the lock for sending.
    """

    #: By worker: how it began this epoch.
    _beginnings: list[_Beginning]
    #: How many workers, from the first on, give up their first turn.
    _fillers = 0

    def _restarts(self, loader: Any) -> Callable[[Group, BaseContext], restart.Restarts]:
        return partial(_Restarts, weakref.ref(self), survived_by(loader))

    # -- epochs --------------------------------------------------------------------------------------

    def _begin(self, places: list[Any], fresh: bool, first: int) -> None:
        numbers, seed = range(self._num_workers), self._shared_seed
        ways = [self._as_it_was_left(worker) if self._has_begun else [] for worker in numbers]
        self._beginnings = [_Beginning(place, fresh, seed, way) for place, way in zip(places, ways, strict=True)]
        self._fillers = first
        #: By worker: how many units of this epoch were processed.
        self._seen = [0] * self._num_workers
        super()._begin(places, fresh, first)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not self._pool.is_ending:
            self._hear_all()
        if isinstance(self._units, PinnedUnits):  # the pinning thread may replace workers on behalf of the last epoch
            self._units.leave()
        super()._reset(loader, first_iter)

    def _way_to(self, worker: int) -> tuple[list[tuple[Any, ...]], Any, bool, list[Any]]:
        """Returns the steps that bring a process to a worker's position in this epoch.

        Returns:
            Orders that repeat finished epochs, a snapshot, whether the snapshot's epoch is over, and the indices read
            since.
        """
        progress, beginning = self._progress[worker], self._beginnings[worker]
        if progress.place is not None:
            return [], progress.reached(), False, []
        since = progress.since
        return beginning.before, beginning.place, beginning.fresh, [None] * since if isinstance(since, int) else since

    def _as_it_was_left(self, worker: int) -> list[tuple[Any, ...]]:
        """Returns orders that repeat what a worker has read, or was ordered to read, in the abandoned epoch."""
        before, place, fresh, since = self._way_to(worker)
        ordered = [] if self._progress[worker].ended else [self._waiting[number] for number in self._busy[worker]]
        if place is None and not since and not ordered and not self._reading.is_iterable:
            return before  # the worker had no orders
        return [*before, ("repeat", self._beginnings[worker].shared_seed, place, fresh, [*since, *ordered])]

    # -- replacing a worker ----------------------------------------------------------------------------

    def instruct(self, worker: int, accounts: Sequence[Account]) -> None:
        """Sends a replacement process its orders.

        Args:
            worker: the number of the worker.
            accounts: for each shard, the number of units received in this epoch and their checksum.
        """
        shards = self._pool.shards_of(worker)
        starts = []
        for shard in shards:
            before, start, under_way, orders = self._start_of(shard, accounts[shard])
            starts.append(start)
        seed, fresh = self._beginnings[shards[0]].shared_seed, self._is_fresh(shards[0])
        # Orders, and epochs before this one, exist only if each worker runs one shard.
        self._pool.instruct(worker, [*before, self._pool.beginning(seed, fresh, starts)], under_way, orders)

    def _is_fresh(self, shard: int) -> bool:
        """Returns whether the epoch of the snapshot for a shard's replacement is over."""
        _, _, fresh, _ = self._way_to(shard)
        return fresh

    def _start_of(self, worker: int, account: Account) -> tuple[list[tuple[Any, ...]], Start, int, list[Any]]:
        """Returns how a replacement process begins a shard after the units that were already received.

        Returns:
            Orders that repeat finished epochs; the start; how many orders were answered by units that are not recorded
            yet; and the unanswered orders.
        """
        progress, busy, fills = self._progress[worker], self._busy[worker], worker < self._fillers
        units = max(0, account[0] - fills)
        unseen = 0 if progress.ended else units - self._seen[worker]
        orders = [] if progress.ended else [(number, self._waiting[number]) for number in busy]
        if not self._pool.is_ordered:
            orders = [(0, None)] * unseen
        before, place, _, since = self._way_to(worker)
        seen_again = [*since, *(index for _, index in orders[:unseen])]
        start = Start(place, fills and account[0] == 0, Received(account, seen_again, progress.ended))
        held = sum(unit[0] == worker for unit in self._held)
        if self._reading.is_iterable:
            orders = [(number, None) for number, _ in orders]
        return before, start, max(0, unseen - held), orders[unseen:]

    # -- batches -------------------------------------------------------------------------------------

    def _hand_over(self) -> tuple[Any] | None:
        with self._pool.sending:
            return super()._hand_over()

    def _account(self, unit: Any) -> bool:
        self._seen[unit[0]] += 1
        return super()._account(unit)

    def _hold(self) -> None:
        with self._pool.sending:
            super()._hold()
