"""What both iterators over a loader have in common: the order of the epoch, and their part of the state.

Role: main, in the threads that read, one after the other. Derives from torch's iterator, which reads the loader's
settings, draws the seeds and counts batches: all of these are torch's own.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchdata._native import Turn
from torchdata._threads import end_at_exit
from torchdata.stateful_dataloader._order import IndexOrder, generators_of
from torchdata.stateful_dataloader._random import restored_afterwards
from torchdata.stateful_dataloader._reading import Reading

__all__ = ["StatefulIterator", "logger"]

logger = logging.getLogger("torchdata.stateful_dataloader")


class StatefulIterator(_BaseDataLoaderIter):
    """An iterator over a `StatefulDataLoader`.

    Args:
        loader: the loader.
        state: a saved place to go on from, as `_state.normalized` returns it; None for a new epoch.
    """

    _sampler_iter: Iterator[Any]

    if TYPE_CHECKING:  # the base's in the extension

        @property
        def turn(self) -> Turn: ...

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        end_at_exit(self.turn)
        #: The process that it reads in.
        self._process = os.getpid()
        self._order = IndexOrder(loader)
        self._finished = False
        #: Batches to pass over, of a state that says no more.
        self._passing_over = 0
        if state is None:
            self._order.note_random()
            super().__init__(loader)
        elif state["_iterator_finished"]:
            self._follow(loader, state)
        else:
            with restored_afterwards(generators_of(loader)):
                super().__init__(loader)
            self._base_seed = state["_base_seed"] if state["_base_seed"] is not None else self._base_seed
            if state["_shared_seed"] is not None:
                self._shared_seed = state["_shared_seed"]
            self._IterableDataset_len_called = state["_IterableDataset_len_called"]
            self._passing_over = state["_passing_over"]
        self._reading = Reading(
            kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            batch_size=loader.batch_size,
        )

    def _follow(self, loader: Any, state: dict[str, Any]) -> None:
        """Begins the epoch after the one that is over in the state."""
        self._order.restore(state)
        if loader.persistent_workers and state["_base_seed"] is not None:
            with restored_afterwards(generators_of(loader)):  # its workers would have lived on
                super().__init__(loader)
            self._base_seed = state["_base_seed"]
        else:
            self._order.note_random()
            super().__init__(loader)

    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's."""
        return self._process != os.getpid()

    def _next_index(self) -> Any:
        return self._order.draw()

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self._finished = True
            raise

    def _count(self) -> None:
        """Counts a batch that is handed over, and warns as torch does where there are more than `len()` had said."""
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if length is not None and self._reading.is_iterable and self._num_yielded > length:
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {length} (when accessing "
                f"len(dataloader)), but {self._num_yielded} samples have been fetched. With workers each replica of "
                "the dataset may have to be told which part is its own: see torch.utils.data.IterableDataset.",
                stacklevel=3,
            )

    def draw_ahead(self) -> None:
        """Draws the first index now, while the generators are what they are."""
        if self._order.drawn == 0:
            self._order.draw_ahead()

    def _pass_over(self) -> None:
        """Reads, and drops, what a state of torchdata 0.11 says to be behind it."""
        count, self._passing_over = self._passing_over, 0
        if count and self._reading.is_iterable:
            logger.warning(
                "the saved state tells how many batches of the dataset were read, and not where it stood: %d are read "
                "again, and dropped",
                count,
            )
        for _ in range(count):
            next(self)

    def _state(self, waiting: list[Any], places: list[Any], next_worker: int) -> dict[str, Any]:
        """The state of the loader, as it is saved."""
        return {
            "_format": 1,
            "_num_workers": self._num_workers,
            "_num_yielded": self._num_yielded,
            "_iterator_finished": self._finished,
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_base_seed": self._base_seed,
            "_shared_seed": self._shared_seed,
            **copy.deepcopy(self._order.state(waiting)),
            "_places": places,
            "_next_worker": next_worker,
        }

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands."""
