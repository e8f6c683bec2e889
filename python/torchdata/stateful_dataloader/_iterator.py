"""The common base of both iterators over a loader: the order of the epoch, and their part of the state.

Role: main, in the threads that read, one after the other. Derives from torch's iterator, which reads the loader's
settings, draws the seeds and counts batches: all of these are torch's own.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchdata._native import Turn
from torchdata._observe.stats.batches import BatchRecorder
from torchdata._threads import end_at_exit
from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._fitting import facts_of, shards_of
from torchdata.stateful_dataloader._order import IndexOrder
from torchdata.stateful_dataloader._reading import Reading
from torchdata.stateful_dataloader._skipping import Counts, Skipped
from torchdata.stateful_dataloader._state import is_over, laid_out
from torchdata.stateful_dataloader._unstarted import is_own_iterator

__all__ = ["StatefulIterator", "logger"]

logger = logging.getLogger("torchdata.stateful_dataloader")


#: torch's own words for it.
_OF_WORKERS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at "
    "each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


class StatefulIterator(_BaseDataLoaderIter):
    """An iterator over a `StatefulDataLoader`.

    Args:
        loader: the loader.
        state: a saved place to go on from, as `_state.normalized` returns it; None for a new epoch.
    """

    _sampler_iter: Iterator[Any]
    #: Whether batches come in the order of their indices.
    _in_order = True
    #: Whether the next epoch has another number of shards, and other processes.
    lasts_one_epoch = False

    if TYPE_CHECKING:  # the base's in the extension

        @property
        def turn(self) -> Turn: ...

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        end_at_exit(self.turn)
        #: The process that it reads in.
        self._process = os.getpid()
        self._drawing: Drawing = loader._drawing
        self._recorder: BatchRecorder = loader._recorder
        self._order = IndexOrder(loader, self._drawing, loader.num_workers * (loader.prefetch_factor or 0))
        self._finished = False
        #: What a loader that loads the state must agree in.
        self._facts = facts_of(loader)
        #: The loader, if it was given a state since this iterator was made; and the iterator that goes on from that.
        self._loading: Any = None
        self._successor: Iterator[Any] | None = None
        #: How many batches the user had been given in earlier runs of this epoch.
        self._given_before = 0
        #: Whether an epoch of the state was over, and its workers would have lived on.
        self._lives_on = False
        #: What is skipped of the epoch; None if nothing may be.
        self._skipped = Skipped.of(loader, None if state is None or is_over(state) else state["skipped"])
        #: Batches of which all was skipped, and that were not handed over.
        self._num_empty = 0
        if state is not None and not is_over(state) and state["skipped"] is not None:
            self._num_empty = state["_sampler_iter_yielded"] - state["_num_yielded"]
        #: Batches to pass over, of a state that says no more.
        self._passing_over = 0
        #: The workers of the epoch, as its dataset sees them: a loader resumes the epoch of another number of them.
        self._num_shards: int = shards_of(state, loader)
        if state is None:
            self._begin_drawing(loader)
        elif is_over(state):
            self._order.follow(state)
            self._lives_on = (
                bool(loader.persistent_workers and state["_num_workers"] and state["_base_seed"] is not None)
                and not state["unstarted"]
            )
            if self._lives_on:
                with self._drawing.untouched():
                    super().__init__(loader)
                self._base_seed = state["_base_seed"]
            else:
                self._begin_drawing(loader)
        else:
            with self._drawing.untouched():
                super().__init__(loader)
            self._base_seed = state["_base_seed"] if state["_base_seed"] is not None else self._base_seed
            if state["_shared_seed"] is not None:
                self._shared_seed = state["_shared_seed"]
            self._IterableDataset_len_called = state["_IterableDataset_len_called"]
            self._passing_over = state["passing_over"]
        self._reading = Reading(
            kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            batch_size=loader.batch_size,
            skips=self._skipped is not None,
            fills=loader.error_fill,
            keeps=loader.error_fill and not loader.num_workers,
        )

    def _begin_drawing(self, loader: Any) -> None:
        with self._drawing.under_way():
            self._order.note_random()
            super().__init__(loader)

    @property
    def is_finished(self) -> bool:
        """Whether the epoch is over."""
        return self._finished

    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's."""
        return self._process != os.getpid()

    def state_was_loaded(self, loader: Any) -> None:
        """Notes that the loader was given a state: the iterator goes on from that if it has given no batch."""
        self._loading = loader

    def _taken_over(self) -> Iterator[Any] | None:
        """The iterator that gives the batches in place of this one; None if this one does.

        Raises:
            RuntimeError: a state was loaded after this iterator had given a batch, and no other loop has begun since.
        """
        loader = self._loading
        if loader is not None and loader.has_state_to_take:
            if self._finished or self._num_given > self._given_before:
                raise RuntimeError(
                    f"StatefulDataLoader: load_state_dict() was called after this iterator had "
                    f"{'ended' if self._finished else 'given batches'}, so the state cannot apply to it. Call "
                    "iter(loader) after load_state_dict(), or begin a new loop"
                )
            self.shutdown()
            self._successor = iter(loader)
        self._loading = None
        return self._successor

    @property
    def worker_pids(self) -> list[int]:
        """The numbers of the worker processes."""
        return []

    def shutdown(self) -> None:
        """Ends what reads for this iterator."""

    def _next_index(self) -> Any:
        return self._order.draw()

    @property
    def _num_given(self) -> int:
        """How many batches of this epoch were handed over, or passed over because all of them was skipped."""
        return self._num_yielded + self._num_empty

    @property
    def _has_read(self) -> bool:
        """Whether there was a batch of this epoch."""
        return self._num_given > 0

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self._finished = True
            self._recorder.end()
            if self._skipped is not None:
                self._skipped.end()
            raise

    def _count(self) -> None:
        """Counts a batch that is handed over, and warns as torch does if there are more than `len()` had said."""
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
        """Reads, and drops, what a state of torchdata 0.11 says to be behind it."""
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
                    f"the dataset ended after {number} of the {count} batches that the state says to be behind it "
                    "('_steps_since_snapshot'): it is not the dataset that the state belongs to, or damaged"
                ) from None
        self._given_before = self._num_given

    def _state(
        self, waiting: list[Any], places: list[Any], last_worker: int, skipped: Counts | None = None
    ) -> dict[str, Any]:
        """The state of the loader, as it is saved.

        Args:
            waiting: indices that were drawn, in their order, but whose batches the user has not got.
            places: where each worker's reading stands, or the one in main.
            last_worker: the worker that has given the last batch.
            skipped: what was skipped if samples may be; None for what was counted so far.
        """
        reading = self._reading
        batches = (self._num_given, (reading.batch_size or 0) * reading.auto_collation)
        iterable = batches if reading.is_iterable else None
        theirs, ours = self._order.state(waiting, self._finished, iterable, self._in_order)
        main = theirs | {
            "_num_yielded": self._num_yielded,
            "_iterator_finished": self._finished,
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_base_seed": self._base_seed,
            "_shared_seed": self._shared_seed,
            "_dataset_kind": int(reading.kind),
            "is_iterable": reading.is_iterable,
            "is_own_iterator": is_own_iterator(reading.dataset),
            "last_worker": last_worker,
        }
        ours = ours | {"loader": self._facts}
        if self._skipped is not None:
            ours = ours | {"skipped": self._skipped.state(skipped)}
        return laid_out(main, places, ours, self._num_shards)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands."""
