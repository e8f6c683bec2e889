"""Skips samples of a `StatefulDataLoader` if the dataset raises an exception for them.

Role: the fetcher omits these samples and reports them, in the main process or in a worker. The report is sent with the
batch, and the main process counts the samples (`Skipped`) when the batch is returned to the user. The counts therefore
match what the user has received, regardless of read-ahead and replaced workers. Limits, messages and log format are
shared with pipes.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any

from torch.utils.data import IterableDataset

from torchdata._reporting import add_note
from torchdata._users_code import ITERATED, READ, codes_of_dataset
from torchdata.datapipes._pipe.skipping import (
    check_limit,
    is_of_an_item,
    is_over,
    line_of,
    plus_one,
    tell,
    too_many,
    write_line,
)
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.stateful_dataloader._fetching import Indexed, IterableFetcher, has_passed_a_generator
from torchdata.stateful_dataloader._position import Counts

__all__ = ["NOTHING", "IndexedFetcher", "Skipped", "StreamFetcher", "check_on_error"]

#: A placeholder for a batch with only skipped samples.
NOTHING = object()

#: Maximum number of consecutive exceptions. If more exceptions follow without a sample, the iterator counts as stuck.
_MOST_IN_A_ROW = 10_000


def check_on_error(how: Any, limit: Any, log: str | os.PathLike[str] | None, dataset: Any) -> None:
    """Checks the arguments `on_error`, `error_limit` and `error_log` of a loader.

    Args:
        how: the value of `on_error`.
        limit: the value of `error_limit`.
        log: the value of `error_log`.
        dataset: the dataset.

    Raises:
        ValueError: an argument is out of range, or arguments exclude each other or the dataset.
        TypeError: the limit is not a number.
    """
    if how not in ("raise", "skip"):
        raise ValueError(f"StatefulDataLoader: on_error must be 'raise' or 'skip', but got {how!r}")
    check_limit("StatefulDataLoader", "error_limit", limit)
    if how == "raise":
        if limit is not None or log is not None:
            raise ValueError("StatefulDataLoader: error_limit and error_log are for on_error='skip'")
        return
    if not isinstance(dataset, IterableDataset):
        return
    if isinstance(dataset, IterDataPipe):
        raise ValueError(
            f"StatefulDataLoader: on_error='skip' cannot skip what {type(dataset).__name__} raises, as it is made of "
            "pipes, which skip by themselves: end them in .on_error('skip')"
        )
    if inspect.isgeneratorfunction(inspect.unwrap(type(dataset).__iter__)):
        raise ValueError(
            f"StatefulDataLoader: on_error='skip' cannot skip what the __iter__ of {type(dataset).__name__} raises: "
            f"{_ENDS}"
        )


#: The message for a dataset with an iterator that is a generator, because a generator cannot continue after an
#: exception.
_ENDS = (
    "it is a generator, and a generator that raises has ended, so the items that it would have yielded after that are "
    "lost. Let __iter__ return an object whose __next__ can be called again after it has raised, or catch the "
    "exception in the generator"
)


# -- where the dataset is read -----------------------------------------------------------------------------


class IndexedFetcher(Indexed):
    """A fetcher for map-style datasets that omits samples if the dataset raises an exception for them.

    Args:
        *how: the arguments of PyTorch's fetcher.
    """

    #: For each sample omitted from the last batch: its index, and the exception in the form of `line_of`.
    skipped: list[dict[str, Any]]
    #: The number of samples in the last batch, including omitted samples.
    seen = 0

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.skipped = []

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Returns the batch of an index, or `NOTHING`."""
        self.skipped = []
        if not self.auto_collation:
            self.seen = 1
            data = self._read_one(lambda index: self.dataset[index], possibly_batched_index)
            return NOTHING if self.skipped else self._collated(data, possibly_batched_index)
        self.seen = len(possibly_batched_index)
        data = self._read_batch(possibly_batched_index)
        return self._collated(data, possibly_batched_index) if data or not self.skipped else NOTHING

    def _read_batch(self, indices: Any) -> Any:
        if not getattr(self.dataset, "__getitems__", None):
            dataset, data = self.dataset, list[Any]()
            for index in indices:
                try:
                    data.append(dataset[index])
                except Exception as error:
                    self._leave_out(error, index)
            return data
        try:
            return self.dataset.__getitems__(indices)
        except Exception as error:
            if not is_of_an_item(error):
                raise
            return self._read_each(indices, error)

    def _read_each(self, indices: Any, error: Exception) -> list[Any]:
        """Reads the samples of a batch one by one after `__getitems__` has raised."""
        data: list[Any] = []
        for each in indices:
            found = self._read_one(lambda index: self.dataset.__getitems__([index]), each)
            if found is NOTHING:
                continue
            if not isinstance(found, (list, tuple)):
                add_note(
                    error,
                    "on_error does not skip it: __getitems__ of the dataset returns no list of samples "
                    f"({type(found).__name__}), so those of a batch cannot be read one by one",
                )
                self.skipped = []
                raise error
            data.extend(found)
        return data

    def _read_one(self, read: Callable[[Any], Any], index: Any) -> Any:
        try:
            return read(index)
        except Exception as error:
            self._leave_out(error, index)
            return NOTHING

    def _leave_out(self, error: Exception, index: Any) -> None:
        """Records an omitted sample, or raises the error if it must not be skipped."""
        if not is_of_an_item(error):
            raise error
        self.skipped.append({"index": _plain(index)} | line_of(error))


