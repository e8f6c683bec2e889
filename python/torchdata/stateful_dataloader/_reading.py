"""Reading a dataset by torch's fetchers, with the state of all that has one: dataset, iterator, collate function.

Role: used where the dataset is read: in the process of the program, or in each worker. Owns the fetcher of an epoch.

A place is a dict. It belongs to an epoch of the dataset, and says whether that goes on or has ended; a dataset that
has not begun in this epoch has the place where it left the one before (`left`). Only a place inside an epoch is given
to a dataset to go on from. Else the dataset is brought to the end that it had, and `iter(dataset)` begins anew.

What was read since a place was taken (`since`) is read once more, and dropped: so it need not be taken at each batch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from torch.utils.data import _DatasetKind

from torchdata._stateful import Stateful
from torchdata.stateful_dataloader._frozen import copied, freeze, thaw
from torchdata.stateful_dataloader._generators import GLOBAL, Moment, put_back_afterwards, read, set_all
from torchdata.stateful_dataloader._order import state_of

__all__ = ["NO_PLACE", "Reader", "Reading"]

#: Stands for the state of a dataset that has given nothing.
_ENDED = b""
#: A place of which nothing is known but that it is one: before the first batch, where nothing has a state.
NO_PLACE: dict[str, Any] = {
    "dataset_state": None, "dataset_iter_state": None, "collate_state": None, "random": None, "ended": False
}  # fmt: skip


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
    """

    def __init__(self, reading: Reading) -> None:
        #: What is read; a pipe of torch's may be another one in each epoch.
        self.reading = reading
        self._fetcher: Any = None
        #: Batches of this epoch that were read here.
        self.count, self._is_over = 0, False
        #: The last places that were taken in this epoch, and how many batches were read before each.
        self._taken: list[tuple[dict[str, Any], int]] = []
        #: Where the dataset has left the epoch before this one; None where this is its first.
        self._left: dict[str, Any] | None = None
        #: The place that this epoch goes on from; None where it begins.
        self._came_from: dict[str, Any] | None = None
        self._trial: _Trial | None = None

    # -- what is known of the dataset ----------------------------------------------------------------

    @property
    def _iterator(self) -> Any:
        return getattr(self._fetcher, "dataset_iter", None)

    @property
    def restores_place(self) -> bool:
        """Whether the place in the dataset is restored by a state, and not by reading from the beginning."""
        if not self.reading.is_iterable:
            return True
        return isinstance(self.reading.dataset, Stateful) or isinstance(self._iterator, Stateful)

    @property
    def is_stateful(self) -> bool:
        """Whether there is a state that changes from batch to batch."""
        parts = self.reading.dataset, self.reading.collate_fn, self._iterator
        return any(isinstance(part, Stateful) for part in parts)

    @property
    def has_ended(self) -> bool:
        """Whether the iterable dataset has come to its end."""
        return self._is_over or bool(getattr(self._fetcher, "ended", False))

    # -- beginning -----------------------------------------------------------------------------------

    def begin(self, place: dict[str, Any] | None = None) -> None:
        """Begins an epoch, or goes on from a saved place.

        Args:
            place: what `place` returned, with what was read since in `since`.

        Raises:
            ValueError: the dataset ends before that place.
        """
        self._leave()
        self.count, self._is_over, self._taken, self._came_from = 0, False, [], None
        if place is None:
            self._fetch_anew()
        elif place.get("left"):
            self.begin_after(place)
        else:
            self._go_on(place)
            self._came_from = place if self.reading.is_iterable else None

    def begin_after(self, place: dict[str, Any]) -> None:
        """Begins the epoch behind the one that a saved place belongs to."""
        if not self.reading.is_iterable:
            self._go_on(place)
            return
        if not place.get("first"):
            self._left = {key: value for key, value in place.items() if key != "left"}
            with put_back_afterwards(GLOBAL):
                self._leave_again(self._left)
        set_all(place["random"] or {})
        self._fetch_anew()

    def _leave(self) -> None:
        """Notes where the dataset leaves the epoch that it is in, if it has begun."""
        if self._fetcher is None or not self.reading.is_iterable or not (self.count or self.has_ended):
            return
        if not isinstance(self.reading.dataset, Stateful) or self._iterator is self.reading.dataset:
            return
        before = [(place, count) for place, count in self._taken if count < self.count]
        if before and not self.has_ended and self.count - before[-1][1] < 64:
            # Read once more from there, it is where it is now in all that is not in its state, too.
            place, count = before[-1]
            self._left = {**(thaw(place) if isinstance(place, bytes) else place), "since": self.count - count}
        else:
            self._left = copied(self._state())

    def _fetch_anew(self) -> None:
        reading, create = self.reading, _DatasetKind.create_fetcher
        self._fetcher = create(  # type: ignore[no-untyped-call]
            reading.kind, reading.dataset, reading.auto_collation, reading.collate_fn, reading.drop_last
        )

    def _load(self, place: dict[str, Any]) -> None:
        """Gives dataset, iterator and collate function their states."""
        reading = self.reading
        if isinstance(reading.dataset, Stateful):
            part = place["dataset_state"]
            if part is None and place["ended"] and hasattr(reading.dataset, "__next__"):
                part = place["dataset_iter_state"]  # it is its own iterator
            if part is not None:
                if reading.is_iterable and hasattr(reading.dataset, "__dict__"):
                    self._trial = _Trial(dict(vars(reading.dataset)), freeze(part))
                reading.dataset.load_state_dict(part)
        if isinstance(reading.collate_fn, Stateful) and place["collate_state"] is not None:
            reading.collate_fn.load_state_dict(place["collate_state"])
        self._fetch_anew()
        if place["dataset_iter_state"] is not None and isinstance(self._iterator, Stateful):
            self._iterator.load_state_dict(place["dataset_iter_state"])

    def _go_on(self, place: dict[str, Any]) -> None:
        """Goes on inside the epoch that a place belongs to."""
        random: Moment = place["random"] or {}
        set_all(random)  # `iter(dataset)` may draw
        self._load(place)
        set_all(random)
        if place["ended"]:
            self._end_again(place)
        else:
            self._read_again(place["since"])

    def _leave_again(self, place: dict[str, Any]) -> None:
        """Leaves the dataset as the epoch of a place has left it."""
        if not self.restores_place and place["collate_state"] is None:
            return
        self._load(place)
        if place["ended"]:
            self._end_again(place)
            return
        with contextlib.suppress(ValueError):
            # One batch at least: a generator takes what was loaded with that, so that the next epoch does not.
            self._read_again(max(place["since"], int(place["dataset_state"] is not None)))

    def _end_again(self, place: dict[str, Any]) -> None:
        """Brings the dataset to its end once more: it then has taken what was loaded, as later epochs must not."""
        if self.restores_place:
            with put_back_afterwards(GLOBAL), contextlib.suppress(StopIteration, _Reported):
                self._read_reported(self.reading.iterable_index())
                # It had made itself ready for the next epoch, and begins that now: it is to begin it later.
                if place["dataset_state"] is not None:
                    self.reading.dataset.load_state_dict(place["dataset_state"])
                self._trial = None
        if self._trial is not None:
            self._trial.first = _ENDED
        self._fetcher.ended = True

    def _read_again(self, since: Any) -> None:
        """Reads, and drops, what was read since the place was taken."""
        indices = since if isinstance(since, list) else (self.reading.iterable_index() for _ in range(since))
        for number, index in enumerate(indices):
            try:
                with contextlib.suppress(_Reported):
                    self._read_reported(index)
                if self._trial is not None and self._trial.first is None:
                    self._trial.first = freeze(state_of(self.reading.dataset))
            except StopIteration:
                raise ValueError(
                    f"the dataset ended after {number} batches where {since} had been read when the state was saved: "
                    "it is not the dataset that the state belongs to, or it does not repeat itself"
                ) from None

    def _read_reported(self, index: Any) -> None:
        """Reads a batch; an error was raised when it was read first, too, and is dropped with it."""
        try:
            self._fetcher.fetch(index)
        except StopIteration:
            if self.reading.is_iterable:
                raise
        except Exception as error:
            raise _Reported from error

    # -- reading -------------------------------------------------------------------------------------

    def read(self, index: Any) -> Any:
        """The batch of an index, or the next one of an iterable dataset.

        Raises:
            StopIteration: the iterable dataset has no more.
            BaseException: whatever the dataset or the collate function raised.
        """
        try:
            if self._trial is None or self.count:
                batch = self._fetcher.fetch(index)
            else:
                batch = self._read_first(self._trial, index)
        except StopIteration:
            self._is_over = self.reading.is_iterable
            raise
        self.count += 1
        return batch

    def _read_first(self, trial: _Trial, index: Any) -> Any:
        """The first batch of an epoch; that of the epoch behind a loaded one is compared with that one's first."""
        before = {name: read(name) for name in GLOBAL}
        batch = ended = None
        try:
            batch = self._fetcher.fetch(index)
        except StopIteration as error:
            ended = error
        seen = _ENDED if ended is not None else freeze(state_of(self.reading.dataset))
        if trial.first is None:
            trial.first = seen
        elif self._came_from is None:
            self._trial = None
            if trial.loaded != trial.first == seen:  # it has begun where the state had said once more
                vars(self.reading.dataset).clear()
                vars(self.reading.dataset).update(trial.attributes)
                set_all(before)
                self._fetch_anew()
                return self._fetcher.fetch(index)
        if ended is not None:
            raise ended
        return batch

    # -- places --------------------------------------------------------------------------------------

    def place(self) -> dict[str, Any]:
        """Where the reading stands."""
        if not self.reading.is_iterable or self.count or self.has_ended:
            return self._state()
        if self._came_from is not None:
            return self._came_from
        return self._not_begun()

    def took(self, place: Any) -> None:
        """Notes a place that was taken.

        Args:
            place: what `place` returned, as it stays: a copy, or frozen.
        """
        if self.count:
            self._taken = [*self._taken[-1:], (place, self.count)]

    def _not_begun(self) -> dict[str, Any]:
        """The place before the first batch of an epoch: where the dataset has left the one before."""
        if self._left is not None:
            return {**self._left, "left": True}
        return self._state() | {"dataset_iter_state": None, "since": 0, "left": True, "first": True}

    def _state(self) -> dict[str, Any]:
        reading, iterator = self.reading, self._iterator
        return NO_PLACE | {
            "dataset_state": None if iterator is reading.dataset else state_of(reading.dataset),
            "dataset_iter_state": state_of(iterator),
            "collate_state": state_of(reading.collate_fn),
            "since": 0 if reading.is_iterable else [],
            "ended": self.has_ended,
        }


@dataclass
class _Trial:
    """A dataset that was given a state: does it take that once, or does each later epoch begin there as well?"""

    #: The attributes of the dataset before.
    attributes: dict[str, Any]
    loaded: bytes
    #: Its state behind the first batch that it gave then; `_ENDED` where there was none.
    first: bytes | None = None


class _Reported(Exception):
    """What was read once more raised an error once more."""
