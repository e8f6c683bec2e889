"""The base class of a loader's iterators, which draws the indices of the epoch and creates the state. This base class
derives from PyTorch's iterator, which draws the seeds and counts the batches.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchdata._native import Turn
from torchdata._observe.stats.batches import BatchRecorder
from torchdata._threads import end_at_exit
from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._fitting import StateAt, facts_of, shards_of
from torchdata.stateful_dataloader._layout import dump
from torchdata.stateful_dataloader._order import IndexOrder
from torchdata.stateful_dataloader._position import Counts, EpochState, OrderState, ReadingPosition
from torchdata.stateful_dataloader._reading import ReadingSettings
from torchdata.stateful_dataloader._skipping import Skipped

logger = logging.getLogger("torchdata.stateful_dataloader")


_OF_WORKERS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at "
    "each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


class StatefulIterator(_BaseDataLoaderIter):
    _sampler_iter: Iterator[Any]
    _in_order = True
    lasts_one_epoch = False

    if TYPE_CHECKING:

        @property
        def turn(self) -> Turn: ...

    def __init__(self, loader: Any, state: EpochState | None) -> None:
        end_at_exit(self.turn)
        self._process = os.getpid()
        self._drawing: Drawing = loader._drawing
        self._recorder: BatchRecorder = loader._recorder
        self._order = IndexOrder(loader, self._drawing, loader.num_workers * (loader.prefetch_factor or 0))
        self._facts = facts_of(loader)
        #: The loader, if it has loaded a state since this iterator was created. `_successor`: the iterator that
        #: replaces this iterator after a state was loaded.
        self._loading: Any = None
        self._successor: Iterator[Any] | None = None
        #: `_is_persistent`: whether new persistent workers resume from a state that was saved between two epochs.
        self.is_finished = self._is_persistent = False
        self._skipped = Skipped.of(loader, None if state is None or state.is_over else state.skipped)
        #: `_num_empty` counts batches that were empty because all their samples were skipped. `_completed_before` is
        #: the number of batches that the epoch had returned when it was resumed. `_passing_over` is the number of
        #: batches to drop after loading a state of torchdata 0.11.
        self._num_empty = self._completed_before = self._passing_over = 0
        if state is not None and not state.is_over and state.skipped is not None:
            self._num_empty = state.order.yielded - state.received
        #: The number of workers that `get_worker_info` reports to the dataset; in a resumed epoch, the number in the
        #: saved run.
        self._num_shards: int = shards_of(state, loader)
        if state is not None and state.is_over:
            self._order.follow(state.order, state.unstarted)
            had_workers = bool(state.workers and state.base_seed is not None and not state.unstarted)
            self._is_persistent = loader.persistent_workers and had_workers
        draws = state is None or (state.is_over and not self._is_persistent)
        with self._drawing.under_way() if draws else self._drawing.untouched():
            if draws:
                self._order.note_random()
            super().__init__(loader)
        if state is not None and not draws and state.base_seed is not None:
            self._base_seed = state.base_seed
        if state is not None and not state.is_over:
            if self._shared_seed is not None and state.shared_seed is not None:  # PyTorch sets it for pipes only
                self._shared_seed = state.shared_seed
            self._IterableDataset_len_called = state.length_called
            self._passing_over = state.passing_over
        how = self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        self._reading = ReadingSettings(*how, loader.batch_size, self._skipped is not None, self._shared_seed)

    def is_inherited(self) -> bool:
        return self._process != os.getpid()

    def state_was_loaded(self, loader: Any) -> None:
        self._loading = loader

    def _taken_over(self) -> Iterator[Any] | None:
        """Returns the iterator that replaces this iterator after a state was loaded.

        Raises:
            RuntimeError: this iterator had already returned a batch when the state was loaded, so the program must
                begin a new loop.
        """
        loader = self._loading
        if loader is not None and loader._loaded is not None:
            if self.is_finished or self._num_completed > self._completed_before:
                raise RuntimeError(
                    f"StatefulDataLoader: load_state_dict() was called after this iterator had "
                    f"{'ended' if self.is_finished else 'returned batches'}, so the state cannot apply to it. Call "
                    "iter(loader) after load_state_dict(), or begin a new loop"
                )
            self.shutdown()
            self._successor = iter(loader)
        self._loading = None
        return self._successor

    def shutdown(self) -> None:
        """Stops the threads and processes that read batches for this iterator."""

    @property
    def _num_received(self) -> int:
        return self._num_yielded

    @property
    def _num_completed(self) -> int:
        return self._num_received + self._num_empty

    @property
    def _has_read(self) -> bool:
        return self._num_completed > 0

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.is_finished = True
            self._recorder.end()
            if self._skipped is not None:
                self._skipped.end()
            raise

    def _count(self) -> None:
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if length is not None and self._reading.is_iterable and self._num_yielded > length:
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {length} (when accessing "
                f"len(dataloader)), but {self._num_yielded} samples have been fetched. "
                + (_OF_WORKERS if self._num_workers else ""),
                stacklevel=3,
            )

    def _pass_over(self) -> None:
        """Reads and drops the batches that the user had received, if a state of torchdata 0.11 lacks the dataset's
        position."""
        count, self._passing_over = self._passing_over, 0
        if count and self._reading.is_iterable:
            logger.warning(
                "Neither dataset nor iter(dataset) defines state_dict/load_state_dict so we are naively "
                "fast-forwarding your dataset by %d steps",
                count,
            )
        for number in range(count):
            try:
                next(self)
            except StopIteration:
                raise ValueError(
                    f"the dataset ended after {number} of the {count} batches that were read when the state was saved "
                    "('_steps_since_snapshot'): the state belongs to another dataset, or is damaged"
                ) from None
        self._completed_before = self._num_completed

    def _state_at(
        self,
        waiting: list[Any],
        positions_at: Callable[[Callable[[str], Any]], Sequence[ReadingPosition | None]],
        next_worker: int = 0,
        skipped: Counts | None = None,
    ) -> StateAt:
        """Implements `state_at`.

        Args:
            waiting: the drawn indices of batches that the user has not received, in drawing order.
            positions_at: a function of `Moments.program` that returns the positions of the readers.
        """
        reading = self._reading
        batches = (self._num_completed, (reading.batch_size or 0) * reading.auto_collation)
        iterable = batches if reading.is_iterable else None
        order_at = self._order.state_at(waiting, self.is_finished, iterable, self._in_order)
        state = EpochState(
            OrderState(),
            (),
            self._num_shards,
            self._facts,
            received=self._num_received,
            finished=self.is_finished,
            skipped=None if self._skipped is None else skipped or self._skipped.counts,
            length_called=self._IterableDataset_len_called,
            base_seed=self._base_seed,
            shared_seed=self._shared_seed,
            next_worker=next_worker,
            kind=int(reading.kind),
            is_own_iterator=hasattr(reading.dataset, "__next__"),
        )
        return lambda at: state._replace(order=order_at(at.order), positions=positions_at(at.program))

    @abstractmethod
    def state_at(self) -> StateAt:
        """Returns a function that takes the states of all generators and returns the state of the iterator.

        The returned function can still be called after the next epoch has begun. The returned function does not refer
        to the iterator, so it keeps no workers running.
        """

    def state_dict(self) -> dict[str, Any]:
        self._order.draw_first()
        return dump(self.state_at()(self._drawing.moments()))