class StreamFetcher(IterableFetcher):
    """A fetcher for iterable datasets that continues after an exception of the dataset's iterator.

    Args:
        *how: the arguments of PyTorch's fetcher.
    """

    #: See `IndexedFetcher`.
    skipped: list[dict[str, Any]]
    seen = 0

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.skipped = []
        self._in_a_row = 0
        #: The last exception, if it passed through a generator and no sample followed.
        self._doubtful: Exception | None = None

    def _begin(self) -> None:
        super()._begin()
        self.skipped, self.seen = [], 0

    def _fetch(self, wanted: int) -> Any:
        try:
            return super()._fetch(wanted)
        except StopIteration:
            if self.skipped:
                return NOTHING
            raise
        finally:
            self.seen = len(self._data) + len(self.skipped)

    def _counted(self) -> int:
        """Returns how many samples count toward the size of the batch."""
        return len(self._data) + len(self.skipped)

    def _is_short(self, wanted: int) -> bool:
        return self._counted() < wanted

    def _read(self, wanted: int) -> None:
        while (missing := wanted - self._counted()) > 0:
            before = len(self._data)
            try:
                self._extend(missing)
            except Exception as error:
                self._note_given(before, 1)
                self._leave_out(error)
                continue
            self._note_given(before)
            if len(self._data) - before < missing:
                self._check_end()
                self.ended = self.auto_collation
                return

    def _note_given(self, before: int, raised: int = 0) -> None:
        self._count(before, raised)
        if len(self._data) > before:
            self._in_a_row, self._doubtful = 0, None

    def _leave_out(self, error: Exception) -> None:
        if not is_of_an_item(error):
            raise error
        name = f"the iterator of {type(self.dataset).__name__}"
        if isinstance(self.dataset_iter, GeneratorType):
            add_note(error, f"on_error does not skip what {name} raises: {_ENDS}")
            raise error
        self._in_a_row += 1
        if self._in_a_row == _MOST_IN_A_ROW:
            add_note(
                error, f"on_error stops skipping: {name} has raised {_MOST_IN_A_ROW} times without a sample in between"
            )
            raise error
        self.skipped.append({"index": self.position and self.position - 1} | line_of(error))
        self._doubtful = error.with_traceback(None) if has_passed_a_generator(error.__traceback__) else None

    def _check_end(self) -> None:
        """Raises the last exception again if this exception has probably ended the iterator."""
        error, self._doubtful = self._doubtful, None
        if error is None:
            return
        add_note(
            error,
            f"on_error cannot skip it: it came out of a generator in the iterator of {type(self.dataset).__name__}, "
            "which yielded nothing after it, because a generator that raises has ended. Catch the exception in the "
            "generator, or read without one",
        )
        raise error from None


