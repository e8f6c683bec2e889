"""Runs the shards of an epoch that workers began, in the main process of a loader without workers.

A `WorkerOutput` yields the items of shards that run in the main process, instead of the items of worker processes. The
threads that read the loader run this code, one thread at a time, with a copy of the pipes for each shard. While a shard
runs, the process has the shard's worker info and global generators. Between two items, the worker info and the
generators of the process are restored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from torchdata._engine.snapshots import Account, Kept
from torchdata._engine.workers.epochs import StopPosition
from torchdata._engine.workers.program import ChildInfo, EpochProgram
from torchdata._importing import call_when_imported
from torchdata.datapipes._pipe.exchanging import ShardGlobals, one_at_a_time

_T = TypeVar("_T")

#: The number of recent items that are remembered, with the shard of each item.
_REMEMBERED = 1 << 12


class _Delivered(NamedTuple):
    """The position after an item: the number of items that were delivered, the shard of the last item, and the
    `Account` of each shard's items in the epoch."""

    total: int
    shard: int
    accounts: Sequence[Account]


class LocalShards:
    """Runs the shards of one epoch in this process, and yields one item of each shard in turn.

    Args:
        program: the program to run for each shard.
        num_shards: the number of shards.
        listener: an object that receives the notes of all shards, as in `Children`.
    """

    num_workers = 0
    dispatches = False

    def __init__(self, program: EpochProgram, num_shards: int, listener: Any) -> None:
        self.num_shards, self._listener = num_shards, listener
        self.collector = self
        self._programs = program.replicas(num_shards)
        self._iterators: list[Iterator[Any] | None] = []
        #: The positions after the latest items. An item is recorded by one call of `append`, which Ctrl-C cannot
        #: interrupt.
        self._positions: deque[_Delivered] = deque(maxlen=_REMEMBERED)
        #: The snapshots of all shards: the first entry contains the snapshots from where the epoch began or resumed,
        #: and at most two further entries contain the latest snapshots.
        self._snapshots: list[Sequence[Kept | None]] = []
        #: `_is_busy`: whether an item is being computed, or its computation was interrupted. `_is_stopped`: whether
        #: `stop` was called. Both flags prevent snapshots.
        self._is_busy = self._is_stopped = False
        for shard, each in enumerate(self._programs):
            self._in_shard(each, partial(each.prepare, ChildInfo(shard, num_shards, False, None)), enters=False)

    def _in_shard(self, program: EpochProgram, function: Callable[[], _T], *, enters: bool = True) -> _T:
        """Calls `function` with the worker info and the generators of a shard.

        Even if Ctrl-C interrupts the call, the native method `ShardGlobals.__exit__` restores the generators of the
        process.
        """
        with one_at_a_time(), ShardGlobals() as outside:
            outside.leave()
            try:
                if enters:
                    program.enter()
                try:
                    return function()
                finally:
                    program.leave()  # the shard's threads must not draw from the process's own generators
            finally:
                outside.enter()
                call_when_imported("worker info", {})

    # -- as children -----------------------------------------------------------------------------------

    def start_epoch(
        self,
        commands: Callable[[int], tuple[Any, Any]],
        resume: object,
        *,
        announced: bool = False,
        position: StopPosition | None = None,
    ) -> None:
        """Begins an epoch in all shards; see `Children.start_epoch`."""
        turn, accounts = (0, [(0, 0)] * self.num_shards) if position is None else (position.turn, position.accounts)
        self._listener.begin()
        self._positions.clear()
        self._positions.append(_Delivered(0, turn - 1, accounts))
        self._is_busy = self._is_stopped = False
        self._snapshots = [[None] * self.num_shards if position is None else position.kept[0]]
        self._iterators = []
        starts = [None] * self.num_shards if position is None else position.resumptions
        for shard, program in enumerate(self._programs):
            self._in_shard(program, partial(program.begin_epoch, *commands(shard)))
        iterators: list[Iterator[Any]] = []
        for program, start in zip(self._programs, starts, strict=True):
            resume_from = (start.content, start.strict) if start else (None,)
            iterators.append(self._in_shard(program, partial(program.resume_from, *resume_from)))
        for program, iterator, start in zip(self._programs, iterators, starts, strict=True):
            delivered = islice(iterator, sum(again for _, again, _ in (start and start.starts) or ()))
            self._in_shard(program, partial(deque, delivered, 0))
        self._iterators = [*iterators]

    def call(self, function: Callable[[Any], Any]) -> None:
        for program in self._programs:
            self._in_shard(program, partial(program.call, function))

    def shutdown(self) -> None:
        """Ends the threads of the pipes."""
        self.stop()
        for program in self._programs:
            program.close()

    # -- as a collector --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Returns this object, which yields one item of each shard in turn. This method is not a generator, because
        Ctrl-C would end a generator.
        """
        return self

    def __next__(self) -> Any:
        """Returns the next item. Other threads can access the shards only between two items."""
        with one_at_a_time():
            total, last, accounts = self._positions[-1]
            for step in range(self.num_shards):
                shard = (last + 1 + step) % self.num_shards
                iterator = None if self._is_stopped else self._iterators[shard]
                if iterator is None:
                    continue
                self._is_busy = True
                program = self._programs[shard]
                items: list[Any] = self._in_shard(program, partial(list, islice(iterator, 1)))
                note = program.note()
                if note is not None:
                    self._listener.receive(shard, note)
                if items:
                    # the checksum of the items is not computed here, so it is 0
                    now = [*accounts[:shard], (accounts[shard][0] + 1, 0), *accounts[shard + 1 :]]
                    self._positions.append(_Delivered(total + 1, shard, now))
                else:
                    self._iterators[shard] = None
                self._is_busy = False
                if items:
                    return items.pop()
            raise StopIteration

    def delivered(self) -> int:
        """Returns the number of items that this object has delivered."""
        return self._positions[-1].total

    def positions(self, delivered: int | None = None) -> tuple[list[tuple[Account, Any]], int, None] | None:
        """Returns the positions of all shards after `delivered` items; None if these positions are too old and were
        dropped.

        Args:
            delivered: the number of items; None for the current position.
        """
        with one_at_a_time():
            total, last, accounts = self._positions[-1]
            delivered = total if delivered is None else delivered
            if delivered == total and not self._is_busy:
                self._make_snapshots()
            back = total - delivered
            if back >= len(self._positions):
                return None
            if back:
                turn, accounts = self._positions[-back].shard, self._positions[-1 - back].accounts
            else:
                following = ((last + 1 + step) % self.num_shards for step in range(self.num_shards))
                turn = next((shard for shard in following if self._iterators[shard] is not None), 0)
            found = [
                (account, next((made for made in kept if made is not None and made[0][0] <= account[0]), None))
                for account, *kept in zip(accounts, *reversed(self._snapshots), strict=True)
            ]
            return found, turn, None

    def _make_snapshots(self) -> None:
        """Takes a snapshot of every shard, and keeps only the snapshots of the first call and of the last two calls."""
        snapshots: list[Kept | None] = []
        total, _, accounts = self._positions[-1]
        for program, account in zip(self._programs, accounts, strict=True):
            made = self._in_shard(program, program.snapshot)
            snapshots.append(None if made is None else (account, *made))
        first = 1 if total or any(self._snapshots[0]) else 0
        self._snapshots[first:] = [*self._snapshots[1:][-1:], snapshots]

    def follow(self, delivery: object) -> None:
        """Does nothing, because a computed item is delivered immediately."""

    def stop(self) -> None:
        self._is_stopped = True

    def pause(self) -> None:
        """Does nothing, because no items are computed ahead."""

    def resume(self) -> None:
        """Does nothing, because no items are computed ahead."""
