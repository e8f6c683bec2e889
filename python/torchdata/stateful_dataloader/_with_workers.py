"""The iterator of a loader with workers: distributes indices to them and returns their batches in turn.

Role: runs in the main process. Draws indices at the same times as PyTorch's loader: first all indices that the workers
may be ahead, and then one with each batch.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _sharding_worker_init_fn

from torchdata._engine.items.failures import reraise
from torchdata._engine.processes.interrupts import InterruptsDeferred, is_of_handler
from torchdata._engine.workers.group import Group
from torchdata._engine.workers.restart import Restarts
from torchdata._native import HandingIterator
from torchdata._stateful import is_stateful
from torchdata.stateful_dataloader._copying import Copies
from torchdata.stateful_dataloader._frozen import thaw
from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    decoded,
    decoded_of_worker,
    encoded,
    encoded_of_worker,
    read,
)
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._pinning import PinnedUnits
from torchdata.stateful_dataloader._pool import Pool
from torchdata.stateful_dataloader._reading import NO_PLACE
from torchdata.stateful_dataloader._skipping import Skipped
from torchdata.stateful_dataloader._state import is_over
from torchdata.stateful_dataloader._trails import STATES
from torchdata.stateful_dataloader._worker import Job

__all__ = ["WorkersIterator"]


@dataclass
class _Progress:
    """What the main process knows about the position of one worker."""

    #: The last snapshot of its reading, frozen or as loaded; None before the first one.
    place: bytes | dict[str, Any] | None = None
    #: The batches that it has returned since the snapshot: their number, or their indices for a map-style dataset.
    since: Any = 0
    ended: bool = False
    #: A checksum of some of its samples in this epoch, if its position is a number of batches.
    digest: int | None = None

    def load(self, place: dict[str, Any] | None) -> None:
        """Takes over a saved snapshot."""
        if place is not None:
            self.place, self.ended, self.digest = place, place["ended"], place["digest"]

    def count(self, index: Any) -> None:
        """Counts a batch."""
        if isinstance(self.since, list):
            self.since.append(index)
        else:
            self.since += 1

    def stand(self, frozen: bytes) -> None:
        """Records the worker's snapshot; empty bytes mean that nothing has changed."""
        self.since = [] if isinstance(self.since, list) else 0
        if frozen:
            self.place = frozen
        elif isinstance(self.place, dict):
            self.place = {**self.place, "since": self.since}

    def reached(self) -> dict[str, Any]:
        """Returns the position that the worker has reached, in the form that a reader restores."""
        if isinstance(self.place, bytes):
            self.place = thaw(self.place)  # thawed only once, for any number of requests
        place: Any = self.place or NO_PLACE | {"since": type(self.since)()}
        since, later = place["since"], place["later"]
        if later:  # the snapshot is from an earlier epoch
            later = [*later[:-1], later[-1] + self.since]
        else:
            since = since + self.since
        ended = self.ended or place["ended"]
        reached: dict[str, Any] = {**place, "since": since, "later": later, "ended": ended, "digest": self.digest}
        if "now" in reached:
            reached["now_since"] += self.since
        return reached

    def saved(self, is_stateful: bool, base_seed: int, worker: int) -> dict[str, Any] | None:
        """Returns the part of the position that is saved.

        Args:
            is_stateful: whether the worker's dataset has a state. If not, the position matters only if its generators
                were used.
            base_seed: the seed of the workers.
            worker: the number of the worker.
        """
        place = self.reached()
        has_place = self.place is not None or not self.since
        if isinstance(self.since, list) and not is_stateful and not place["random"] and has_place:
            return None
        return {**place, "random": encoded_of_worker(place["random"] or {}, base_seed, worker)}

    def saved_of_program(self) -> dict[str, Any]:
        """Returns the saved part for a worker that continues from a loader without workers."""
        place = self.reached()
        then, later = place["random"] or {}, place["later"]
        now = place.pop("now", then)
        behind = place.pop("now_since", later[-1] if later else place["since"])
        random, random_then = ({name: encoded(one) for name, one in moment.items()} for moment in (now, then))
        random_then = {name: one for name, one in random_then.items() if one != random.get(name)}
        return {**place, "random": random, "random_then": random_then, "random_since": behind}


def _has_state(place: dict[str, Any] | None) -> bool:
    return place is not None and any(place[part] is not None for part in STATES)


_SHUT_DOWN = "the workers of this iterator were shut down before the epoch was over, so there are no more batches"
_LEFT = "another thread has called iter(loader), which has persistent workers: the epoch that this one read is left"

# Torch imports a module of its profiler with the first range. During an epoch, the main process would appear to read
# files, and workers that share files would not be detected (`processes/positions.py`).
with torch.autograd.profiler.record_function("torchdata is imported"):
    pass


