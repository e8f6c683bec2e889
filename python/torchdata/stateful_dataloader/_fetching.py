"""Fetchers, which read the samples of a batch from the dataset and collate them.

Role: used by the reader, in the main process or in a worker. The fetchers read in the same way as PyTorch's fetchers.
If a sample raises an exception, the fetcher adds a note with the number of the sample. If Ctrl-C interrupts a batch of
an iterable dataset, the samples that were already read are kept for the next call.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sized
from itertools import islice, repeat
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from torchdata._reporting import add_note
from torchdata._users_code import ITERATED, READ, codes_of_dataset, raised_in
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.datapipes.utils.collate import note_remedy

__all__ = ["Indexed", "IterableFetcher", "has_passed_a_generator"]


class _Timed:
    """A fetcher that reports when the samples of a batch were read, and the number of samples."""

    times = False
    read_at = num_read = 0

    def _note_read(self, samples: int) -> None:
        self.read_at, self.num_read = perf_counter_ns(), samples


#: Maximum number of indices that a note on an exception lists.
_NAMED = 8


class Indexed(_Timed, _MapDatasetFetcher):
    """PyTorch's fetcher for map-style datasets."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Returns the batch for an index."""
        if self.auto_collation:
            data = self._read_batch(possibly_batched_index)
        else:
            data = self._read(possibly_batched_index)
        return self._collated(data, possibly_batched_index)

    def _read(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            add_note(error, f"raised by dataset[{index!r}] of {_whose(error, self.dataset)}")
            raise

    def _read_batch(self, indices: Any) -> Any:
        dataset, index = self.dataset, None
        if getattr(dataset, "__getitems__", None):
            try:
                return dataset.__getitems__(indices)
            except Exception as error:
                whose = _whose(error, dataset)
                add_note(error, f"raised by __getitems__ of {whose}, for the indices {_named(indices)}")
                raise
        data: list[Any] = []
        try:
            for index in indices:
                data.append(dataset[index])
        except Exception as error:
            add_note(error, f"raised by dataset[{index!r}] of {_whose(error, dataset)}")
            raise
        return data

    def _collated(self, data: Any, indices: Any) -> Any:
        if self.times:
            self._note_read(len(data) if self.auto_collation else 1)
        try:
            return self.collate_fn(data)
        except Exception as error:
            what = f"the indices {_named(indices)}" if self.auto_collation else f"index {indices!r}"
            add_note(error, f"raised by collate_fn for the samples of {what}")
            if self.collate_fn is default_collate:
                note_remedy(error, data)
            raise


class IterableFetcher(_Timed, _IterableDatasetFetcher):
    """PyTorch's fetcher for iterable datasets."""

    #: Whether Ctrl-C interrupted the dataset within a sample, so that a generator has ended or the sample is lost.
    is_broken = False

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        #: The number of samples that the iterator has returned or failed at; None after a resume within an epoch.
        self.position: int | None = 0
        #: The samples of the current batch, and whether reading the batch was interrupted.
        self._data: list[Any] = []
        self._is_cut_off = False
        #: A checksum of some samples of the previous batches, and a checksum that also covers the current batch, to
        #: detect an iterable dataset that does not repeat its samples.
        self.digest: int | None = None
        self._samples = SampleDigest()

    def watch(self) -> None:
        """Starts to maintain a checksum of some samples, to detect a dataset that does not repeat its samples."""
        self.digest = 0

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Returns the next batch."""
        if not self._is_cut_off:
            self._begin()
            if self.ended:
                raise StopIteration
        self._is_cut_off = True
        try:
            batch = self._fetch(len(possibly_batched_index) if self.auto_collation else 1)
        except Exception:
            self._end()
            raise
        self._end()
        return batch

    def _end(self) -> None:
        self._is_cut_off, self._data = False, []
        if self.digest is not None:
            self.digest = self._samples.checksum

    def _begin(self) -> None:
        """Drops the last batch."""
        self._data = []

    def _fetch(self, wanted: int) -> Any:
        try:
            self._read(wanted)
        except Exception:
            raise
        except BaseException as error:
            self.is_broken = self._is_interrupted(error)
            raise
        if not self._data or (self.auto_collation and self.drop_last and self._is_short(wanted)):
            raise StopIteration
        return self._collated(self._data)

    def _is_interrupted(self, error: BaseException) -> bool:
        """Returns whether the dataset raised an exception and its iterator can be recreated."""
        traceback, is_within = error.__traceback__, False
        while traceback is not None:
            is_within = traceback.tb_frame.f_code.co_filename != __file__
            traceback = traceback.tb_next
        return has_passed_a_generator(error.__traceback__) or (is_within and self.dataset_iter is not self.dataset)

    def _is_short(self, wanted: int) -> bool:
        """Returns whether the batch has fewer samples than requested."""
        return len(self._data) < wanted

    def _read(self, wanted: int) -> None:
        """Reads the samples of a batch, or the remaining samples of a batch that was interrupted."""
        data = self._data
        before = len(data)
        try:
            self._extend(wanted - before)
        except Exception as error:
            self._count(before, 1)
            self._add_note(error)
            raise
        self._count(before)
        if self.auto_collation and len(data) < wanted:
            self.ended = True

    def _extend(self, count: int) -> None:
        """Reads `count` samples. No Python code runs between two samples, so an interruption loses no sample.

        `islice` is not used, because it would call `iter`, and some iterators are reset by this call.
        """
        self._data.extend(map(next, repeat(self.dataset_iter, count)))

    def _count(self, before: int, raised: int = 0) -> None:
        """Counts the samples after the first `before` samples of the batch, and `raised` samples that raised errors."""
        if self.position is None:
            return
        first = self.position
        self.position += len(self._data) - before + raised
        samples = self._samples
        while self.digest is not None and samples.next < self.position:
            place = before + samples.next - first
            if place < len(self._data):
                samples.add(self._data[place])
            else:
                samples.add_missing()

    def _add_note(self, error: Exception) -> None:
        which = "" if self.position is None else f" for its sample number {self.position - 1}, counted from 0"
        add_note(error, f"raised by the iterator of {_whose(error, self.dataset, ITERATED)}{which}")

    def _collated(self, data: list[Any]) -> Any:
        if self.times:
            self._note_read(len(data) if self.auto_collation else 1)
        try:
            return self.collate_fn(data if self.auto_collation else data[0])
        except Exception as error:
            if self.position is not None:
                first, last = self.position - len(data), self.position - 1
                which = f"numbers {first} to {last}" if last > first else f"number {last}"
                add_note(error, f"raised by collate_fn for the samples {which} of the iterator, counted from 0")
            if self.collate_fn is default_collate:
                note_remedy(error, data)
            raise


def _whose(error: Exception, dataset: Any, methods: tuple[str, ...] = READ) -> str:
    """Describes a dataset and the user code that raised the error."""
    code = raised_in(error, codes_of_dataset(dataset, methods))
    name = type(dataset).__qualname__
    return name if code is None else f"{name}, in {code}"


def _named(indices: Any) -> str:
    """Describes the indices of a batch, abbreviated if there are many."""
    if not isinstance(indices, Iterable):
        return repr(indices)
    first = list(islice(iter(indices), _NAMED))
    more = len(indices) - len(first) if isinstance(indices, Sized) else 0
    return f"{first}" + (f" and {more} more" if more > 0 else "")


def has_passed_a_generator(traceback: TracebackType | None) -> bool:
    """Returns whether an exception passed through the frame of a generator."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        traceback = traceback.tb_next
    return False
