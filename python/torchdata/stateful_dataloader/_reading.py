"""Reading a dataset by torch's fetchers, with the state of all that has one: dataset, iterator, collate function.

Role: used where the dataset is read: in the process of the program, or in each worker. Owns the fetcher of an epoch.

A place is a dict. Its states are those of a moment inside an epoch, or at its end; a dataset is given them, and what
was read since (`since`) is read once more and dropped. So a place need not be taken at each batch.

A stream that has given nothing in its epoch has no such moment there: what its generator will do follows from how the
epochs before were left. So its place is told by the last moment before them (`base`), what was read since that, and the
batches of each epoch that was begun behind it (`later`), which are begun and read once more as well. Before the first
epoch of all, the base is `unbegun`: its states are loaded only if the dataset has other ones by now.

While a batch is made, the state of a stream tells of a part of that batch. A place that is asked for then is the last
one before, with the batches since.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import _DatasetKind

from torchdata._observe.stats.batches import BatchClock
from torchdata._reporting import warn_outside
from torchdata._stateful import copied, give, is_same, is_stateful, state_of
from torchdata.datapipes._pipe.witnessing import Digest
from torchdata.stateful_dataloader._cadence import Cadence
from torchdata.stateful_dataloader._fetching import Indexed, Stream
from torchdata.stateful_dataloader._frozen import freeze
from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    Moment,
    mark_of,
    put_back_afterwards,
    read,
    set_all,
)
from torchdata.stateful_dataloader._skipping import IndexedFetcher, StreamFetcher
from torchdata.stateful_dataloader._trails import STATES, Trails, base_of

__all__ = ["NO_PLACE", "Reader", "Reading"]

#: Generators that are set while batches are read again, and how many batches are read behind that.
_Now = tuple[Moment | None, int]
_NO_NOW: _Now = (None, 0)

#: Stands for the states of a dataset that has given nothing.
_ENDED = b"", b""
#: After how many batches a place is kept that nobody has asked for.
_KEPT_EVERY = 64
#: No fetcher makes so many batches.
_NEVER = 1 << 62
#: A place of which nothing is known but that it is one: before the first batch, if nothing has a state.
NO_PLACE: dict[str, Any] = {
    "dataset_state": None, "dataset_iter_state": None, "collate_state": None, "random": None, "ended": False,
    "base": None, "later": None, "digest": None,
}  # fmt: skip


@dataclass
class Reading:
    """The dataset and the settings of reading; the same in all workers."""

    kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    #: Samples of a batch, if an iterable dataset is read in batches.
    batch_size: int | None
    #: Whether samples are skipped at which the dataset raises.
    skips: bool = False
    #: Whether batches from which samples were left out are filled up; and whether what was read of them is kept.
    fills: bool = False
    keeps: bool = False

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is read from its beginning to its end, rather than by index."""
        return self.kind == _DatasetKind.Iterable

    def samples_of(self, index: Any) -> int:
        """How many samples an index of the sampler, or an order of an iterable dataset, asks for."""
        if self.is_iterable:
            return (self.batch_size or 1) if self.auto_collation else 1
        return len(index) if self.auto_collation else 1

    def iterable_index(self) -> Any:
        """The indices that torch's sampler gives for an iterable dataset."""
        return [None] * (self.batch_size or 1) if self.auto_collation else None