class WorkersIterator(HandingIterator, StatefulIterator):
    """Reads in worker processes, ahead of requests.

    Raises:
        AssertionError: the loader's `prefetch_factor` is 0.
    """

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        super().__init__(loader, state)
        #: The number of workers that a dataset sees, which is the number of shards. A process runs one or more shards.
        self._num_workers = max(1, self._num_shards)
        #: Whether the next epoch has another number of shards, and therefore other processes.
        self.lasts_one_epoch = self._num_shards != loader.num_workers
        #: Whether an epoch has begun in this iterator.
        self._has_begun = False
        self._prefetch_factor, self._in_order = loader.prefetch_factor, loader.in_order
        if not loader.num_workers:
            self._prefetch_factor = 1
        #: Threads to notify that the epoch which they read was left.
        self._left_behind: set[int] = set()
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for a loader with workers")
        init_fn = loader.worker_init_fn if self._num_shards else None
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)) and not self._num_shards:
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        elif isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init_fn = functools.partial(_sharding_worker_init_fn, init_fn, self._world_size, self._rank)
        every = max(1, (loader.snapshot_every_n_steps or 1) // self._num_workers)
        job = Job(self._reading, init_fn, int(self._base_seed), self._persistent_workers, every, self._num_shards)
        job.lasts_one_epoch = self.lasts_one_epoch
        if not self._num_shards:
            job.generators = {name: read(name) for name in GLOBAL}
        if self._num_workers > loader.num_workers:
            job.copies = self._copies(job, loader.num_workers)
            job.reading, job.init_fn = replace(self._reading, dataset=None, collate_fn=None), None
        self._pool: Any = self._new_pool(loader, job)
        self._units: Any = self._pool
        if self._pin_memory and isinstance(self._pool, Pool):
            self._units = PinnedUnits(self._pool, self._pin_memory_device)
        try:
            self._start(loader, state)
        except BaseException:
            self.shutdown()
            raise

    def _copies(self, job: Job, workers: int) -> Copies:
        """Returns copies of a worker's data, for processes that run several shards."""
        try:
            return Copies((self._reading, job.init_fn))
        except Exception as error:
            if is_of_handler(error):
                raise
            raise TypeError(
                f"StatefulDataLoader: the epoch of the state was begun by {self._num_workers} workers, and this loader "
                f"has {workers}, so a process reads several copies of the dataset. It cannot be copied, as the "
                f"dataset, collate_fn or worker_init_fn cannot be pickled ({type(error).__name__}: {error}); open "
                "files, locks and connections when they are first used, leave them out in __getstate__, or use "
                f"num_workers={self._num_workers}"
            ) from error

    def _new_pool(self, loader: Any, job: Job) -> Any:
        """Returns the object that reads the shards."""
        context = loader.multiprocessing_context or multiprocessing.get_context()
        timeout = loader.timeout if loader.timeout > 0 else None
        workers = min(self._num_workers, loader.num_workers)
        return Pool(
            context,
            workers,
            job,
            in_order=self._in_order,
            timeout=timeout,
            full_stats=self._recorder.full,
            restarts=self._restarts(loader),
        )

    def _count_into_pool(self) -> None:
        """Prepares counting for the epoch that is about to begin."""
        self._recorder.begin_in(self, self._pool)

    def _restarts(self, loader: Any) -> Callable[[Group, BaseContext], Restarts] | None:
        """Returns a factory for the object that replaces failed workers; None makes a failure an error."""
        return None

    # -- epochs --------------------------------------------------------------------------------------

    def _start(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Begins the first epoch of this iterator, or resumes it."""
        if state is None or is_over(state):
            # As in PyTorch, the sampler's iterator is created twice and the seed of pipes is drawn twice; the first
            # seed counts.
            seed = self._shared_seed
            self._begin_again(loader, True)
            if not self._lives_on:
                self._shared_seed = seed
            loads = state is not None and (
                self._lives_on or (state["unstarted"] and any(map(_has_state, state["places"])))
            )
            places = self._places_for_workers(state) if state is not None and loads else []
            if state is not None and state["unstarted"]:  # the main process read these states: see `Reader.restore`
                places = [place and {**place, "unstarted": True} for place in places]
            self._begin(places or [None] * self._num_workers, True, 0)
        else:
            self._sampler_iter = self._order.restore(state)
            self._num_yielded = state["_num_yielded"]
            same = state["_num_workers"] == self._num_shards
            first = state["next_worker"] if same and self._in_order else 0
            self._begin(self._places_for_workers(state), False, first)
            self._pass_over()

    def _begin_again(self, loader: Any, first_iter: bool) -> None:
        """Creates the sampler's iterator for another epoch."""
        with self._drawing.under_way():
            self._order.note_random()
            super()._reset(loader, first_iter)
        self._order.begin(self._sampler_iter)

    def _places_for_workers(self, state: dict[str, Any]) -> list[Any]:
        """Returns a position for each worker. With another number of workers, positions are reused."""
        places = state["places"]
        if not is_over(state) and not self._num_shards:
            return [self._place_of_program(places[0], state)]
        found: list[Any] = []
        for number in range(self._num_workers):
            place = places[number % len(places)]
            if place is not None:
                same = len(places) == self._num_workers and state["_num_workers"]
                random = place["random"] if same else None  # generators belong to a worker by its number
                place = {**place, "random": decoded_of_worker(random or {}, int(self._base_seed), number)}
            found.append(place)
        return found

    def _place_of_program(self, place: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any] | None:
        """Returns a position saved without workers in the form for a worker that continues from it.

        Batches that were read with the generators from the beginning of the epoch are recomputed with these. Later
        batches use the program's generators from the time of the state.
        """
        if place is None:
            return None
        now = {name: decoded(name, one) for name, one in (place["random"] or {}).items()}
        then = {name: decoded(name, one) for name, one in (place.get("random_then") or {}).items()}
        place = {**place, "random": now | then, "now": now, "now_since": place.get("random_since", 0)}
        if not _has_state(place) and place["later"] is None:
            place["since"] = max(state["_num_yielded"], state["_sampler_iter_yielded"])
        return place

    def _begin(self, places: list[Any], fresh: bool, first: int) -> None:
        """Begins an epoch in all workers.

        Args:
            places: the position from which each worker resumes; None starts from the beginning.
            fresh: whether the epoch of these positions is over.
            first: the worker that returns the next batch.
        """
        self._finished = False
        #: Threads that have read in this epoch.
        self._readers: set[int] = set()
        reading = self._reading
        if reading.is_iterable or not self._has_begun:
            self._progress = [_Progress(since=0 if reading.is_iterable else []) for _ in places]
        else:  # a worker that has nothing to read in this epoch stays where the last epoch leaves it
            for progress, numbers in zip(self._progress, self._busy, strict=True):
                for number in numbers:
                    progress.count(self._waiting[number])
        if not fresh or not reading.is_iterable:
            for progress, place in zip(self._progress, places, strict=True):
                progress.load(place)
        self._is_stateful = any(is_stateful(one) for one in (reading.dataset, reading.collate_fn))
        #: Workers that have not reported in this epoch, so their position may be out of date.
        tells = reading.is_iterable or self._is_stateful or self._has_begun
        self._unheard = set(range(self._num_workers)) if tells else set()
        self._has_begun = True
        #: Whether returning a batch was interrupted.
        self._is_cut_off = False
        #: A unit that has arrived but was not processed.
        self._hand: list[Any] = []
        #: Units that were taken before their turn.
        self._held: deque[Any] = deque()
        #: By number: ordered indices whose batches the user has not received.
        self._waiting: dict[int, Any] = {}
        #: By worker: the numbers of its outstanding orders.
        self._busy: list[deque[int]] = [deque() for _ in places]
        self._number, self._first, self._next_worker = 0, first, first
        self._count_into_pool()
        self._units.begin(self._prefetch_factor, self._shared_seed, places, fresh, first)
        if self._pool.told is not None:
            self._unheard = set()
            for shard, frozen in self._pool.told.items():
                self._progress[shard].stand(frozen)
        if self._pool.is_ordered:
            for number in range(self._prefetch_factor * self._num_workers):
                self._order_next((first + number) % self._num_workers)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins another epoch with the same workers. Other threads that read the last epoch are notified."""
        if not self._finished:
            self._left_behind = self._readers - {threading.get_ident()}
        self._skipped, self._num_empty, self._given_before = Skipped.of(loader, None), 0, 0
        self._begin_again(loader, first_iter)
        self._begin([None] * self._num_workers, True, 0)

    # -- batches -------------------------------------------------------------------------------------

    def _order_next(self, worker: int) -> None:
        """Orders the next index, if any, from a worker, or from any worker with room if batches may be out of order."""
        try:
            index = self._order.draw(is_busy=bool(self._waiting))
        except StopIteration:
            return
        if self._in_order and self._reading.fills and not self._reading.is_iterable:
            # There may have been nothing to order in an earlier turn.
            worker = (self._first + self._number) % self._num_workers
        if not self._in_order and not self._reading.is_iterable:  # any worker with room, as in PyTorch's loader
            while len(self._busy[worker]) >= self._prefetch_factor:
                worker = (worker + 1) % self._num_workers
        self._waiting[self._number] = index
        self._busy[worker].append(self._number)
        self._pool.order(worker, self._number, None if self._reading.is_iterable else index)
        self._number += 1

    def _wait(self) -> None:
        """Waits for a unit, and leaves it in `_hand`. May be interrupted at any point."""
        if self._left_behind and (reader := threading.get_ident()) in self._left_behind:
            self._left_behind.discard(reader)
            raise RuntimeError(_LEFT)
        if (successor := self._taken_over()) is not None:
            self._hand = [next(successor)]
            return
        with torch.autograd.profiler.record_function(self._profile_name):
            if self._is_cut_off:
                raise RuntimeError(
                    "an error of the loader's sampler, or Ctrl-C pressed twice, interrupted the loader while it "
                    "delivered a batch, which is lost; begin a new loop. To miss no batch, load a state that was saved "
                    "before"
                )
            if self._held or self._hand:
                return
            if self._finished or not (self._waiting or self._reading.is_iterable):
                self._end()
                raise StopIteration
            if self._pool.is_ending:
                raise RuntimeError(_SHUT_DOWN)
            try:
                self._units.wait(self._hand)
            except StopIteration:
                if self._pool.is_ending:  # by another thread
                    raise RuntimeError(_SHUT_DOWN) from None
                self._end()
                raise

    def _take(self) -> Any:
        """Takes the unit in hand, if any, and records the snapshot from before its batch."""
        unit = self._hand.pop()
        self._pool.note(unit)
        worker, _, _, news = unit
        if news is not None and "filler" in news:
            return None
        self._unheard.discard(worker)
        if news is not None and "before" in news:
            self._progress[worker].stand(news["before"])
        return unit

    def _hand_over(self) -> tuple[Any] | None:
        """Returns the batch of the unit in hand; None if it has none. Cannot be interrupted; see `HandingIterator`."""
        if self._successor is not None:
            return (self._hand.pop(),)
        self._is_cut_off = True
        unit = self._held.popleft() if self._held else self._take()
        gives = unit is not None and self._account(unit)
        self._is_cut_off = False
        if not gives:
            return None
        self._readers.add(threading.get_ident())
        worker, _, batch, news = unit
        if news is not None and self._skipped is not None:
            self._skipped.tell(news.get("skipped", []), worker)
        if news is not None and "failure" in news:
            if isinstance(news["failure"], BaseException):
                raise news["failure"]
            reraise(news["failure"])
        if news is not None and "empty" in news:
            self._num_empty += 1
            return None  # the batch is passed over
        self._count()
        return (batch,)

    def _account(self, unit: Any) -> bool:
        """Processes a unit and orders the next index; returns whether there is a batch to return."""
        worker, number, _, news = unit
        progress = self._progress[worker]
        self._next_worker = (worker + 1) % self._num_workers
        if news is not None and "ended" in news:
            progress.ended = True
        else:
            index = self._waiting.pop(number, None)
            progress.count(index)
            if self._skipped is not None:
                told = news or {}
                self._skipped.count(told.get("seen", self._reading.samples_of(index)), told.get("skipped", []))
                self._order.give_back(index, told.get("left"))
        if news is not None and "digest" in news:
            progress.digest = news["digest"]
        if news is not None and "after" in news:
            progress.stand(news["after"])
        if progress.ended and "failure" not in (news or {}):
            return False
        if self._pool.is_ordered:
            self._busy[worker].popleft()
            self._order_next(worker)
        return True

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the iterator. Waits for the first batch of each worker that has not returned any."""
        self._hear_all()
        seed = int(self._base_seed)
        if self._num_shards:
            places = [progress.saved(self._is_stateful, seed, number) for number, progress in enumerate(self._progress)]
        else:
            places = [progress.saved_of_program() for progress in self._progress]
        last = (self._next_worker - 1) % self._num_workers
        return self._state(list(self._waiting.values()), places, last)

    def _hear_all(self) -> None:
        """Waits for the first batch of each worker that has not returned any in this epoch."""
        while not self._finished and any(self._busy[worker] or self._reading.is_iterable for worker in self._unheard):
            try:
                self._units.wait(self._hand)
            except StopIteration:
                return
            with InterruptsDeferred():
                self._hold()

    def _hold(self) -> None:
        """Takes the unit in hand before its turn."""
        unit = self._take()
        if unit is not None:
            self._held.append(unit)

    # -- shutdown ------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._finished = True
        self._pool.end_epoch()
        self._recorder.end()
        if not self._persistent_workers:
            self.shutdown()
        if self._skipped is not None:
            self._skipped.end()

    @property
    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers."""
        return [] if self._pool.is_ending else self._pool.pids

    def shutdown(self) -> None:
        """Stops the workers. The state remains available. Threads that wait for a batch are notified."""
        self._units.shutdown()

    def _shutdown_workers(self) -> None:
        """Stops the workers, under the name of PyTorch's method, which some trainers call."""
        self.shutdown()
