"""Other processes in the places of workers of a `StatefulDataLoader` that die, or hang and are killed.

Role: main. The iterator knows of each worker the place that it told last, what it was given behind that, and what was
ordered. So the process that takes a worker's place is told that place, as a loaded loader tells it; what main has
received since it reads once more and drops, and what main has not received it is ordered again.

Before its first batch of an epoch a worker has no place in it. Who takes its place then reads what the other one had
read of the epoch before once more, and begins the epoch behind that, as the other one did.
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
    """The ends of workers that a loader survives."""
    return Survived.chosen(loader.on_worker_exit, loader.timeout, loader.on_timeout, loader.patience)


@dataclass
class _Beginning:
    """How a worker came to the beginning of an epoch.

    Args:
        place: the place that it was given; None for none.
        fresh: whether the epoch of that place was over.
        shared_seed: what pipes of torch's kind were seeded with.
        before: orders to read epochs once more that are over.
    """

    place: Any
    fresh: bool
    shared_seed: int | None
    before: list[tuple[Any, ...]] = field(default_factory=list)


class _Restarts(restart.Restarts):
    """Who takes the places of the workers of one iterator, which it does not keep alive."""

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
    """Reads in worker processes, in whose places others are put when they die.

    A thread that pins may do that while the program's orders: what it reads here is changed with the lock for sending
    held.
    """

    #: By worker: how it came to the beginning of this epoch.
    _beginnings: list[_Beginning]
    #: How many workers, from the first on, let the others begin.
    _fillers = 0

    def _restarts(self, loader: Any) -> Callable[[Group, BaseContext], restart.Restarts]:
        return partial(_Restarts, weakref.ref(self), survived_by(loader))

    # -- epochs --------------------------------------------------------------------------------------

    def _begin(self, places: list[Any], fresh: bool, first: int) -> None:
        numbers, seed = range(self._num_workers), self._shared_seed
        ways = [self._as_it_was_left(worker) if self._has_begun else [] for worker in numbers]
        self._beginnings = [_Beginning(place, fresh, seed, way) for place, way in zip(places, ways, strict=True)]
        self._fillers = first
        #: By worker: units that were looked at, in this epoch.
        self._seen = [0] * self._num_workers
        super()._begin(places, fresh, first)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not self._pool.is_ending:
            self._hear_all()
        if isinstance(self._units, PinnedUnits):  # who pins may put others in places, as of the last epoch
            self._units.leave()
        super()._reset(loader, first_iter)

    def _way_to(self, worker: int) -> tuple[list[tuple[Any, ...]], Any, bool, list[Any]]:
        """How one comes to where a worker stands in this epoch.

        Returns:
            Orders to read epochs once more that are over; a place, and whether its epoch is over; indices behind it.
        """
        progress, beginning = self._progress[worker], self._beginnings[worker]
        if progress.place is not None:
            return [], progress.reached(), False, []
        since = progress.since
        return beginning.before, beginning.place, beginning.fresh, [None] * since if isinstance(since, int) else since

    def _as_it_was_left(self, worker: int) -> list[tuple[Any, ...]]:
        """Orders to read once more what a worker has read, and was ordered to, in the epoch that is left."""
        before, place, fresh, since = self._way_to(worker)
        ordered = [] if self._progress[worker].ended else [self._waiting[number] for number in self._busy[worker]]
        if place is None and not since and not ordered and not self._reading.is_iterable:
            return before  # it had nothing to do
        return [*before, ("repeat", self._beginnings[worker].shared_seed, place, fresh, [*since, *ordered])]

    # -- the place of one that has died ----------------------------------------------------------------

    def instruct(self, worker: int, accounts: Sequence[Account]) -> None:
        """Tells another process in the place of a worker what to do.

        Args:
            worker: its number.
            accounts: by shard, what was received in this epoch: units, and their checksum.
        """
        shards = self._pool.shards_of(worker)
        starts = []
        for shard in shards:
            before, start, under_way, orders = self._start_of(shard, accounts[shard])
            starts.append(start)
        seed, fresh = self._beginnings[shards[0]].shared_seed, self._is_fresh(shards[0])
        # There are orders, and epochs before this one, only if each worker runs one shard.
        self._pool.instruct(worker, [*before, self._pool.beginning(seed, fresh, starts)], under_way, orders)

    def _is_fresh(self, shard: int) -> bool:
        """Whether the epoch of the place that one in a shard's place is given is over."""
        _, _, fresh, _ = self._way_to(shard)
        return fresh

    def _start_of(self, worker: int, account: Account) -> tuple[list[tuple[Any, ...]], Start, int, list[Any]]:
        """How another process begins with a shard, behind what was received of it.

        Returns:
            Orders to read epochs once more that are over; the start; how many orders were answered by units that were
            not noted yet; and those that were not answered.
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
