"""Reads a dataset through PyTorch's fetchers, and saves the states of the dataset, its iterator and the collate
function.

A `ReadingPosition` contains a snapshot, and the batches that were read after this snapshot (`since`). A resumed reader
rereads the batches after the snapshot, so snapshots need not be taken at each batch.

If a position is requested while a batch is being read, the position contains an earlier snapshot, because the dataset's
present state might already include samples of this batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any

from torch.utils.data import _DatasetKind

from torchdata._handlers import FailuresSuppressed, raise_if_of_handler
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.batches import BatchClock
from torchdata._reporting import warn_outside
from torchdata._stateful import StatefulStream, StreamState, is_stateful, load_into, state_of, steps_of
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._cadence import SnapshotCadence
from torchdata.stateful_dataloader._fetching import Indexed, IterableFetcher
from torchdata.stateful_dataloader._generators import GLOBAL, Moment, mark_of, put_back_afterwards, read, set_all
from torchdata.stateful_dataloader._pipes import PIPE_WRAPPERS, PipeSource, source_of
from torchdata.stateful_dataloader._position import ReadingPosition

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

    def __getstate__(self) -> Any:
        """Removes PyTorch's wrapper from a pipe, because the wrapper can only pickle functions that can be imported."""
        wrapper = type(self.dataset) if isinstance(self.dataset, PIPE_WRAPPERS) else None
        return {**vars(self), "dataset": self.dataset._datapipe if wrapper else self.dataset}, wrapper

    def __setstate__(self, state: Any) -> None:
        values, wrapper = state
        vars(self).update(values)
        self.dataset = wrapper(self.dataset) if wrapper else self.dataset


