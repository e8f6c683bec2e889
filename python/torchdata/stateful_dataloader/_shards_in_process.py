"""Finishes an epoch that workers had begun in a loader without workers: the main process runs the shards in turn.

Role: runs in the main process, in the reading thread. Each shard has a copy of the dataset, its own random numbers and
worker info, as in a worker process. Between two batches, the program's values are restored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import torch
from torch.utils.data import default_collate, default_convert

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._observe.stats.counting import Counting
from torchdata._stateful import copied
from torchdata.datapipes._pipe.state.exchanging import ShardGlobals, one_at_a_time
from torchdata.stateful_dataloader._pinning import pinned
from torchdata.stateful_dataloader._with_workers import WorkersIterator
from torchdata.stateful_dataloader._worker import Batches, Job, Shard, Start

__all__ = ["ShardsInProcessIterator"]


class LocalPool:
    """Shards that are read in this process, as a substitute for a `Pool`.

    Args:
        job: the task of the epoch's workers.
        pin: copies a batch to pinned memory; None returns batches unchanged.
    """

    #: As in `Pool`. This process needs no orders and has no workers, and no other thread ends the epoch.
    is_ordered = False
    pids: ClassVar[list[int]] = []

    def __init__(self, job: Job, pin: Callable[[Any], Any] | None) -> None:
        self._job, self._pin = job, pin
        self._shards: list[Shard] = []
        self._units: list[Batches] = []
        self._program = ShardGlobals()
        self._running: Shard | None = None
        self._turn = 0
        self._ended: set[int] = set()
        #: By shard: the snapshot before its first batch, if it provides one.
        self.told: dict[int, bytes] = {}
        self.is_ending = False
        #: The counters of this process; None if nothing is counted.
        self.counting: Counting | None = None

    @contextlib.contextmanager
    def _entered(self, shard: Shard | None) -> Iterator[None]:
        """Context in which the process has the globals of a shard; None for a shard that is being created."""
        with one_at_a_time():
            try:
                with InterruptsDeferred():
                    self._program.leave()
                    if shard is not None:
                        shard.globals.enter()
                    self._running = shard
                yield
            finally:
                with InterruptsDeferred():
                    if self._running is not None:
                        self._running.globals.leave()
                    self._running = None
                    if self._program.is_away:
                        self._program.enter()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Context in which the process has the program's generators, even in a signal handler while a shard is read.

        Other threads wait until the batch is read.
        """
        with one_at_a_time():
            shard = self._running
            if shard is None:
                yield
                return
            shard.globals.leave()
            self._program.enter()
            try:
                yield
            finally:
                self._program.leave()
                shard.globals.enter()

    def begin(self, ahead: int, shared_seed: int | None, places: list[Any], fresh: bool, fillers: int) -> None:
        """See `Pool.begin`. Fillers are not needed, because reading starts with the shard whose turn it is."""
        self._turn = fillers
        for number, place in enumerate(places):
            with self._entered(None):
                job = self._job.copied()
                if job.reading.collate_fn in (default_collate, default_convert):
                    job.reading.collate_fn = _Unseen(job.reading.collate_fn)
                self._running = shard = Shard(job, number, "", is_local=True, counting=self.counting)
                self._shards.append(shard)
                units = shard.begin_epoch(True, shared_seed, fresh, Start(place))
                self._units.append(units)
                if "before" in units.news:
                    self.told[number] = units.news["before"]

    def wait(self, hand: list[Any]) -> None:
        """See `Pool.wait`."""
        while not hand:
            left = [number for number in range(len(self._units)) if number not in self._ended]
            if not left:
                raise StopIteration
            number = next((one for one in left if one >= self._turn), left[0])
            with self._entered(self._shards[number]):
                reader = self._shards[number].reader
                assert reader is not None
                if reader.must_go_back:
                    reader.restore(copied(reader.place()))
                reader.keep_place()
                hand.extend(islice(self._units[number], 1))  # no Python code runs between the two steps
            if not hand:
                self._ended.add(number)
                self._turn = number + 1
        shard, order, batch, news = hand[0]
        if self._pin is not None and batch is not None:
            hand[0] = shard, order, self._pin(batch), news

    def note(self, unit: Any) -> None:
        """See `Pool.note`."""
        self._turn = unit[0] + 1

    def end_epoch(self) -> None:
        """See `Pool.end_epoch`."""

    def shutdown(self) -> None:
        """Stops reading."""
        self.is_ending = True
        self._units = []


class _Unseen:
    """Hides the worker from PyTorch's functions, which would otherwise create each batch in shared memory."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.func = function  # the same attribute as a `partial`, so that statistics name the function

    def __call__(self, samples: Any) -> Any:
        worker: Any = torch.utils.data._utils.worker
        info, worker._worker_info = worker._worker_info, None
        try:
            return self.func(samples)
        finally:
            worker._worker_info = info


class ShardsInProcessIterator(WorkersIterator):
    """Reads the workers' shards in this process, each batch when it is requested."""

    _pool: LocalPool

    def _new_pool(self, loader: Any, job: Job) -> LocalPool:
        device = self._pin_memory_device
        return LocalPool(job, (lambda batch: pinned(batch, device)) if self._pin_memory else None)

    def _count_into_pool(self) -> None:
        how = self._reading
        clock = self._recorder.begin_here(self, how.dataset, how.is_iterable, how.collate_fn)
        self._pool.counting = None if clock is None else self._recorder.counting  # each shard has its own clock

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the iterator."""
        with self._pool.outside():
            return super().state_dict()
