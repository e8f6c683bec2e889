"""Shards in the main process: completes an epoch that workers began, in a loader without workers.

Role: replaces the worker processes for a `WorkerOutput`. Runs in the threads that read the loader, one at a
time, and owns a copy of the pipes for each shard. While a shard runs, the process has the shard's worker info and
global generators. Between two items, it has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from torchdata._engine.items.torch_worker import torch_as_it_was
from torchdata._engine.snapshots import Account, Resumption
from torchdata._engine.workers.epochs import StopPosition
from torchdata._engine.workers.program import ChildInfo, EpochProgram
from torchdata.datapipes._pipe import random as own_random
from torchdata.datapipes._pipe import skipping, witnessing
from torchdata.datapipes._pipe.state.exchanging import one_at_a_time
from torchdata.datapipes.iter.threads.prefetching import end_threads
from torchdata.datapipes.state import load_generators, save_generators


class LocalShards:
    """Runs the shards of one epoch in this process, one item of each in turn. Acts as `Children` and their collector.

    Args:
        program: the program of the shards.
        num_shards: the number of shards.
    """

    num_workers = 0
    dispatches = False
    is_forked = False

    def __init__(self, program: EpochProgram, num_shards: int) -> None:
        self.num_shards = num_shards
        self.collector = self
        self.stall_warning: float | None = None
        self._programs = program.replicas(num_shards)
        #: For each shard, the number of items that were delivered, including earlier runs of the epoch.
        self._given: list[Account] = [(0, 0)] * num_shards
        self._iterators: list[Iterator[Any] | None] = []
        self._turn = self._delivered = 0
        #: Whether an item is being computed. A signal handler that requests positions then gets none.
        self._is_busy = self._is_stopped = False
        for shard, each in enumerate(self._programs):
            with self._as_shard(each, enters=False):
                each.prepare(ChildInfo(shard, num_shards, False, None))

    @contextmanager
    def _as_shard(self, program: EpochProgram, *, enters: bool = True) -> Iterator[None]:
        """Context that gives the process the globals of a shard."""
        with one_at_a_time(), torch_as_it_was():
            generators, replica, worker, witness = (
                save_generators(),
                own_random.is_replica,
                skipping.worker,
                witnessing.current,
            )
            try:
                own_random.is_replica = True
                if enters:
                    program.enter()
                yield
                program.leave()
            finally:
                own_random.is_replica, skipping.worker, witnessing.current = replica, worker, witness
                load_generators(generators)

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
        self._given = [(0, 0)] * self.num_shards if position is None else list(position.given)
        self._turn, self._delivered, self._is_stopped = 0 if position is None else position.turn, 0, False
        self._iterators = []
        for shard, program in enumerate(self._programs):
            start = (None if position is None else position.resumptions[shard]) or Resumption()
            with self._as_shard(program):
                program.begin_epoch(*commands(shard))
                iterator = program.go_on_from(start.content, start.strict)
                again = sum(again for _, again, _ in start.starts or ())
                for _ in islice(iterator, again):
                    pass
            self._iterators.append(iterator)

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies a function to the graph of each shard."""
        for program in self._programs:
            with self._as_shard(program):
                program.call(function)

    def end_epoch(self) -> None:
        """Does nothing, because nothing is counted during an epoch."""

    def shutdown(self) -> None:
        """Ends the threads of the pipes."""
        self.stop()
        for program in self._programs:
            end_threads(program.datapipe)

    # -- as a collector --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yields the items of all shards, one of each in turn."""
        while items := self._next():
            yield items.pop()

    def _next(self) -> list[Any]:
        """Returns the next item in a list; empty at the end. Other threads see the shards only between items."""
        with one_at_a_time():
            while not self._is_stopped and any(iterator is not None for iterator in self._iterators):
                shard, self._turn = self._turn, (self._turn + 1) % self.num_shards
                iterator = self._iterators[shard]
                if iterator is None:
                    continue
                self._is_busy = True
                with self._as_shard(self._programs[shard]):
                    items = [*islice(iterator, 1)]
                self._is_busy = False
                if items:
                    (count, checksum), self._delivered = self._given[shard], self._delivered + 1
                    self._given[shard] = count + 1, checksum
                    return items
                self._iterators[shard] = None
            return []

    def delivered(self) -> int:
        """Returns the number of items since the epoch began here."""
        return self._delivered

    def places(self, delivered: int | None = None) -> tuple[list[tuple[Account, Any]], int, None] | None:
        """Returns the positions of all shards, with a snapshot of each; None if unknown, as for earlier items."""
        with one_at_a_time():
            if self._is_busy or delivered not in (None, self._delivered):
                return None
            found: list[tuple[Account, Any]] = []
            for program, given in zip(self._programs, self._given, strict=True):
                with self._as_shard(program):
                    made = program.snapshot()
                found.append((given, None if made is None else (given, *made)))
            live = [shard for shard, iterator in enumerate(self._iterators) if iterator is not None]
            turn = next((shard for shard in live if shard >= self._turn), live[0] if live else 0)
            return found, turn, None

    def follow(self, delivery: object) -> None:
        """Does nothing, because every item is delivered at once."""

    def stop(self) -> None:
        """Stops yielding items of the epoch."""
        self._is_stopped = True

    def pause(self) -> None:
        """Does nothing, because no items are computed ahead."""

    def resume(self) -> None:
        """Does nothing, because no items are computed ahead."""
