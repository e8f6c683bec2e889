"""Reads the samples of a batch from the dataset and collates them, as PyTorch's fetchers do.

If the dataset raises an exception for a sample, the fetcher adds a note with the number of the sample, or omits the
sample. If Ctrl-C interrupts a batch of an iterable dataset, the next call continues with the samples that were already
read.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Sized
from itertools import islice, repeat
from time import perf_counter_ns
from traceback import walk_tb
from types import TracebackType
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _BaseDatasetFetcher, _IterableDatasetFetcher, _MapDatasetFetcher

from torchdata._reporting import add_note
from torchdata._users_code import ITERATED, READ, codes_of_dataset, raised_in
from torchdata.datapipes._pipe.skipping import is_of_an_item, line_of
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.datapipes.utils.collate import note_remedy

NOTHING = object()
_NAMED = 8
#: If an iterator raises `_MOST_IN_A_ROW` exceptions in a row, the last exception is raised, even if exceptions are
#: skipped.
_MOST_IN_A_ROW = 10_000
ENDS = (
    "it is a generator, and an exception ends a generator, so its remaining items are lost. Let __iter__ return an "
    "object whose __next__ can be called again after an exception, or catch the exception in the generator"
)


class _Fetcher(_BaseDatasetFetcher):
    times = False
    read_at = num_read = 0
    seen = 0

    def __init__(self, *how: Any, skips: bool) -> None:
        super().__init__(*how)
        self.skips = skips
        #: The index and the exception of each sample that was omitted from the last batch, as returned by `line_of`.
        self.skipped: list[dict[str, Any]] = []

    def _collated(self, data: Any, samples: Any) -> Any:
        if self.times:
            self.read_at, self.num_read = perf_counter_ns(), len(data) if self.auto_collation else 1
        try:
            return self.collate_fn(data)
        except Exception as error:
            if which := self._called(samples):
                add_note(error, f"raised by collate_fn for the samples {which}")
            if self.collate_fn is default_collate:
                note_remedy(error, data)
            raise

    def _called(self, samples: Any) -> str:
        raise NotImplementedError


class Indexed(_Fetcher, _MapDatasetFetcher):
    def fetch(self, possibly_batched_index: Any) -> Any:
        if self.skips:
            self.skipped, self.seen = [], len(possibly_batched_index) if self.auto_collation else 1
        index = possibly_batched_index
        data = self._read_batch(index) if self.auto_collation else self._read(index)
        return NOTHING if self.skipped and not data else self._collated(data, index)

    def _read(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            if not self._omits(error, index):
                raise

    def _read_batch(self, indices: Any) -> Any:
        dataset = self.dataset
        data: list[Any] = []
        if getattr(dataset, "__getitems__", None):
            try:
                return dataset.__getitems__(indices)
            except Exception as error:
                if self.skips and is_of_an_item(error):
                    return self._read_each(indices, error)
                origin = _origin(error, dataset)
                add_note(error, f"raised by __getitems__ of {origin}, for the indices {_named(indices)}")
                raise
        for index in indices:
            try:
                data.append(dataset[index])
            except Exception as error:
                if not self._omits(error, index):
                    raise
        return data

    def _read_each(self, indices: Any, error: Exception) -> list[Any]:
        data: list[Any] = []
        for index in indices:
            try:
                found = self.dataset.__getitems__([index])
            except Exception as again:
                if not self._omits(again, index):
                    raise
                continue
            if not isinstance(found, (list, tuple)):
                add_note(
                    error,
                    f"on_error cannot skip the sample: __getitems__ of the dataset returns {type(found).__name__} "
                    "instead of a list, so samples cannot be read one by one",
                )
                self.skipped = []
                raise error
            data.extend(found)
        return data

    def _omits(self, error: Exception, index: Any) -> bool:
        if omits := self.skips and is_of_an_item(error):
            self.skipped.append({"index": _plain(index)} | line_of(error))
        else:
            add_note(error, f"raised by dataset[{index!r}] of {_origin(error, self.dataset)}")
        return omits

    def _called(self, samples: Any) -> str:
        return f"of the indices {_named(samples)}" if self.auto_collation else f"of index {samples!r}"


class IterableFetcher(_Fetcher, _IterableDatasetFetcher):
    #: Whether the dataset's iterator cannot continue because Ctrl-C has interrupted it.
    is_broken = is_generator = False
    wanted = 1
    #: The number of exceptions since the last sample. `_possible_end` is the last exception if it may have ended a
    #: generator.
    _in_a_row = 0
    _possible_end: Exception | None = None

    def __init__(self, *how: Any, skips: bool) -> None:
        super().__init__(*how, skips=skips)
        #: The number of samples and exceptions of this epoch; None if the dataset has loaded a state within the epoch.
        self.position: int | None = 0
        #: The samples of the current batch that were already read. `_is_cut_off` is True if Ctrl-C has interrupted the
        #: current batch.
        self._data: list[Any] = []
        self._is_cut_off = False
        self._counted = 0
        #: A checksum of some samples of the complete batches, for comparison after resuming; None for a dataset with a
        #: state. `_samples` is the same checksum, but includes the samples of a batch that was not completed.
        self.digest: int | None = None
        self._samples = SampleDigest()

    def fetch(self, possibly_batched_index: Any) -> Any:
        if not self._is_cut_off:
            self._data, self._counted = [], 0
            if self.skips:
                self.skipped, self.seen = [], 0
            if self.ended:
                raise StopIteration
        self._is_cut_off = True
        try:
            batch = self._fetch(self.wanted)
        except Exception:
            self._end()
            raise
        self._end()
        return batch

    def _end(self) -> None:
        if self.skips:
            self.seen = len(self._data) + len(self.skipped)
        self._is_cut_off, self._data, self._counted = False, [], 0
        if self.digest is not None:
            self.digest = self._samples.checksum

    def _fetch(self, wanted: int) -> Any:
        try:
            self._read(wanted)
        except Exception:
            raise
        except BaseException as error:
            self.is_broken = self._is_interrupted(error)
            raise
        data = self._data
        if not data or (self.auto_collation and self.drop_last and len(data) + len(self.skipped) < wanted):
            if self.skipped:
                return NOTHING
            raise StopIteration
        return self._collated(data if self.auto_collation else data[0], data)

    def _is_interrupted(self, error: BaseException) -> bool:
        """Returns whether `error` was raised inside a generator, or inside an iterator other than the dataset."""
        *_, (last, _) = walk_tb(error.__traceback__)
        is_within = last.f_code.co_filename != __file__
        return has_passed_a_generator(error.__traceback__) or (is_within and self.dataset_iter is not self.dataset)

    def _read(self, wanted: int) -> None:
        data, skipped = self._data, self.skipped
        self._count(0)  # Ctrl-C may have interrupted the last count
        while (missing := wanted - len(data) - len(skipped)) > 0:
            before = len(data)
            try:
                # `extend` runs no Python code between two samples, so Ctrl-C loses no sample. `islice` would be
                # unsuitable, because it calls `iter`, which resets some iterators.
                data.extend(map(next, repeat(self.dataset_iter, missing)))
            except Exception as error:
                self._count(1)
                if not self._omits(error):
                    raise
                continue
            self._count(0)
            if len(data) - before < missing:
                self._check_end()
                self.ended = self.auto_collation
                return

    def _count(self, raised: int) -> None:
        counted, now = self._counted, len(self._data)
        if self._in_a_row and now > counted:
            self._in_a_row, self._possible_end = 0, None
        first = position = self.position
        samples = self._samples
        if first is not None:
            position = first + now - counted + raised
            while self.digest is not None and samples.next < position:
                index = counted + samples.next - first
                if index < now:
                    samples.add(self._data[index])
                else:
                    samples.add_missing()
        self.position, self._counted = position, now

    def _omits(self, error: Exception) -> bool:
        position, name = self.position and self.position - 1, f"the iterator of {type(self.dataset).__name__}"
        self._in_a_row += 1
        if not self.skips:
            which = "" if position is None else f" for its sample number {position}, counted from 0"
            add_note(error, f"raised by the iterator of {_origin(error, self.dataset, ITERATED)}{which}")
        elif not is_of_an_item(error):
            return False
        elif self.is_generator:
            add_note(error, f"on_error cannot skip exceptions of {name}: {ENDS}")
        elif self._in_a_row == _MOST_IN_A_ROW:
            add_note(
                error, f"on_error stops skipping: {name} has raised {_MOST_IN_A_ROW} times without a sample in between"
            )
        else:
            self._possible_end = error.with_traceback(None) if has_passed_a_generator(error.__traceback__) else None
            self.skipped.append({"index": position} | line_of(error))
            return True
        return False

    def _check_end(self) -> None:
        """Raises the last skipped exception if it has ended a generator, because the remaining samples of the generator
        are missing."""
        error, self._possible_end = self._possible_end, None
        if error is None:
            return
        add_note(
            error,
            f"on_error cannot skip it: a generator in the iterator of {type(self.dataset).__name__} has raised it and "
            "yielded nothing after it, because an exception ends a generator. Catch the exception in the generator, or "
            "read without one",
        )
        raise error from None

    def _called(self, samples: Any) -> str:
        if self.position is None:
            return ""
        first, last = self.position - len(samples), self.position - 1
        return f"number{f's {first} to' if last > first else ''} {last} of the iterator, counted from 0"


def _plain(index: Any) -> int | float | str | None:
    try:
        return operator.index(index)
    except TypeError:
        return index if index is None or type(index) in (float, str) else repr(index)


def _origin(error: Exception, dataset: Any, methods: tuple[str, ...] = READ) -> str:
    code = raised_in(error, codes_of_dataset(dataset, methods))
    name = type(dataset).__qualname__
    return name if code is None else f"{name}, in {code}"


def _named(indices: Any) -> str:
    if not isinstance(indices, Iterable):
        return repr(indices)
    first = list(islice(iter(indices), _NAMED))
    more = len(indices) - len(first) if isinstance(indices, Sized) else 0
    return f"{first}" + (f" and {more} more" if more > 0 else "")


def has_passed_a_generator(traceback: TracebackType | None) -> bool:
    return any(frame.f_code.co_flags & inspect.CO_GENERATOR for frame, _ in walk_tb(traceback))
