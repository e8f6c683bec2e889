"""Reads a dataset through PyTorch's fetchers, and saves the states of the dataset, its iterator and the collate
function.

A `ReadingPosition` contains a snapshot of the states, and the batches that were read after the snapshot (`since`). A
resumed reader loads the snapshot and rereads these batches, so that not every batch needs a snapshot.

Before the first batch of an epoch, the next items of an iterable dataset may depend on how far the previous epochs were
read. A `ReadingPosition` from before the first batch therefore contains `base`, a snapshot from an earlier epoch, and
`later`, the number of batches that were read in each epoch since then. A resumed reader loads `base` and rereads these
batches. A snapshot from before the first epoch (`unbegun=True`) is loaded only if it differs from the dataset's current
state.

If a position is requested while a batch is being read, the position contains an earlier snapshot, because the current
state of an iterable dataset already includes a part of the batch.
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
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._cadence import SnapshotCadence
from torchdata.stateful_dataloader._fetching import Indexed, IterableFetcher
from torchdata.stateful_dataloader._generators import GLOBAL, Moment, mark_of, put_back_afterwards, read, set_all
from torchdata.stateful_dataloader._pipes import source_of
from torchdata.stateful_dataloader._position import ReadingPosition, Trails, freeze

#: The generators' states from before the most recent batches, and the number of these batches.
_Now = tuple[Moment | None, int]
_NO_NOW: _Now = (None, 0)

_ENDED = b"", b""
_KEPT_EVERY = 64
_NEVER = 1 << 62
_NONE: Any = object()


@dataclass
class ReadingSettings:
    kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    batch_size: int | None
    skips: bool = False
    shared_seed: int | None = None

    @property
    def is_iterable(self) -> bool:
        return self.kind == _DatasetKind.Iterable

    def samples_of(self, index: Any) -> int:
        if self.is_iterable:
            return (self.batch_size or 1) if self.auto_collation else 1
        return len(index) if self.auto_collation else 1


class EpochReader:
    """Reads the batches of an epoch.

    Args:
        generators: returns the generators' states for a snapshot; None if the caller saves these states.
    """

    def __init__(self, reading: ReadingSettings, generators: Callable[[], Moment] | None = None) -> None:
        self.use(reading)
        self._generators = generators
        self._fetcher: Any = None
        self._trails = Trails()
        #: The number of batches that were requested from this fetcher. `count` is the number of calls of `read` in this
        #: epoch.
        self._fetched = self.count = 0
        #: `_is_uncounted` is True if `_trails` does not count the last batch, because the program may not have received
        #: this batch. `_is_cut_off` is True if an exception such as KeyboardInterrupt has interrupted a batch.
        self._is_over = self._is_uncounted = self._is_cut_off = False
        #: The snapshot from which this epoch has resumed, or None.
        self._came_from: ReadingPosition | None = None
        self._back: ReadingPosition | None = None
        #: A batch that was read before Ctrl-C interrupted `read`.
        self._held: Any = _NONE
        self._was_given_state = False
        self._trial: _Trial | None = None
        self._keeps, self._cadence = False, SnapshotCadence(_KEPT_EVERY)
        #: The clock that measures batches. `_timed_next` is the number of the next measured batch.
        self._clock: BatchClock | None = None
        self._timed_next = _NEVER

    def time_by(self, clock: BatchClock | None) -> None:
        self._clock, self._timed_next = clock, _NEVER if clock is None else self._fetched + 1

    # -- properties of the dataset -------------------------------------------------------------------

    def use(self, reading: ReadingSettings) -> None:
        self.reading = reading
        #: The dataset, or an adapter that saves the dataset's position.
        self._source = reading.dataset
        if reading.is_iterable:
            self._source = source_of(reading.dataset, lambda: reading.shared_seed)

    @property
    def _iterator(self) -> Any:
        return getattr(self._fetcher, "dataset_iter", None)

    @property
    def restores_position(self) -> bool:
        """Whether a state restores the position in the dataset, so that the dataset is not reread from its
        beginning."""
        if not self.reading.is_iterable:
            return True
        return is_stateful(self._source) or is_stateful(self._iterator)

    @property
    def is_stateful(self) -> bool:
        parts = self._source, self.reading.collate_fn, self._iterator
        return any(is_stateful(part) for part in parts)

    @property
    def skipped(self) -> tuple[list[dict[str, Any]], int]:
        """The skipped samples of the last batch, and the number of its samples."""
        return ([], 0) if self._fetcher is None else (self._fetcher.skipped, self._fetcher.seen)

    @property
    def digest(self) -> int | None:
        return getattr(self._fetcher, "digest", None)

    @property
    def must_go_back(self) -> bool:
        """Whether an interrupted batch can be recomputed only after an earlier position is restored."""
        if self._back is not None:
            return True
        return self._is_cut_off and self.reading.is_iterable and (self.restores_position or self._fetcher.is_broken)

    def go_back(self, restore: Callable[[ReadingPosition], None]) -> None:
        if self._back is None:
            self._back = self.position().copied()
        restore(self._back)
        self._back = None

    @property
    def has_ended(self) -> bool:
        return self._is_over or bool(getattr(self._fetcher, "ended", False))

    def anew(self) -> EpochReader:
        reader = EpochReader(self.reading, self._generators)
        reader._was_given_state = self._was_given_state
        return reader

    # -- beginning an epoch --------------------------------------------------------------------------

    def begin(self) -> None:
        if self.has_ended and self.restores_position and not self._trails.stand_at_an_end:
            with contextlib.suppress(Exception):  # some datasets refuse to return their state between epochs
                self.took(self._state().copied())
        if self._trails.is_unknown and self.reading.is_iterable:
            self._trails = Trails(self._states_now())
        self.count_last()
        self._trails.begin()
        self._fetch_anew()
        self.count, self._is_over, self._came_from, self._back = 0, False, None, None
        self._is_cut_off = False

    def _states_now(self) -> ReadingPosition:
        """Returns the current states of the dataset and the collate function as a position before the first epoch."""
        states: list[Any] = [None, None]
        for number, one in enumerate((self._source, self.reading.collate_fn)):
            with contextlib.suppress(Exception):
                states[number] = copied(state_of(one))
        return ReadingPosition(dataset=states[0], collate=states[1], unbegun=True)

    def restore(self, position: ReadingPosition) -> None:
        """Restores a position. Raises ValueError if the dataset ends before the position."""
        self.count, self._is_over, self._is_uncounted, self._is_cut_off = 0, False, False, False
        self._came_from = position if self.reading.is_iterable else None
        later, random, base = position.later, position.random, position.origin
        now: _Now = position.now, position.now_since
        self._trails = Trails(position if self.reading.is_iterable else None)
        # Loading a dataset's state may set the global generators. The generators in a state from before the first epoch
        # belong to the main process, and must not replace the generators of a worker.
        with put_back_afterwards(GLOBAL if position.unstarted or (random is None and later) else ()):
            set_all(random or {})
            if base is not None and base.unbegun:
                self._go_back(base)
            elif base is not None:
                self._go_on(base, random or {}, position.since, now if not later else _NO_NOW, is_left=bool(later))
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
        how = self._source, reading.auto_collation, reading.collate_fn, reading.drop_last
        self._fetcher = (IterableFetcher if reading.is_iterable else Indexed)(*how, skips=reading.skips)
        self._fetcher.dataset = reading.dataset  # error messages name the user's dataset
        self._held = _NONE
        self._fetched, self._timed_next = 0, _NEVER if self._clock is None else 1
        self._keeps = self.reading.is_iterable and self.restores_position
        if reading.is_iterable:
            self._fetcher.wanted = reading.samples_of(None)
            self._fetcher.digest = None if self.restores_position else 0

    def _go_on(self, base: ReadingPosition, random: Moment, since: Any, now: _Now, is_left: bool) -> None:
        """Loads a snapshot, and rereads the batches of its epoch after the snapshot."""
        if base.ended and not base.has_state:
            self._is_over = True
            return
        self._load(base)
        set_all(random)
        if base.ended:
            self._end_again(base)
        else:
            before = [*map(mark_of, GLOBAL)]
            self._read_again(since, now, is_left)
            if base.digest is not None and self.digest not in (None, base.digest):
                # The samples may differ if the dataset and the program both draw from a global generator.
                draws = before != [*map(mark_of, GLOBAL)]
                self._complain(since, draws or SampleDigest.differ_in_numbers_alone(base.digest, self.digest or 0))

    def _complain(self, since: Any, is_noise: bool) -> None:
        """Raises ValueError because the reread samples differ. If random numbers per sample may be the reason
        (`is_noise`), issues a warning instead."""
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
            "the dataset does not repeat itself, so the loader cannot resume from the state: the samples of its first "
            f"{since} batches are not those that were read when the state was saved. Seed whatever shuffles or draws "
            "them, in each epoch, or give the dataset state_dict() and load_state_dict(). "
            "load_state_dict(state, strict=False) of the loader resumes anyway, after the same number of batches"
        )

    def _go_back(self, base: ReadingPosition) -> None:
        now = self._states_now()
        for one, state, present in (
            (self._source, base.dataset, now.dataset), (self.reading.collate_fn, base.collate, now.collate)
        ):  # fmt: skip
            if is_stateful(one) and state is not None and (self._was_given_state or not is_same(state, present)):
                give(one, state)
                self._was_given_state = True

    def _load(self, base: ReadingPosition) -> None:
        self._was_given_state = True
        reading, dataset = self.reading, self._source
        own, part = self._of_dataset(base), base.iterator
        if is_stateful(dataset) and own is not None:
            if reading.is_iterable and hasattr(dataset, "__dict__"):
                self._trial = _Trial(dict(vars(dataset)), freeze(own))
            # A dataset that is its own iterator may refuse a state before `iter` is called, so the state is loaded a
            # second time after `iter`.
            with contextlib.suppress(*(() if base.dataset is not None else (Exception,))):
                give(dataset, own)
        if is_stateful(reading.collate_fn) and base.collate is not None:
            give(reading.collate_fn, base.collate)
        self._fetch_anew()
        if reading.is_iterable and self.restores_position:
            self._fetcher.position = None
        if part is None or not is_stateful(self._iterator):
            return
        if self._iterator is not dataset or not is_same(state_of(dataset), part):
            give(self._iterator, part)

    def _of_dataset(self, base: ReadingPosition) -> Any:
        """Returns the state of the dataset, which is in `base.iterator` if the dataset is its own iterator."""
        is_iterator = base.dataset is None and hasattr(self._source, "__next__")
        return base.iterator if is_iterator else base.dataset

    def _end_again(self, base: ReadingPosition) -> None:
        """Requests an item after the end of the dataset, so that the dataset does not apply the loaded state in a later
        epoch. An iterator with its own state has already applied the state."""
        if self._iterator is self._source or not is_stateful(self._iterator):
            with put_back_afterwards(GLOBAL):
                if self._read_once_more(None) is None:
                    # The loaded state already belonged to the next epoch, and `_read_once_more` has read a batch of
                    # that epoch. Loading the state a second time undoes this read.
                    if self._of_dataset(base) is not None:
                        give(self._source, self._of_dataset(base))
                    self._trial = None
        if self._trial is not None:
            self._trial.first = _ENDED
        self._fetched = max(self._fetched, 1)
        self._fetcher.ended = True

    def _read_again(self, since: Any, now: _Now, is_left: bool = False) -> None:
        """Reads and drops the batches after the snapshot.

        Args:
            now: the generators' states for the last batches, and the number of these batches.
            is_left: whether the dataset may end early, because the next epoch had begun when the state was saved.
        """
        indices = since if isinstance(since, list) else range(since)
        for number, index in enumerate(indices):
            if now[0] is not None and number == since - now[1]:
                set_all(now[0])
            if not isinstance(self._read_once_more(index), StopIteration) or not self.reading.is_iterable:
                continue
            if is_left:
                return
            raise ValueError(
                f"the dataset ended after {number} batches, but {since} were read before the state was saved: "
                "the state belongs to another dataset, or the dataset does not repeat itself"
            )

    def _read_once_more(self, index: Any) -> Exception | None:
        try:
            self._fetch(index)
        except Exception as error:
            return error
        finally:
            self._held = _NONE
        return None

    # -- reading -------------------------------------------------------------------------------------

    def read(self, index: Any) -> Any:
        """Returns the batch of an index, or an iterable dataset's next batch; `NOTHING` if all samples were skipped."""
        self.count_last()
        self._is_cut_off = True
        try:
            batch = self._fetch(index) if self._held is _NONE else self._held
        except Exception as error:
            self._is_over = self.reading.is_iterable and isinstance(error, StopIteration)
            self.count += 1
            self._is_uncounted, self._is_cut_off = True, False
            raise
        # Ctrl-C cannot interrupt the following lines, because they call no function.
        self.count += 1
        self._is_uncounted, self._is_cut_off, self._held = True, False, _NONE
        return batch

    def count_last(self) -> None:
        if self._is_uncounted:
            self._trails.count()
            self._is_uncounted = False

    def _fetch(self, index: Any) -> Any:
        if self._is_over:
            raise StopIteration
        self._fetched += 1
        if self._trial is not None and self._fetched == 1:
            return self._fetch_first(self._trial, index)
        if self._fetched >= self._timed_next:
            return self._fetch_timed(index)
        return self._fetcher.fetch(index)

    def _fetch_timed(self, index: Any) -> Any:
        fetcher = self._fetcher
        self._timed_next = self._fetched + 1
        fetcher.times, fetcher.read_at = True, 0
        began = time.perf_counter_ns()
        try:
            self._held = batch = fetcher.fetch(index)
        finally:
            fetcher.times = False
        if fetcher.read_at and self._clock is not None:
            read = fetcher.read_at
            gap = self._clock.note(fetcher.num_read, read - began, time.perf_counter_ns() - read)
            self._timed_next = self._fetched + gap
        return batch

    def _seen(self) -> tuple[bytes, bytes]:
        """Returns copies of all states, which show whether reading a batch has changed a state."""
        iterator, dataset = self._iterator, self._source
        inner = None if iterator is dataset else state_of(iterator)
        return freeze(state_of(dataset)), freeze((inner, self.has_ended))

    def _fetch_first(self, trial: _Trial, index: Any) -> Any:
        """Reads the first batch after resuming, or of the next epoch, and detects a dataset that applies the loaded
        state to both epochs. The batch is then read a second time."""
        before = {name: read(name) for name in GLOBAL}
        batch = ended = None
        try:
            self._held = batch = self._fetcher.fetch(index)
        except StopIteration as error:
            ended = error
        seen = _ENDED if ended is not None else self._seen()
        if trial.first is None:
            trial.first = seen
        else:
            self._trial = None
            if trial.loaded != trial.first[0] and trial.first == seen:
                vars(self._source).clear()
                vars(self._source).update(trial.attributes)
                set_all(before)
                self._fetch_anew()
                return self._fetch(index)
        if ended is not None:
            raise ended
        return batch

    # -- snapshots -----------------------------------------------------------------------------------

    def position(self, is_given: bool = True) -> ReadingPosition:
        """Returns a snapshot of the reading position.

        Args:
            is_given: whether the program has received the last batch; if not, the snapshot is from before this batch.
        """
        if self._back is not None:
            return self._back
        is_inside = self.count - (not is_given and self._is_uncounted) > 0
        if self.reading.is_iterable and self.restores_position and (self._is_cut_off or not is_given):
            return self._trails.inside(self._state()) if is_inside else self._position_at_the_beginning()
        if not self.reading.is_iterable or self.count or self.has_ended:
            state = self._state()
            # `digest` and `ended` may include a batch that the program has not received.
            is_exact = not self._is_cut_off and (is_given or not self._is_uncounted)
            return state if is_exact else state._replace(digest=None, ended=False)
        return self._position_at_the_beginning()

    def _position_at_the_beginning(self) -> ReadingPosition:
        if self._came_from is not None:
            return self._came_from
        if not self.restores_position:
            return self._state()._replace(digest=None)
        # The position also contains the dataset's current states, which only user code inspects.
        return self._trails.at_the_beginning(self._state())

    def took(self, position: ReadingPosition | bytes) -> None:
        """Records a snapshot, which must be pickled or contain copied states."""
        if self._back is not None or self._is_cut_off:
            return
        if self.reading.is_iterable and (self.count or self.has_ended):
            self.count_last()
            self._trails.note(position, is_end=self.has_ended)

    def keep_position(self) -> None:
        """Takes a snapshot after the first batch and at intervals, because the program may abandon the epoch."""
        if not self._keeps or not self.count or self._is_cut_off:
            return
        if not self._cadence.is_due(now := time.monotonic(), 0.0) and self._trails.is_inside:
            return
        with contextlib.suppress(Exception):
            self.took(self._state().copied())
        self._cadence.took(time.monotonic(), time.monotonic() - now)

    def _state(self) -> ReadingPosition:
        reading, iterator = self.reading, self._iterator
        return ReadingPosition(
            None if iterator is self._source else state_of(self._source),
            state_of(iterator),
            state_of(reading.collate_fn),
            self._generators() if self._generators is not None else None,
            0 if reading.is_iterable else [],
            self.has_ended,
            self.digest,
        )


@dataclass
class _Trial:
    """Tests whether a dataset wrongly applies a loaded state to each later epoch."""

    attributes: dict[str, Any]
    loaded: bytes
    first: tuple[bytes, bytes] | None = None
