"""The iterators of a loader with workers, which distribute indices to the workers and return their batches in turn.

As in PyTorch's loader, the indices of all prefetched batches are drawn when the epoch begins, and a further index is
drawn whenever a batch is returned.

`RestartingIterator` replaces workers that exit or hang. A replacement process loads the worker's last snapshot, rereads
the batches that were received afterwards, and receives the unanswered batch requests. If a worker exits before it has
sent a batch of an epoch, a snapshot of this epoch is missing, so the replacement first repeats the previous epoch.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import profiler
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _sharding_worker_init_fn

from torchdata._engine.items.failures import reraise
from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.snapshots import Account
from torchdata._handlers import raise_if_of_handler
from torchdata._native import HandingIterator
from torchdata._stateful import is_stateful
from torchdata.stateful_dataloader._copying import Copies
from torchdata.stateful_dataloader._fitting import StateAt
from torchdata.stateful_dataloader._generators import GLOBAL, decoded, read
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._pool import PinnedUnits, WorkerPool
from torchdata.stateful_dataloader._position import EpochState, Progress, ReadingPosition
from torchdata.stateful_dataloader._skipping import Skipped
from torchdata.stateful_dataloader._worker import NO_NEWS, Job, News

_SHUT_DOWN = "the workers of this iterator were shut down before the epoch was over, so there are no more batches"
_LEFT = "another thread has called iter(loader) of a loader with persistent workers, which ended this thread's epoch"

# The first use of `record_function` imports a module, which reads files. If a file were read during an epoch,
# `processes/positions.py` could not detect files that children share.
with profiler.record_function("torchdata is imported"):
    pass

_UNRECORDED = nullcontext()


class WorkersIterator(HandingIterator, StatefulIterator):
    def __init__(self, loader: Any, state: EpochState | None) -> None:
        super().__init__(loader, state)
        self._num_workers = max(1, self._num_shards)
        self.lasts_one_epoch = self._num_shards != loader.num_workers
        self._has_begun = False
        self._prefetch_factor = loader.prefetch_factor if loader.num_workers else 1
        self._in_order = loader.in_order
        #: The ids of threads that were still reading when the next epoch began.
        self._left_readers: set[int] = set()
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
        if self._pin_memory and isinstance(self._pool, WorkerPool):
            self._units = PinnedUnits(self._pool, self._pin_memory_device)
        try:
            self._start(loader, state)
        except BaseException:
            self.shutdown()
            raise

    def _copies(self, job: Job, workers: int) -> Copies:
        try:
            return Copies((self._reading, job.init_fn))
        except Exception as error:
            raise_if_of_handler(error)
            raise TypeError(
                f"StatefulDataLoader: the epoch of the state was begun by {self._num_workers} workers, and this loader "
                f"has {workers}, so a process reads several copies of the dataset. It cannot be copied, as the "
                f"dataset, collate_fn or worker_init_fn cannot be pickled ({type(error).__name__}: {error}); open "
                "files, locks and connections when they are first used, leave them out in __getstate__, or use "
                f"num_workers={self._num_workers}"
            ) from error

    def _new_pool(self, loader: Any, job: Job) -> Any:
        return WorkerPool(loader, job, weakref.ref(self))

    def _count_into_pool(self) -> None:
        self._recorder.begin_in(self, self._pool)

    # -- epochs --------------------------------------------------------------------------------------

    def _start(self, loader: Any, state: EpochState | None) -> None:
        if state is None or state.is_over:
            # Like PyTorch's loader, this code creates the sampler's iterator twice, and draws two seeds for pipes
            # although only the first seed is used. Therefore, all later random numbers are the same as with PyTorch's
            # loader.
            seed = self._shared_seed
            self._begin_again(loader, True)
            if not self._is_persistent:
                self._shared_seed = seed
            loads = state is not None and (
                self._is_persistent or (state.unstarted and any(one and one.has_state for one in state.positions))
            )
            positions = self._positions_for_workers(state) if state is not None and loads else []
            if state is not None and state.unstarted:
                positions = [position and position._replace(unstarted=True) for position in positions]
            self._begin(positions or [None] * self._num_workers, True, 0)
        else:
            self._sampler_iter = self._order.restore(state.order)
            self._num_yielded = state.received
            same = state.workers == self._num_shards
            first = state.next_worker if same and self._in_order else 0
            self._begin(self._positions_for_workers(state), False, first)
            self._pass_over()

    def _begin_again(self, loader: Any, first_iter: bool) -> None:
        with self._drawing.under_way():
            self._order.note_random()
            super()._reset(loader, first_iter)
        self._order.begin(self._sampler_iter)

    def _positions_for_workers(self, state: EpochState) -> list[ReadingPosition | None]:
        """Returns a position for each worker. If there are more workers than positions, several workers start from the
        same position."""
        positions = state.positions
        if not state.is_over and not self._num_shards:
            return [self._position_of_program(positions[0], state)]
        found: list[ReadingPosition | None] = []
        for number in range(self._num_workers):
            position = positions[number % len(positions)]
            if position is not None:
                same = len(positions) == self._num_workers and state.workers
                random = position.random if same else None
                random = {name: decoded(name, one) for name, one in (random or {}).items()}
                position = position._replace(random=random)
            found.append(position)
        return found

    def _position_of_program(self, position: ReadingPosition | None, state: EpochState) -> ReadingPosition | None:
        """Converts a position that was saved in the main process to a position for a worker. The worker recomputes the
        epoch's earlier batches with the generators' states from the epoch's beginning."""
        if position is None:
            return None
        now = {name: decoded(name, one) for name, one in (position.random or {}).items()}
        then = {name: decoded(name, one) for name, one in (position.then or {}).items()}
        position = position._replace(random=now | then, now=now)
        if not position.has_state and not position.begins:
            position = position._replace(since=max(state.received, state.order.yielded))
        return position

    def _begin(self, positions: Sequence[ReadingPosition | None], fresh: bool, first: int) -> None:
        self.is_finished = False
        self._readers: set[int] = set()
        reading = self._reading
        if reading.is_iterable or not self._has_begun:
            self._progress = [Progress(0 if reading.is_iterable else []) for _ in positions]
        else:  # a worker that reads nothing in this epoch keeps the position of the last epoch
            self._progress = [progress.copied() for progress in self._progress]
            for progress, orders in zip(self._progress, self._pool.orders, strict=True):
                for _, index in orders:
                    progress.count(index)
        if not fresh or not reading.is_iterable:
            for progress, position in zip(self._progress, positions, strict=True):
                progress.load(position)
        self._is_stateful = any(is_stateful(one) for one in (reading.dataset, reading.collate_fn))
        reports = reading.is_iterable or self._is_stateful or self._has_begun
        #: The workers that have sent no message in this epoch. The main process may not know the positions of these
        #: workers.
        self._silent = set(range(self._num_workers)) if reports else set()
        self._has_begun = True
        self._is_cut_off = False
        self._hand: list[Any] = []
        # Messages that `state_dict()` received while it waited for workers, to be processed before later messages.
        self._held: deque[Any] = deque()
        self._number, self._first, self._next_worker = 0, first, first
        self._count_into_pool()
        self._units.begin(self._prefetch_factor, self._shared_seed, positions, fresh, first)
        if self._pool.first_snapshots is not None:
            self._silent = set()
            for shard, frozen in self._pool.first_snapshots.items():
                self._progress[shard].restart_at(frozen)
        if self._pool.is_ordered:
            for number in range(self._prefetch_factor * self._num_workers):
                self._order_next((first + number) % self._num_workers)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins the next epoch. Threads that are still reading the last epoch get an error at their next read."""
        if not self.is_finished:
            self._left_readers = self._readers - {threading.get_ident()}
        self._skipped, self._num_empty, self._completed_before = Skipped.of(loader, None), 0, 0
        self._begin_again(loader, first_iter)
        self._begin([None] * self._num_workers, True, 0)

    # -- batches -------------------------------------------------------------------------------------

    def _order_next(self, worker: int) -> None:
        """Sends the next index to the worker, or to any worker with capacity if `in_order` is False."""
        try:
            index = self._order.draw()
        except StopIteration:
            return
        if not self._in_order and not self._reading.is_iterable:
            while len(self._pool.orders[worker]) >= self._prefetch_factor:
                worker = (worker + 1) % self._num_workers
        self._pool.order(worker, self._number, index)
        self._number += 1

    def _wait(self) -> None:
        if self._left_readers and (reader := threading.get_ident()) in self._left_readers:
            self._left_readers.discard(reader)
            raise RuntimeError(_LEFT)
        if (successor := self._taken_over()) is not None:
            self._hand = [next(successor)]
            return
        # `record_function` takes 5 µs, even if no profiler runs.
        with profiler.record_function(self._profile_name) if profiler._is_profiler_enabled else _UNRECORDED:
            if self._is_cut_off:
                raise RuntimeError(
                    "an error of the sampler or of a signal handler, or Ctrl-C pressed twice, interrupted the loader "
                    "while it delivered a batch, which is lost; begin a new loop. To lose no batch, load an "
                    "earlier state"
                )
            if self._held or self._hand:
                return
            if self.is_finished or not (any(self._pool.orders) or self._reading.is_iterable):
                self._end()
                raise StopIteration
            if self._pool.is_ending:
                raise RuntimeError(_SHUT_DOWN)
            try:
                self._units.wait(self._hand)
            except StopIteration:
                if self._pool.is_ending:  # another thread has begun the shutdown
                    raise RuntimeError(_SHUT_DOWN) from None
                self._end()
                raise

    def _take(self) -> tuple[int, int, Any, News]:
        worker, number, batch, fields = self._hand.pop()
        news = NO_NEWS if fields is None else News(*fields)
        self._silent.discard(worker)
        if news.before is not None:
            self._progress[worker].restart_at(news.before)
        return worker, number, batch, news

    def _hand_over(self) -> tuple[Any] | None:
        """Processes the next message. Returns a tuple with the message's batch, or None if the message contains no
        batch. The base class `HandingIterator` defers signals while this method runs."""
        if self._successor is not None:
            return (self._hand.pop(),)
        self._is_cut_off = True
        unit = self._held.popleft() if self._held else self._take()
        has_content = self._account(unit)
        self._is_cut_off = False
        if not has_content:
            return None
        self._readers.add(threading.get_ident())
        worker, _, batch, news = unit
        if self._skipped is not None:
            self._skipped.report(news.skipped, worker)
        if news.failure is not None:
            if isinstance(news.failure, BaseException):
                raise news.failure
            reraise(news.failure)
        if news.empty:
            self._num_empty += 1
            return None
        self._count()
        return (batch,)

    def _account(self, unit: Any) -> bool:
        """Processes a message, and sends the next index to a worker. Returns whether the message contains a batch or an
        error."""
        worker, _, _, news = unit
        progress = self._progress[worker]
        self._next_worker = (worker + 1) % self._num_workers
        if news.ended:
            progress.ended = True
        else:
            index = self._pool.take_order(worker) if self._pool.is_ordered else None
            progress.count(index)
            if self._skipped is not None:
                seen = self._reading.samples_of(index) if news.seen is None else news.seen
                self._skipped.count(seen, news.skipped)
        if news.digest is not None:
            progress.digest = news.digest
        if news.after is not None:
            progress.restart_at(news.after)
        if progress.ended and news.failure is None:
            return False
        if self._pool.is_ordered:
            self._order_next(worker)
        return True

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Waits until each worker has sent a message in this epoch, and returns the state."""
        self._receive_all()
        return super().state_dict()

    def state_at(self) -> StateAt:
        is_stateful, all_progress, num_shards = self._is_stateful, self._progress, self._num_shards

        def positions_at(_: object) -> Sequence[ReadingPosition | None]:
            if num_shards:
                return [one.saved(is_stateful) for one in all_progress]
            return [progress.saved_of_program() for progress in all_progress]

        waiting = sorted(chain.from_iterable(self._pool.orders), key=itemgetter(0))
        return self._state_at([index for _, index in waiting], positions_at, self._next_worker)

    def _receive_all(self) -> None:
        iterates, orders = self._reading.is_iterable, self._pool.orders
        while not self.is_finished and any(iterates or orders[worker] for worker in self._silent):
            try:
                self._units.wait(self._hand)
            except StopIteration:
                return
            with InterruptsDeferred():
                self._hold()

    def _hold(self) -> None:
        self._held.append(self._take())

    # -- shutdown ------------------------------------------------------------------------------------

    def _end(self) -> None:
        self.is_finished = True
        self._pool.end_epoch()
        self._recorder.end()
        if not self._persistent_workers:
            self.shutdown()
        if self._skipped is not None:
            self._skipped.end()

    def shutdown(self) -> None:
        self._units.shutdown()

    def _shutdown_workers(self) -> None:
        """Stops the workers. This method of PyTorch's iterator is private, but trainers call it."""
        self.shutdown()


