"""The iterators of a loader without workers, which read in the main process.

`ShardsInProcessIterator` finishes an epoch that workers have begun, by reading their shards in turn. Each shard has a
copy of the dataset, random generators and worker info, as in a worker process. Between two batches, the program's
generators and worker info are restored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

import torch
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate, default_convert

from torchdata._native import SharedIterator
from torchdata._observe.stats.counting import Counting
from torchdata.dataloader2.graph.settings import random_pipes
from torchdata.datapipes._pipe.exchanging import Exchanged, ShardGlobals, one_at_a_time
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._fetching import NOTHING
from torchdata.stateful_dataloader._fitting import StateAt
from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    Moment,
    decoded,
    encoded,
    mark_of,
    put_back_afterwards,
    read,
    set_all,
)
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._pipes import seeded
from torchdata.stateful_dataloader._pool import pinned
from torchdata.stateful_dataloader._position import Counts, EpochState, ReadingPosition
from torchdata.stateful_dataloader._reading import EpochReader
from torchdata.stateful_dataloader._skipping import Skipped
from torchdata.stateful_dataloader._with_workers import WorkersIterator
from torchdata.stateful_dataloader._worker import Batches, Job, News, ShardReader

_NONE = object()
_T = TypeVar("_T")


class InProcessIterator(SharedIterator, StatefulIterator):
    def __init__(self, loader: Any, state: EpochState | None) -> None:
        self._moved: Moment = self._set_program_s(loader._drawing, state) if state is not None else {}
        super().__init__(loader, state)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
            random_pipes(Graph(self._dataset))
            if state is not None and not state.is_over and state.shared_seed is not None:
                seeded(self._dataset, state.shared_seed)
        # The loader's reader is reused, because it stores the state that the dataset had at the end of the last epoch.
        self._reader: EpochReader = loader._reader or EpochReader(self._reading)
        self._reader.use(self._reading)
        loader._reader = self._reader
        how = self._reading
        self._reader.time_by(self._recorder.begin_here(self, how.dataset, how.is_iterable, how.collate_fn))
        #: The states of the global generators before the call of `iter(dataset)`, which may draw random numbers.
        self._then: Moment = {}
        self._marks: dict[str, Any] = {}
        #: The last index from the sampler. `_before` is the number of batches that were returned before `_index`.
        self._index: Any = _NONE
        self._before = 0
        #: A batch that was read, but not returned, because Ctrl-C interrupted `next`.
        self._batch: Any = _NONE
        self._counts: Counts = {}, 0
        if state is not None and not state.is_over:
            self._resume(state)
            return
        self._order.begin(self._sampler_iter)
        if self._reading.is_iterable:
            self._then = {name: read(name) for name in GLOBAL}
            self._marks = {name: mark_of(name) for name in GLOBAL}
        position = None
        if state is not None and not (state.workers and self._reading.is_iterable and not state.unstarted):
            position = (state.positions[0] or ReadingPosition())._replace(random=None, unstarted=True)
        self._reader.begin(position)

    def _set_program_s(self, drawing: Drawing, state: EpochState) -> Moment:
        """Restores the saved states of the global generators, because a dataset in the main process draws random
        numbers from these generators.

        If the state was saved between two epochs, generators that the program has set since `load_state_dict` are not
        restored.
        """
        position = state.positions[0]
        if state.workers or position is None:
            return {}
        moved = {name: decoded(name, one) for name, one in (position.random or {}).items()}
        if state.is_over:
            moved = {
                name: one
                for name, one in moved.items()
                if not drawing.was_set(name, one) and not drawing.has_passed(name, one)
            }
        drawing.restore(moved)
        return {} if state.is_over else moved

    def _resume(self, state: EpochState) -> None:
        self._sampler_iter = self._order.restore(state.order)
        position = state.positions[0]
        then = {}
        if self._moved and position:
            then = {name: decoded(name, one) for name, one in (position.then or {}).items()}
        self._num_yielded = state.received
        since, moved = position.now_since if position else 0, self._moved
        if position and since:  # a worker took the snapshot, some batches after its generators were saved
            position = position._replace(now=moved)
        with put_back_afterwards(GLOBAL):
            self._then = {name: read(name) for name in GLOBAL} | then
            position = position and position._replace(random=None)
            if not self._has_read:
                set_all(self._then)
                self._moved = {}
                if self._reading.is_iterable:
                    self._marks = {name: mark_of(name) for name in GLOBAL}
            if position:
                self._restore(position)
            else:
                self._reader.begin()
            moved = {name: read(name) for name in moved} if since else {}
        set_all(moved)
        if self._has_read:
            self._marks = {name: mark_of(name) for name in GLOBAL}
        self._pass_over()

    def _return_to(self, position: ReadingPosition) -> None:
        with put_back_afterwards(GLOBAL):
            self._restore(position._replace(random=None))

    def _restore(self, position: ReadingPosition) -> None:
        if self._reading.is_iterable and not position.is_of_dataset:
            set_all(self._then)
            position = position._replace(since=self._num_completed)
        self._reader.restore(position)

    def _next_data(self) -> Any:
        if self._batch is not _NONE:
            return self._batch
        skipped, data = self._skipped, NOTHING
        while data is NOTHING:
            self._index = _NONE
            if skipped is not None:
                self._counts = skipped.counts
            self._index = self._order.draw()
            if not self._marks:
                self._marks = {name: mark_of(name) for name in GLOBAL}
            self._reader.prepare(self._return_to)
            data = self._reader.read(self._index) if skipped is None else self._read_counting(skipped)
            if data is NOTHING:
                self._num_empty += 1
        if self._pin_memory:
            data = pinned(data, self._pin_memory_device)
        self._batch = data
        return data

    def _read_counting(self, skipped: Skipped) -> Any:
        try:
            data = self._reader.read(self._index)
        except Exception:
            self._note_skipped(skipped)
            raise
        self._note_skipped(skipped)
        return data

    def _note_skipped(self, skipped: Skipped) -> None:
        found, seen = self._reader.skipped
        skipped.count(seen, found)
        skipped.report(found)

    def next(self) -> Any:
        if (successor := self._taken_over()) is not None:
            return next(successor)
        if self._batch is _NONE:
            self._index, self._before = _NONE, self._num_yielded
            self._reader.count_last()
        try:
            batch = StatefulIterator.__next__(self)
            # KeyboardInterrupt cannot be raised in the following lines, which contain neither calls nor loops.
            self._batch = _NONE
            return batch
        except Exception:
            self._index = self._batch = _NONE
            raise
        except BaseException:
            if self._batch is not _NONE:
                self._num_yielded = self._before
            elif self._is_under_way:
                index, self._index = self._index, _NONE
                self._order.put_back(index)
                if self._skipped is not None:
                    self._skipped.counts = self._counts
            raise

    @property
    def _is_under_way(self) -> bool:
        """Whether a signal handler requests the state while a batch is being read."""
        return self._index is not _NONE and self._num_received == self._before

    @property
    def _num_received(self) -> int:
        # `_num_yielded` already counts the batch in `_batch`, although this batch was not returned.
        return self._num_yielded if self._batch is _NONE else self._before

    def state_at(self) -> StateAt:
        is_under_way = self._is_under_way
        position = self._reader.position(is_received=not is_under_way).copied()
        if not is_under_way:
            self._reader.took(position)
        begins = not self._has_read and not self.is_finished
        again = self._reading.is_iterable and not self._reader.restores_position
        marks = self._marks.items()
        moved = GLOBAL if begins else [name for name, mark in marks if name in self._moved or mark_of(name) != mark]
        first = self._then if again or (begins and self._reading.is_iterable) else None
        position = position._replace(now_since=0)

        def positions_at(program: Callable[[str], Any]) -> list[ReadingPosition]:
            now, then = {name: encoded(program(name)) for name in moved}, position.then
            if first is not None:
                at_first = {name: encoded(first[name]) for name in moved}
                then = {name: one for name, one in at_first.items() if one != now[name]}
            return [position._replace(random=now, then=then)]

        waiting = [self._index] if is_under_way else []
        return self._state_at(waiting, positions_at, skipped=self._counts if is_under_way else None)


# -- shards ------------------------------------------------------------------------------------------------


class LocalPool:
    """Reads shards in this process, with the same methods as a `WorkerPool`, which reads them in worker processes.

    Args:
        pin: a function that copies a batch to pinned memory, or None.
        reached: a function that returns a shard's position after the batches that the program has received.
    """

    is_ordered = False
    orders: ClassVar[list[Any]] = []

    def __init__(self, job: Job, pin: Callable[[Any], Any] | None, reached: Callable[[int], ReadingPosition]) -> None:
        self._job, self._pin, self._reached = job, pin, reached
        self._shards: list[ShardReader] = []
        self._units: list[Batches] = []
        self._program = ShardGlobals()
        self.turn = 0
        self._ended: set[int] = set()
        #: For each shard with a stateful dataset, the snapshot from before the first batch of the epoch.
        self.first_snapshots: dict[int, bytes] = {}
        self.is_ending = False
        self.counting: Counting | None = None

    def in_program(self, function: Callable[[], _T]) -> _T:
        """Calls `function` with the generators and the worker info of the program, even if a signal handler interrupts
        an exchange of globals."""
        with one_at_a_time():
            if not self._program.is_away:
                return function()
            with ShardGlobals() as found, Exchanged(found, self._program):
                return function()

    def begin(self, ahead: int, shared_seed: int | None, positions: list[Any], fresh: bool, first: int) -> None:
        self.turn = first
        for number, position in enumerate(positions):
            created = ShardGlobals()
            with one_at_a_time(), self._program, Exchanged(self._program, created):
                job = self._job.copied()
                if job.reading.collate_fn in (default_collate, default_convert):
                    job.reading.collate_fn = _Unseen(job.reading.collate_fn)
                shard = ShardReader(job, number, self.counting)
                shard.globals = created
                self._shards.append(shard)
                units = shard.begin_epoch(True, shared_seed, fresh, (position,))
                self._units.append(units)
                if units.news.before is not None:
                    self.first_snapshots[number] = units.news.before

    def wait(self, hand: list[Any]) -> None:
        while not hand:
            left = [number for number in range(len(self._units)) if number not in self._ended]
            if not left:
                raise StopIteration
            number = ([one for one in left if one >= self.turn] or left)[0]
            with one_at_a_time(), self._program, Exchanged(self._program, self._shards[number].globals):
                reader = self._shards[number].reader
                assert reader is not None
                reader.prepare(partial(self._return_to, reader, number))
                hand.extend(islice(self._units[number], 1))
            if not hand:
                self._ended.add(number)
                self.turn = number + 1
        shard, order, batch, news = hand[0]
        if self._pin is not None and batch is not None:
            hand[0] = shard, order, self._pin(batch), news

    def _return_to(self, reader: EpochReader, shard: int, _position: ReadingPosition) -> None:
        reader.restore(self._reached(shard))  # unlike the reader, the program knows how many batches were delivered

    def end_epoch(self) -> None:
        """Does nothing; see `WorkerPool.end_epoch`."""

    def shutdown(self) -> None:
        self.is_ending = True
        self._units = []


class _Unseen:
    """Hides the worker info from PyTorch's collate functions, which create batches in shared memory in workers."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.func = function  # statistics read the function's name from `func`, as for a `partial`

    def __call__(self, samples: Any) -> Any:
        worker: Any = torch.utils.data._utils.worker
        info, worker._worker_info = worker._worker_info, None
        try:
            return self.func(samples)
        finally:
            worker._worker_info = info


class ShardsInProcessIterator(WorkersIterator):
    _pool: LocalPool

    def _new_pool(self, loader: Any, job: Job) -> LocalPool:
        device = self._pin_memory_device
        pin = (lambda batch: pinned(batch, device)) if self._pin_memory else None
        return LocalPool(job, pin, lambda shard: self._progress[shard].reached())

    def _count_into_pool(self) -> None:
        how = self._reading
        clock = self._recorder.begin_here(self, how.dataset, how.is_iterable, how.collate_fn)
        self._pool.counting = None if clock is None else self._recorder.counting

    def _take(self) -> tuple[int, int, Any, News]:
        unit = super()._take()
        self._pool.turn = unit[0] + 1
        return unit

    def state_dict(self) -> dict[str, Any]:
        return self._pool.in_program(super().state_dict)