def _plain(index: Any) -> int | float | str | None:
    """Returns an index in a form that JSON can represent."""
    try:
        return operator.index(index)
    except TypeError:
        return index if index is None or type(index) in (float, str) else repr(index)


# -- main process ------------------------------------------------------------------------------------------


class Skipped:
    """Counts the skipped samples of the batches that the user has received in an epoch.

    Args:
        place: a description of the dataset.
        limit: how many samples may be skipped, as a number or a fraction; None for no limit.
        log: the log file that receives a line for each skipped sample; None for no log.
        epoch: the number of the epoch in the log.
        counts: the initial counts.
    """

    def __init__(
        self, place: str, limit: int | float | None, log: str | None, counts: Counts | None = None, epoch: int = 0
    ) -> None:
        self._place, self._limit, self._log, self._epoch = place, limit, log, epoch
        #: The counts. The tuple is replaced, never modified.
        self.counts: Counts = counts or ({}, 0)
        self._has_ended = False
        self._last = ""

    @classmethod
    def of(cls, loader: Any, counts: Counts | None) -> Skipped | None:
        """Returns the counts for an epoch of a loader; None if the loader skips nothing."""
        if loader.on_error != "skip":
            return None
        epoch, loader._epochs_begun = loader._epochs_begun, loader._epochs_begun + 1
        codes = codes_of_dataset(loader.dataset, ITERATED if loader._dataset_kind else READ)
        place = str(codes[0]) if len(codes) == 1 else type(loader.dataset).__qualname__
        return cls(place, loader.error_limit, loader.error_log, counts, epoch)

    def count(self, samples: int, skipped: Sequence[dict[str, Any]]) -> None:
        """Counts the samples of a batch that is returned or passed over, and the omitted samples."""
        kinds, seen = self.counts
        for line in skipped:
            kinds = plus_one(kinds, line["error"])
        self.counts = kinds, seen + samples

    def tell(self, skipped: Sequence[dict[str, Any]], worker: int | None = None) -> None:
        """Writes the omitted samples of a batch to the log, and checks the limit.

        Args:
            skipped: the log lines of these samples.
            worker: the worker that read the batch; None for the main process.

        Raises:
            TooManySkipped: the limit is exceeded.
        """
        if not skipped:
            return
        if self._log is not None:
            for line in skipped:
                write_line(self._log, {"epoch": self._epoch, "worker": worker, "dataset": self._place} | line)
        last = skipped[-1]
        which = "" if last["index"] is None else f"index {last['index']}: "
        self._last = f"The last one was {which}{last['error']}: {last['message']}\n"
        self._check_limit()

    def end(self) -> None:
        """Reports the skipped samples of the epoch in one warning, at the end of the epoch.

        Raises:
            TooManySkipped: the skipped fraction exceeds the limit.
        """
        if self._has_ended:
            return
        self._has_ended = True
        self._check_limit(at_the_end=True)
        tell(self._table(), f"of the {self.counts[1]} samples of this epoch")

    def _check_limit(self, *, at_the_end: bool = False) -> None:
        kinds, seen = self.counts
        if is_over([(sum(kinds.values()), seen)], self._limit, at_the_end=at_the_end):
            samples = f"{seen} samples"
            raise too_many(self._table(), self._limit, "error_limit", samples, "this epoch", self._last) from None

    def _table(self) -> dict[tuple[str, str], int]:
        return {(kind, self._place): count for kind, count in self.counts[0].items()}