# -- restarts ----------------------------------------------------------------------------------------------


class RestartingIterator(WorkersIterator):
    """Replaces workers that exit.

    The thread that pins memory may replace a worker while another thread sends batch requests, so common attributes are
    modified only under the lock for sending.
    """

    #: For each worker, its snapshot from the beginning of this epoch, and the commands that repeat its earlier epochs
    #: in a new process.
    _beginnings: list[tuple[Any, list[tuple[Any, ...]]]]

    # -- epochs --------------------------------------------------------------------------------------

    def _begin(self, positions: Sequence[Any], fresh: bool, first: int) -> None:
        commands = [self._commands_to_repeat(worker) if self._has_begun else [] for worker in range(self._num_workers)]
        self._beginnings = list(zip(positions, commands, strict=True))
        self._fresh, self._seed_then = fresh, self._shared_seed
        self._seen = [0] * self._num_workers
        super()._begin(positions, fresh, first)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not self._pool.is_ending:
            self._receive_all()
        if isinstance(self._units, PinnedUnits):
            self._units.leave()
        super()._reset(loader, first_iter)

    def _resumption_of(self, worker: int) -> tuple[list[tuple[Any, ...]], Any, bool, list[Any]]:
        """Returns the data for moving a new process to a worker's position: commands that repeat earlier epochs, a
        snapshot, whether the snapshot was taken between two epochs, and the indices to reread.
        """
        progress, (position, before) = self._progress[worker], self._beginnings[worker]
        if progress.position is not None:
            return [], progress.reached(), False, []
        since = [None] * progress.since if isinstance(progress.since, int) else progress.since
        return before, position, self._fresh, since

    def _commands_to_repeat(self, worker: int) -> list[tuple[Any, ...]]:
        """Returns commands that repeat a worker's last epoch, including its unanswered batch requests, in a new
        process."""
        before, position, fresh, since = self._resumption_of(worker)
        ordered = [] if self._progress[worker].ended else [index for _, index in self._pool.orders[worker]]
        if position is None and not since and not ordered and not self._reading.is_iterable:
            return before
        return [*before, ("repeat", False, self._seed_then, fresh, (position, (0, 0), [*since, *ordered]))]

    # -- replacing a worker ----------------------------------------------------------------------------

    def instruct(self, worker: int, accounts: Sequence[Account]) -> None:
        """Moves a replacement process to the position of the exited worker.

        Args:
            accounts: for each shard, the number and the checksum of the messages that were received in this epoch.
        """
        shards = self._pool.members.shards_of(worker)
        starts = []
        for shard in shards:
            before, start, received = self._start_of(shard, accounts[shard])
            starts.append(start)
        _, _, fresh, _ = self._resumption_of(shards[0])
        beginning = self._pool.beginning(self._seed_then, fresh, starts)
        self._pool.instruct(worker, [*before, beginning], received)

    def _start_of(self, shard: int, account: Account) -> tuple[list[tuple[Any, ...]], tuple[Any, ...], int]:
        """Returns the data for continuing a shard in a new process: commands that repeat earlier epochs, the position,
        and the number of received but unprocessed batches."""
        progress, orders = self._progress[shard], self._pool.orders[shard]
        unseen = 0 if progress.ended else account[0] - self._seen[shard]
        again = [index for _, index in islice(orders, unseen)] if self._pool.is_ordered else [None] * unseen
        before, position, _, since = self._resumption_of(shard)
        start = (position, account, [*since, *again], progress.ended)
        return before, start, len(orders) if progress.ended else unseen

    # -- batches -------------------------------------------------------------------------------------

    def _hand_over(self) -> tuple[Any] | None:
        with self._pool.members.sending:
            return super()._hand_over()

    def _account(self, unit: Any) -> bool:
        self._seen[unit[0]] += 1
        return super()._account(unit)

    def _hold(self) -> None:
        with self._pool.members.sending:
            super()._hold()
