"""Reading a dataset by torch's fetchers, with the state of all that has one: dataset, iterator, collate function.

Role: used where the dataset is read: in the process of the program, or in each worker. Owns the fetcher of an epoch.

A place is a dict that a checkpoint may hold. What was read since it was taken is read once more, and dropped: so it
need not be taken at each batch. The global generators of a worker are part of it, as they may be what that depends on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from torch.utils.data import _DatasetKind

from torchdata._stateful import Stateful
from torchdata.stateful_dataloader._order import state_of
from torchdata.stateful_dataloader._random import global_state, set_global_state

__all__ = ["Reader", "Reading"]


@dataclass
class Reading:
    """What is read, and how; the same in all workers."""

    kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    #: Samples of a batch, where an iterable dataset is read in batches.
    batch_size: int | None

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is read from its beginning to its end, rather than by index."""
        return self.kind == _DatasetKind.Iterable

    def iterable_index(self) -> Any:
        """What torch's sampler gives for an iterable dataset."""
        return [None] * (self.batch_size or 1) if self.auto_collation else None


class Reader:
    """Reads one epoch after the other.

    Args:
        reading: what is read.
        owns_generators: whether the process' global generators belong to the reading, as they do in a worker.
    """

    def __init__(self, reading: Reading, owns_generators: bool) -> None:
        self._reading = reading
        self._owns_generators = owns_generators
        self._fetcher: Any = None

    # -- what is known of the dataset ----------------------------------------------------------------

    @property
    def _iterator(self) -> Any:
        return getattr(self._fetcher, "dataset_iter", None)

    @property
    def restores_place(self) -> bool:
        """Whether the place in the dataset is restored by a state, and not by reading from the beginning."""
        if not self._reading.is_iterable:
            return True
        return isinstance(self._reading.dataset, Stateful) or isinstance(self._iterator, Stateful)

    @property
    def is_stateful(self) -> bool:
        """Whether there is a state that changes from batch to batch."""
        parts = self._reading.dataset, self._reading.collate_fn, self._iterator
        return any(isinstance(part, Stateful) for part in parts)

    # -- reading -------------------------------------------------------------------------------------

    def begin(self, place: dict[str, Any] | None = None, fresh: bool = False) -> None:
        """Begins an epoch, or goes on from a saved place.

        Args:
            place: what `place` returned, with what was read since in `since`.
            fresh: only what outlives an epoch is taken from it, as the epoch that it belongs to is over.

        Raises:
            ValueError: the dataset ends before that place.
        """
        reading = self._reading
        state: dict[str, Any] = {} if place is None else place
        if isinstance(reading.dataset, Stateful):
            # The dataset may be its own iterator. Where a new epoch begins, that state is the dataset's.
            part = state.get("dataset_state")
            part = state.get("dataset_iter_state") if fresh and part is None else part
            if part is not None:
                reading.dataset.load_state_dict(part)
        if isinstance(reading.collate_fn, Stateful) and state.get("collate_state") is not None:
            reading.collate_fn.load_state_dict(state["collate_state"])
        create: Any = _DatasetKind.create_fetcher
        self._fetcher = create(
            reading.kind, reading.dataset, reading.auto_collation, reading.collate_fn, reading.drop_last
        )
        if not fresh and state.get("dataset_iter_state") is not None and isinstance(self._iterator, Stateful):
            self._iterator.load_state_dict(state["dataset_iter_state"])
        if self._owns_generators and state.get("random") is not None:
            set_global_state(state["random"])
        if place is None or (fresh and reading.is_iterable):  # whose place at its end is told
            return
        if place["ended"]:
            self._fetcher.ended = True
        else:
            self._read_again(place)

    def _read_again(self, place: dict[str, Any]) -> None:
        """Reads, and drops, what was read since the place was taken."""
        since = place["since"]
        indices = since if isinstance(since, list) else [self._reading.iterable_index()] * since
        for number, index in enumerate(indices):
            try:
                with contextlib.suppress(_Reported):
                    self._read_reported(index)
            except StopIteration:
                raise ValueError(
                    f"the dataset ended after {number} batches where {len(indices)} had been read when the state was "
                    "saved: it is not the dataset that the state belongs to, or it does not repeat itself"
                ) from None

    def _read_reported(self, index: Any) -> None:
        """Reads a batch; an error was raised when it was read first, too, and is dropped with it."""
        try:
            self._fetcher.fetch(index)
        except StopIteration:
            if self._reading.is_iterable:
                raise
        except Exception as error:
            raise _Reported from error

    def read(self, index: Any) -> Any:
        """The batch of an index, or the next one of an iterable dataset.

        Raises:
            StopIteration: the iterable dataset has no more.
            BaseException: whatever the dataset or the collate function raised.
        """
        return self._fetcher.fetch(index)

    @property
    def has_ended(self) -> bool:
        """Whether the iterable dataset has come to its end."""
        return bool(getattr(self._fetcher, "ended", False))

    def place(self) -> dict[str, Any]:
        """Where the reading stands."""
        reading, iterator = self._reading, self._iterator
        return {
            "dataset_state": None if iterator is reading.dataset else state_of(reading.dataset),
            "dataset_iter_state": state_of(iterator),
            "collate_state": state_of(reading.collate_fn),
            "random": global_state() if self._owns_generators else None,
            "since": 0 if reading.is_iterable else [],
            "ended": self.has_ended,
        }


class _Reported(Exception):
    """What was read once more raised an error once more."""