class Reader:
    """Reads one epoch after the other.

    Args:
        reading: what is read.
        generators: returns the states of the generators that a place is to have; without it, places have none, and the
            caller restores generators.
    """

    def __init__(self, reading: Reading, generators: Callable[[], Moment] | None = None) -> None:
        #: The reading; a pipe of torch's may be another one in each epoch.
        self.reading = reading
        self._generators = generators
        self._fetcher: Any = None
        #: Batches that were asked of this fetcher, and those of this epoch that were asked for by `read`.
        self._fetched = self.count = 0
        self._is_over = False
        self._trails = Trails()
        #: Whether the last batch was read and not yet counted by the trails, as the program may not have been given it.
        self._is_uncounted = False
        #: Whether a batch was cut off while it was made, as by Ctrl-C.
        self._is_cut_off = False
        #: The place that this epoch goes on from; None if it begins.
        self._came_from: dict[str, Any] | None = None
        #: Whether the dataset was given a state in this process. A generator may have yet to take it.
        self._was_given_state = False
        self._trial: _Trial | None = None
        #: Whether, and when, places are kept that nobody has asked for.
        self._keeps, self._cadence = False, Cadence(_KEPT_EVERY)
        #: What times batches, and which one of this fetcher is timed next.
        self._clock: BatchClock | None = None
        self._timed_next = _NEVER

    def time_by(self, clock: BatchClock | None) -> None:
        """Has some of the batches timed from now on."""
        self._clock, self._timed_next = clock, _NEVER if clock is None else self._fetched + 1

    # -- what is known of the dataset ----------------------------------------------------------------

    @property
    def _iterator(self) -> Any:
        return getattr(self._fetcher, "dataset_iter", None)

    @property
    def restores_place(self) -> bool:
        """Whether the place in the dataset is restored by a state, and not by reading from the beginning."""
        if not self.reading.is_iterable:
            return True
        return is_stateful(self.reading.dataset) or is_stateful(self._iterator)

    @property
    def is_stateful(self) -> bool:
        """Whether there is a state that changes from batch to batch."""
        parts = self.reading.dataset, self.reading.collate_fn, self._iterator
        return any(is_stateful(part) for part in parts)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """What was skipped of the last batch that was asked for, see `IndexedFetcher`."""
        return self._fetcher.skipped if self.reading.skips and self._fetcher is not None else []

    @property
    def seen(self) -> int:
        """How many samples that batch accounts for, if samples may be skipped."""
        return self._fetcher.seen if self._fetcher is not None else 0

    @property
    def left(self) -> list[int] | None:
        """The places in it of the indices that were read, if it is to be filled up."""
        return self._fetcher.left if self.reading.fills and self._fetcher is not None else None

    @property
    def digest(self) -> int | None:
        """A checksum of some of the samples that were read in this epoch, of a stream that has no state."""
        return getattr(self._fetcher, "digest", None)

    @property
    def must_go_back(self) -> bool:
        """Whether a batch was cut off, and what was read of it can be had by reading from a place before alone."""
        return self._is_cut_off and self.reading.is_iterable and (self.restores_place or self._fetcher.is_broken)

    @property
    def has_ended(self) -> bool:
        """Whether the iterable dataset has come to its end."""
        return self._is_over or bool(getattr(self._fetcher, "ended", False))

    def anew(self) -> Reader:
        """Returns a reader of the same dataset for a loaded state."""
        reader = Reader(self.reading, self._generators)
        reader._was_given_state = self._was_given_state
        return reader

    # -- beginning -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins an epoch."""
        if self.has_ended and self.restores_place and not self._trails.stand_at_an_end:
            with contextlib.suppress(Exception):  # a state that cannot be had now, and need not be
                self.took(copied(self._state()))
        if self._trails.is_unknown and self.reading.is_iterable:
            self._trails = Trails.before_all(self._states_now())
        self._count_last()
        self._trails.begin()
        self._fetch_anew()
        self.count, self._is_over, self._came_from = 0, False, None
        self._is_cut_off = False

    def _states_now(self) -> dict[str, Any]:
        """The states of dataset and collate function before anything was read."""
        states: dict[str, Any] = dict.fromkeys(STATES)
        for key, one in (("dataset_state", self.reading.dataset), ("collate_state", self.reading.collate_fn)):
            with contextlib.suppress(Exception):  # one that has no state before it begins
                states[key] = copied(state_of(one))
        return states

    def restore(self, place: dict[str, Any]) -> None:
        """Goes on from a saved place.

        Args:
            place: what `place` returned, with what was read since in `since`. Its generators are set, unless they are
                None. Those in `now`, if it has any, are set before the last `now_since` batches.

        Raises:
            ValueError: the dataset ends before that place.
        """
        self.count, self._is_over, self._is_uncounted, self._is_cut_off = 0, False, False, False
        self._came_from = place if self.reading.is_iterable else None
        later, random = place["later"], place["random"]
        base = place if later is None else base_of(place)
        now: _Now = place.get("now"), place.get("now_since", 0)
        self._trails = Trails.of(place) if self.reading.is_iterable else Trails()
        with put_back_afterwards(GLOBAL if random is None and later else ()):
            set_all(random or {})  # `iter(dataset)` may draw
            if base is not None and base.get("unbegun"):
                self._go_back(base)
            elif base is not None:
                self._go_on(base, random or {}, place["since"], now if not later else _NO_NOW, is_left=bool(later))
            for count in later[:-1] if later else ():
                self._fetch_anew()
                self._read_again(count, _NO_NOW, is_left=True)
        if later:
            self._fetch_anew()
            self._read_again(later[-1], now)
        if now[0] is not None and not now[1]:
            set_all(now[0])

    def _fetch_anew(self) -> None:
        reading = self.reading
        how = reading.dataset, reading.auto_collation, reading.collate_fn, reading.drop_last
        if reading.is_iterable:
            self._fetcher = StreamFetcher(*how, fills=reading.fills) if reading.skips else Stream(*how)
        elif reading.skips:
            self._fetcher = IndexedFetcher(*how, fills=reading.fills, keeps=reading.keeps)
        else:
            self._fetcher = Indexed(*how)
        self._fetched, self._timed_next = 0, _NEVER if self._clock is None else 1
        self._keeps = self.reading.is_iterable and self.restores_place
        if reading.is_iterable and not self.restores_place:
            self._fetcher.watch()

    def _go_on(self, base: dict[str, Any], random: Moment, since: Any, now: _Now, is_left: bool) -> None:
        """Goes on inside an epoch, or at its end."""
        if base["ended"] and all(base[part] is None for part in STATES):
            self._is_over = True
            return
        self._load(base)
        set_all(random)
        if base["ended"]:
            self._end_again(base)
        else:
            before = [*map(mark_of, GLOBAL)]
            self._read_again(since, now, is_left)
            if base.get("digest") is not None and self.digest not in (None, base["digest"]):
                # A program that draws from the same global generators between two batches changes the numbers, too.
                draws = before != [*map(mark_of, GLOBAL)]
                self._complain(since, draws or Digest.differ_in_numbers_alone(base["digest"], self.digest or 0))

    def _complain(self, since: Any, is_noise: bool) -> None:
        """Warns, or raises ValueError: a stream without a state does not repeat itself.

        Args:
            since: how many batches were read again.
            is_noise: whether the samples may differ by numbers that were drawn for each of them.
        """
        if is_noise:
            warn_outside(
                f"the samples of the first {since} batches have other numbers than when the state was saved. If these "
                "are drawn for each sample, as for augmentation, nothing is lost. If the order differs, some samples "
                "come twice and others never: seed the order in each epoch, or give the dataset state_dict() and "
                "load_state_dict()",
                RuntimeWarning,
            )
            return
        raise ValueError(
            "the dataset does not repeat itself, so the loader cannot go on from the state: the samples of its first "
            f"{since} batches are not those that were read when the state was saved. Seed whatever shuffles or draws "
            "them, in each epoch, or give the dataset state_dict() and load_state_dict(). "
            "load_state_dict(state, strict=False) of the loader goes on all the same, behind as many batches"
        )

    def _go_back(self, base: dict[str, Any]) -> None:
        """Gives dataset and collate function the states that they had before the first epoch, unless they have them."""
        now = self._states_now()
        for key, one in (("dataset_state", self.reading.dataset), ("collate_state", self.reading.collate_fn)):
            if not is_stateful(one) or base[key] is None:
                continue
            if self._was_given_state or not is_same(base[key], now[key]):
                give(one, base[key])
                self._was_given_state = True

    def _load(self, base: dict[str, Any]) -> None:
        """Gives dataset, iterator and collate function their states."""
        self._was_given_state = True
        reading, dataset = self.reading, self.reading.dataset
        own, part = self._of_dataset(base), base["dataset_iter_state"]
        if is_stateful(dataset) and own is not None:
            if reading.is_iterable and hasattr(dataset, "__dict__"):
                self._trial = _Trial(dict(vars(dataset)), freeze(own))
            # One that is its own iterator may take no state before `iter`, and is given it after that again.
            with contextlib.suppress(*(() if base["dataset_state"] is not None else (Exception,))):
                give(dataset, own)
        if is_stateful(reading.collate_fn) and base["collate_state"] is not None:
            give(reading.collate_fn, base["collate_state"])
        self._fetch_anew()
        if reading.is_iterable and self.restores_place:
            self._fetcher.position = None
        if part is None or not is_stateful(self._iterator):
            return
        if self._iterator is not dataset or not is_same(state_of(dataset), part):
            give(self._iterator, part)

    def _of_dataset(self, base: dict[str, Any]) -> Any:
        """The dataset's part of a place."""
        part = base["dataset_state"]
        is_iterator = part is None and hasattr(self.reading.dataset, "__next__")
        return base["dataset_iter_state"] if is_iterator else part

    def _end_again(self, base: dict[str, Any]) -> None:
        """Brings the dataset to its end once more: it then has taken what was loaded, as later epochs must not.

        An iterator with a state of its own is at its end, and would count that once more.
        """
        if self._iterator is self.reading.dataset or not is_stateful(self._iterator):
            with put_back_afterwards(GLOBAL), contextlib.suppress(StopIteration, _Reported):
                self._read_reported(self.reading.iterable_index())
                # It had made itself ready for the next epoch, and begins that now: it is to begin it later.
                if self._of_dataset(base) is not None:
                    give(self.reading.dataset, self._of_dataset(base))
                self._trial = None
        if self._trial is not None:
            self._trial.first = _ENDED
        self._fetched = max(self._fetched, 1)  # its first batch was the end
        self._fetcher.ended = True

    def _read_again(self, since: Any, now: _Now, is_left: bool = False) -> None:
        """Reads, and drops, what was read since the place was taken.

        Args:
            since: how many batches, or their indices.
            now: generators that are set before the last of them, and how many these are.
            is_left: whether the epoch was left then. One of them may have been the end.
        """
        indices = since if isinstance(since, list) else (self.reading.iterable_index() for _ in range(since))
        for number, index in enumerate(indices):
            if now[0] is not None and number == since - now[1]:
                set_all(now[0])
            try:
                with contextlib.suppress(_Reported):
                    self._read_reported(index)
            except StopIteration:
                if is_left:
                    return
                raise ValueError(
                    f"the dataset ended after {number} batches where {since} had been read when the state was saved: "
                    "it is not the dataset that the state belongs to, or it does not repeat itself"
                ) from None

    def _read_reported(self, index: Any) -> None:
        """Reads a batch; an error was raised when it was read first, too, and is dropped with it."""
        try:
            self._fetch(index)
        except StopIteration:
            if self.reading.is_iterable:
                raise
        except Exception as error:
            raise _Reported from error

    # -- reading -------------------------------------------------------------------------------------

    def read(self, index: Any) -> Any:
        """The batch of an index, or the next one of an iterable dataset; `NOTHING` if all of it was skipped.

        Raises:
            StopIteration: the iterable dataset has no more.
            BaseException: whatever the dataset or the collate function raised.
        """
        self._count_last()
        self._is_cut_off = True
        try:
            batch = self._fetch(index)
        except StopIteration:
            self._is_over = self.reading.is_iterable
            self._has_read()
            raise
        except Exception:
            self._has_read()
            raise
        self._has_read()
        return batch

    def _has_read(self) -> None:
        self.count += 1
        self._is_uncounted, self._is_cut_off = True, False

    def _count_last(self) -> None:
        """Has the trails count the batch that was read last: the program was given it."""
        if self._is_uncounted:
            self._is_uncounted = False
            self._trails.count()

    def _fetch(self, index: Any) -> Any:
        """A batch, read for the first time or once more."""
        if self._is_over:  # without a fetcher, if it was restored so
            raise StopIteration
        self._fetched += 1
        if self._fetched >= self._timed_next:
            return self._fetch_timed(index)
        if self._trial is None or self._fetched > 1:
            return self._fetcher.fetch(index)
        return self._fetch_first(self._trial, index)

    def _fetch_timed(self, index: Any) -> Any:
        self._timed_next = self._fetched + 1  # if it raises
        if self._trial is not None and self._fetched == 1:
            return self._fetch_first(self._trial, index)
        fetcher = self._fetcher
        fetcher.times, fetcher.read_at = True, 0
        began = time.perf_counter_ns()
        try:
            batch = fetcher.fetch(index)
        finally:
            fetcher.times = False
        if fetcher.read_at and self._clock is not None:
            read = fetcher.read_at
            gap = self._clock.note(fetcher.num_read, read - began, time.perf_counter_ns() - read)
            self._timed_next = self._fetched + gap
        return batch

    def _seen(self) -> tuple[bytes, bytes]:
        """The states of dataset and iterator, to be compared with others."""
        iterator, dataset = self._iterator, self.reading.dataset
        inner = None if iterator is dataset else state_of(iterator)
        return freeze(state_of(dataset)), freeze((inner, self.has_ended))

    def _fetch_first(self, trial: _Trial, index: Any) -> Any:
        """The first batch of an epoch; that of the epoch behind a loaded one is compared with that one's first."""
        before = {name: read(name) for name in GLOBAL}
        batch = ended = None
        try:
            batch = self._fetcher.fetch(index)
        except StopIteration as error:
            ended = error
        seen = _ENDED if ended is not None else self._seen()
        if trial.first is None:
            trial.first = seen
        else:
            self._trial = None
            if (
                trial.loaded != trial.first[0] and trial.first == seen
            ):  # it has begun where the state had said once more
                vars(self.reading.dataset).clear()
                vars(self.reading.dataset).update(trial.attributes)
                set_all(before)
                self._fetch_anew()
                return self._fetch(index)
        if ended is not None:
            raise ended
        return batch

    # -- places --------------------------------------------------------------------------------------

    def place(self, is_given: bool = True) -> dict[str, Any]:
        """Where the reading stands.

        Args:
            is_given: whether the program was given the last batch; otherwise the place is the one before that batch.
        """
        is_inside = self.count - (not is_given and self._is_uncounted) > 0
        if self.reading.is_iterable and self.restores_place and (self._is_cut_off or not is_given):
            return self._state() | self._trails.told_inside() if is_inside else self._place_at_the_beginning()
        if not self.reading.is_iterable or self.count or self.has_ended:
            state = self._state()
            return state if is_given or not self._is_uncounted else {**state, "digest": None}  # of a batch too many
        return self._place_at_the_beginning()

    def _place_at_the_beginning(self) -> dict[str, Any]:
        if self._came_from is not None:
            return self._came_from
        if not self.restores_place:
            return self._state()
        return self._state() | self._trails.told()  # the states of now for those who look

    def took(self, place: Any) -> None:
        """Notes a place that was taken.

        Args:
            place: what `place` returned, as it stays: a copy, or frozen.
        """
        if self.reading.is_iterable and (self.count or self.has_ended) and not self._is_cut_off:
            self._count_last()
            self._trails.note(place, is_end=self.has_ended)

    def keep_place(self) -> None:
        """Takes a place now and then, for the epochs behind this one if it is left, and behind the first batch."""
        if not self._keeps or not self.count or self._is_cut_off:
            return
        if not self._cadence.is_due(now := time.monotonic(), 0.0) and self._trails.is_inside:
            return
        with contextlib.suppress(Exception):  # a state that cannot be had now, and need not be
            self.took(copied(self._state()))
        self._cadence.took(time.monotonic(), time.monotonic() - now)

    def _state(self) -> dict[str, Any]:
        reading, iterator = self.reading, self._iterator
        return NO_PLACE | {
            "dataset_state": None if iterator is reading.dataset else state_of(reading.dataset),
            "dataset_iter_state": state_of(iterator),
            "collate_state": state_of(reading.collate_fn),
            "random": self._generators() if self._generators is not None else None,
            "since": 0 if reading.is_iterable else [],
            "ended": self.has_ended,
            "digest": self.digest,
        }


@dataclass
class _Trial:
    """A dataset that was given a state: does it take that once, or does each later epoch begin there as well?"""

    #: The attributes of the dataset before.
    attributes: dict[str, Any]
    loaded: bytes
    #: The states behind the first batch that it gave then; `_ENDED` where there was none.
    first: tuple[bytes, bytes] | None = None


class _Reported(Exception):
    """A batch that was read once more raised its error once more."""