class EpochReader:
    """Reads the batches of an epoch.

    Args:
        generators: a function that returns the generators' states for a snapshot; None if the caller saves these
            states.
    """

    def __init__(self, reading: ReadingSettings, generators: Callable[[], Moment] | None = None) -> None:
        self._stream = StatefulStream(())
        #: The position to restore before the next batch is read; None unless Ctrl-C has interrupted a batch.
        self._back: ReadingPosition | None
        self.use(reading)
        self._generators = generators
        self._fetcher: Any = None
        #: The last snapshot of an iterable dataset. `_since` is the number of batches that the program has received
        #: after the last snapshot.
        self._kept: ReadingPosition | bytes | None = None
        self._since = 0
        #: The number of batches that were requested from this fetcher. `count` counts the calls of `read` in this
        #: epoch.
        self._fetched = self.count = 0
        #: `_is_uncounted`: whether `_since` does not count the last batch yet, because the program may not have
        #: received it. `_is_cut_off` is True if an exception such as KeyboardInterrupt has interrupted `read`.
        self._is_over = self._is_uncounted = self._is_cut_off = False
        #: A batch that was read, but not returned, because Ctrl-C interrupted `read`.
        self._held: Any = _NONE
        self._keeps, self._cadence = False, SnapshotCadence(_KEPT_EVERY)
        #: The clock that times some of the batches. `_timed_next` is the number of the next batch to time.
        self._clock: BatchClock | None = None
        self._timed_next = _NEVER

    def time_by(self, clock: BatchClock | None) -> None:
        self._clock, self._timed_next = clock, _NEVER if clock is None else self._fetched + 1

    # -- properties of the dataset -------------------------------------------------------------------

    def use(self, reading: ReadingSettings) -> None:
        self.reading, self._back = reading, None
        #: The object that provides the samples: the dataset, or an adapter that saves the dataset's position.
        self._source = reading.dataset
        if reading.is_iterable:
            self._source = source_of(reading.dataset, lambda: reading.shared_seed)
        if not self._stream.reads(self._source):
            is_exact = isinstance(self._source, (PipeSource, ObservedLoader))
            self._stream = StatefulStream(self._source, is_exact=is_exact, mark=_mark_of_generators)

    @property
    def restores_position(self) -> bool:
        """Whether loading a state moves the dataset to the saved position, so that the dataset is not reread from its
        beginning."""
        return not self.reading.is_iterable or self._stream.has_state

    @property
    def is_stateful(self) -> bool:
        return self._stream.has_state or is_stateful(self.reading.collate_fn)

    @property
    def skipped(self) -> tuple[list[dict[str, Any]], int]:
        """The skipped samples of the last batch, and the number of its samples."""
        return ([], 0) if self._fetcher is None else (self._fetcher.skipped, self._fetcher.seen)

    @property
    def digest(self) -> int | None:
        return getattr(self._fetcher, "digest", None)

    @property
    def has_ended(self) -> bool:
        return self._is_over or bool(getattr(self._fetcher, "ended", False))

    # -- beginning an epoch --------------------------------------------------------------------------

    def begin(self, position: ReadingPosition | None = None) -> None:
        """Begins an epoch. If `position` is not None, the reader first restores this position between two epochs."""
        if position is not None:
            self.restore(position)
            if position.begins:
                return
        random = None if self._generators is None else self._generators()
        self._fetch_from(self._source if not self.reading.is_iterable else self._stream.begin())
        self.count, self._is_over, self._is_uncounted, self._is_cut_off = 0, False, False, False
        self._kept, self._since = None, 0
        if self.reading.is_iterable:
            with FailuresSuppressed():  # some datasets refuse to return their state between epochs
                self._kept = self._state()._replace(random=random, digest=None).copied()

    def restore(self, position: ReadingPosition) -> None:
        """Restores a position. Raises ValueError if the dataset ends before the position."""
        self.count, self._is_over, self._is_uncounted, self._is_cut_off = 0, position.ended, False, False
        self._kept, self._since = (position, position.since) if self.reading.is_iterable else (None, 0)
        self._held = _NONE
        random = position.random or {}
        set_all(random)
        # Loading a dataset's state may set the global generators. A reader that begins a new epoch must not use
        # generator states that were set by loading, so the previous states of the generators are restored after
        # loading.
        with put_back_afterwards(GLOBAL if position.ended or (position.unstarted and not position.begins) else ()):
            self._fetcher = None
            if not position.ended or position.has_state:
                self._load(position)
            if self.restores_position and not position.begins:
                set_all(random)
            if not position.ended:
                self._read_again(position)
        if not position.now_since:
            set_all(position.now or {})

    def _fetch_from(self, items: Any) -> None:
        reading = self.reading
        iterator = self._stream.iterator if reading.is_iterable and not self.restores_position else None
        items = items if iterator is None else steps_of(iterator)
        how = items, reading.auto_collation, reading.collate_fn, reading.drop_last
        self._fetcher = (IterableFetcher if reading.is_iterable else Indexed)(*how, skips=reading.skips)
        self._fetcher.dataset = reading.dataset  # error messages name the user's dataset
        if iterator is not None:
            self._fetcher.dataset_iter = iterator  # the constructor calls `iter`, which resets some iterators
        self._held = _NONE
        self._fetched, self._timed_next = 0, _NEVER if self._clock is None else 1
        self._keeps = self.reading.is_iterable and self.restores_position
        if reading.is_iterable:
            self._fetcher.wanted = reading.samples_of(None)
            self._fetcher.digest = None if self.restores_position else 0
            self._fetcher.is_generator = isinstance(self._stream.iterator, GeneratorType)

    def _report_difference(self, since: Any, is_noise: bool) -> None:
        """Reports that reread samples differ from the samples of the saved run. Raises ValueError, or only warns if
        random numbers may have caused the difference (`is_noise`)."""
        if is_noise:
            warn_outside(
                f"the samples of the first {since} batches contain other numbers than before the state was saved. If "
                "these are drawn for each sample, as for augmentation, nothing is lost. If the order differs, some "
                "samples come twice and others never: seed the order in each epoch, or give the dataset state_dict() "
                "and load_state_dict()",
                RuntimeWarning,
            )
            return
        raise ValueError(
            "the dataset does not repeat itself, so the loader cannot resume from the state: the samples of its first "
            f"{since} batches differ from the samples that were read before the state was saved. Seed the code that "
            "shuffles or draws them in each epoch, or give the dataset state_dict() and load_state_dict(). "
            "load_state_dict(state, strict=False) of the loader resumes anyway, after the same number of batches"
        )

    def _load(self, position: ReadingPosition) -> None:
        reading, stream = self.reading, self._stream
        if is_stateful(reading.collate_fn) and position.collate is not None:
            load_into(reading.collate_fn, position.collate)
        if not reading.is_iterable:
            if is_stateful(self._source) and position.dataset is not None:
                load_into(self._source, position.dataset)
            self._fetch_from(self._source)
        elif not position.is_of_dataset:
            self._fetch_from(stream.begin())
        else:
            self._fetch_from(stream.resume_at(position.of_stream(hasattr(self._source, "__next__"))))
            if not stream.has_state:
                raise ValueError(
                    f"the state contains a position of the dataset, but {type(reading.dataset).__name__} and its "
                    "iterator have no state_dict and load_state_dict: load the state with the dataset that was saved"
                )
            stream.arrive()
            if self.restores_position and not position.begins:
                self._fetcher.position = None

    def _read_again(self, position: ReadingPosition) -> None:
        """Reads and drops the batches that were originally read after the snapshot."""
        since, before = position.since, [*map(mark_of, GLOBAL)]
        indices = since if isinstance(since, list) else range(since)
        for number, index in enumerate(indices):
            if position.now is not None and number == since - position.now_since:
                set_all(position.now)
            try:
                self._fetch(index)
            except Exception as error:  # the original run has already raised other exceptions
                raise_if_of_handler(error)
                if isinstance(error, StopIteration) and self.reading.is_iterable:
                    raise ValueError(
                        f"the dataset ended after {number} batches, but {since} were read before the state was saved: "
                        "the state belongs to another dataset, or the dataset does not repeat itself"
                    ) from None
            finally:
                self._held = _NONE
        if position.digest is not None and self.digest not in (None, position.digest):
            # If the dataset draws from a global generator, reread samples may differ from the original samples, because
            # other code of the program also draws from this generator.
            draws = before != [*map(mark_of, GLOBAL)]
            self._report_difference(
                since, draws or SampleDigest.differ_in_numbers_alone(position.digest, self.digest or 0)
            )

    # -- reading -------------------------------------------------------------------------------------

    def read(self, index: Any) -> Any:
        """Returns the batch for an index, or the next batch of an iterable dataset; `NOTHING` if all its samples were
        skipped."""
        self.count_last()
        self._is_cut_off = True
        try:
            batch = self._fetch(index) if self._held is _NONE else self._held
        except Exception as error:
            self._is_over = self.reading.is_iterable and isinstance(error, StopIteration)
            self.count += 1
            self._is_uncounted, self._is_cut_off = True, False
            raise
        # KeyboardInterrupt cannot be raised in the following lines, which contain neither calls nor loops.
        self.count += 1
        self._is_uncounted, self._is_cut_off, self._held = True, False, _NONE
        return batch

    def put_back(self, batch: Any) -> None:
        """Takes back the last result of `read`, which did not reach the program; the next `read` returns it again."""
        self._held, self._is_cut_off, self._is_uncounted = batch, True, False
        self.count -= 1

    def count_last(self) -> None:
        if self._is_uncounted:
            self._since += 1
            self._is_uncounted = False

    def _fetch(self, index: Any) -> Any:
        if self._is_over:
            raise StopIteration
        self._fetched += 1
        return self._fetch_timed(index) if self._fetched >= self._timed_next else self._fetcher.fetch(index)

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

    # -- snapshots -----------------------------------------------------------------------------------

    def position(self, is_received: bool = True) -> ReadingPosition:
        """Returns a snapshot of the reading position.

        Args:
            is_received: whether the program has received the last batch; if not, the returned position is from
                before this batch.
        """
        if self._back is not None:
            return self._back
        is_exact = not self._is_cut_off and (is_received or not self._is_uncounted)
        begins = not (self.count or self.has_ended)
        if self._kept is not None and (begins or (self.restores_position and (self._is_cut_off or not is_received))):
            kept = ReadingPosition.thawed(self._kept) if isinstance(self._kept, bytes) else self._kept
            return kept._replace(since=self._since)
        state = self._state()
        if not self.restores_position and not self.has_ended and isinstance(self._kept, ReadingPosition):
            state = state._replace(collate=self._kept.collate)  # all batches of the epoch are collated again
        # If `digest` and `ended` include a batch that the program has not received, both fields are reset.
        return state if is_exact else state._replace(digest=None, ended=False)

    def took(self, position: ReadingPosition | bytes) -> None:
        """Records `position`, a snapshot of the present position. `position` must be pickled, or contain copies of the
        states.
        """
        if self._back is not None or self._is_cut_off:
            return
        if self.reading.is_iterable and (self.count or self.has_ended):
            self.count_last()
            self._kept, self._since = position, 0

    def prepare(self, restore: Callable[[ReadingPosition], None]) -> None:
        """`prepare` must be called before `read` in the main process, where Ctrl-C may interrupt a batch. Takes
        snapshots at intervals. If an interrupted batch cannot continue, this method calls `restore` with an earlier
        position."""
        is_broken = self._is_cut_off and (self.restores_position or self._fetcher.is_broken)
        if self._back is not None or (is_broken and self.reading.is_iterable):
            self._back = self._back or self.position().copied()
            restore(self._back)
            self._back = None
        if not self._keeps or not self.count or self._is_cut_off:
            return
        if not self._cadence.is_due(now := time.monotonic(), 0.0) and self._kept is not None:
            return
        with FailuresSuppressed():
            self.took(self._state().copied())
        self._cadence.took(time.monotonic(), time.monotonic() - now)

    def _state(self) -> ReadingPosition:
        reading, source, stream = self.reading, self._source, self._stream
        if reading.is_iterable:
            state = stream.state(copies=False)
        else:
            state = StreamState(state_of(source), None, True, False)
        is_own = stream.iterator is source
        return ReadingPosition(
            None if is_own else state.own,
            state.own if is_own else state.inner,
            state_of(reading.collate_fn),
            self._generators() if self._generators is not None else None,
            0 if reading.is_iterable else [],
            self.has_ended,
            self.digest,
            None if state.started or not stream.has_state else state.ended,
        )


def _mark_of_generators() -> Callable[[], None]:
    """Returns a function that restores the present states of the global generators."""
    return partial(set_all, {name: read(name) for name in GLOBAL})
