"""Samples that a `StatefulDataLoader` skips because the dataset has raised at their indices.

Role: the fetcher leaves them out where the dataset is read, in the process of the program or in each worker, and tells
of each. What it tells comes with the batch, and main counts it (`Skipped`) when the batch is handed over. So the counts
are as of what the user got, whichever workers read ahead, die, or read again. Limits, words and lines of the log are
those of pipes.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher

from torchdata._reporting import add_note, level_outside
from torchdata.datapipes._pipe.skipping import (
    FEWEST,
    TooManySkipped,
    check_limit,
    is_of_an_item,
    line_of,
    plus_one,
    table_of,
    told_of,
    write_line,
)

__all__ = ["NOTHING", "Counts", "Skipped", "SkippingFetcher", "check_on_error"]

#: Stands for a batch of which all was skipped.
NOTHING = object()

#: By kind of exception, how many samples were skipped; and how many were seen, with them.
Counts = tuple[dict[str, int], int]


def check_on_error(how: Any, limit: Any, log: str | os.PathLike[str] | None, *, is_iterable: bool) -> None:
    """Checks the arguments `on_error`, `error_limit` and `error_log` of a loader.

    Raises:
        ValueError: one is out of range, or they exclude each other or the dataset.
        TypeError: the limit is no number.
    """
    if how not in ("raise", "skip"):
        raise ValueError(f"StatefulDataLoader: on_error must be 'raise' or 'skip', but got {how!r}")
    check_limit("StatefulDataLoader", "error_limit", limit)
    if how == "raise" and (limit is not None or log is not None):
        raise ValueError("StatefulDataLoader: error_limit and error_log are for on_error='skip'")
    if how == "skip" and is_iterable:
        raise ValueError(
            "StatefulDataLoader: on_error='skip' is for datasets with indices: an iterator that has raised has mostly "
            "ended, so what an iterable dataset would have yielded behind that cannot be had. Catch the exception in "
            "its __iter__, or make it of pipes and put their on_error('skip') last"
        )


# -- where the dataset is read -----------------------------------------------------------------------------


class SkippingFetcher(_MapDatasetFetcher):
    """Torch's fetcher for datasets with indices, which leaves samples out at which the dataset raises."""

    #: By sample that was left out of the last batch: its index, and the exception as `line_of` tells it.
    skipped: list[dict[str, Any]]

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.skipped = []

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The batch of an index, or `NOTHING`."""
        self.skipped = []
        if self.auto_collation:
            data = self._read_batch(possibly_batched_index)
        else:
            data = self._read_one(lambda index: self.dataset[index], possibly_batched_index)
        if self.skipped and (data is NOTHING or not data):
            return NOTHING
        return self.collate_fn(data)

    def _read_batch(self, indices: Any) -> Any:
        if not getattr(self.dataset, "__getitems__", None):
            data = [self._read_one(lambda index: self.dataset[index], index) for index in indices]
            return [sample for sample in data if sample is not NOTHING] if self.skipped else data
        try:
            return self.dataset.__getitems__(indices)
        except Exception as error:
            if not is_of_an_item(error):
                raise
            return self._read_each(indices, error)

    def _read_each(self, indices: Any, error: Exception) -> list[Any]:
        """The samples of a batch whose `__getitems__` has raised, by a call for each."""
        data: list[Any] = []
        for index in indices:
            found = self._read_one(lambda index: self.dataset.__getitems__([index]), index)
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
            if not is_of_an_item(error):
                raise
            self.skipped.append({"index": _plain(index)} | line_of(error))
            return NOTHING


def _plain(index: Any) -> int | float | str | None:
    """An index as JSON holds it."""
    try:
        return operator.index(index)
    except TypeError:
        return index if index is None or type(index) in (float, str) else repr(index)


# -- in main -----------------------------------------------------------------------------------------------


class Skipped:
    """What was skipped in an epoch, of what the user got.

    Args:
        place: the dataset, in words.
        limit: how many samples may be skipped, or which share; None for any number.
        log: the file to write a line to for each; None for none.
        counts: what was skipped before.
    """

    def __init__(self, place: str, limit: int | float | None, log: str | None, counts: Counts | None = None) -> None:
        self._place, self._limit, self._log = place, limit, log
        #: What was skipped; replaced, and never changed.
        self.counts: Counts = counts or ({}, 0)
        self._has_ended = False
        self._last = ""

    @classmethod
    def of(cls, loader: Any, counts: Counts | None) -> Skipped | None:
        """That of an epoch of a loader; None if it skips nothing."""
        if loader.on_error != "skip":
            return None
        return cls(type(loader.dataset).__qualname__, loader.error_limit, loader.error_log, counts)

    def count(self, samples: int, skipped: list[dict[str, Any]]) -> None:
        """Counts the samples of a batch that is handed over, or passed over, and what was left out of it."""
        kinds, seen = self.counts
        for line in skipped:
            kinds = plus_one(kinds, line["error"])
        self.counts = kinds, seen + samples

    def tell(self, skipped: list[dict[str, Any]]) -> None:
        """Writes what was left out of a batch to the log, and looks at the limit.

        Raises:
            TooManySkipped: it is passed.
        """
        if not skipped:
            return
        if self._log is not None:
            for line in skipped:
                write_line(self._log, {"dataset": self._place} | line)
        last = skipped[-1]
        self._last = f"The last one was index {last['index']}: {last['error']}: {last['message']}\n"
        if self._is_over():
            raise self._too_many()

    def end(self) -> None:
        """Tells what was skipped, once: the epoch is over.

        Raises:
            TooManySkipped: it was a larger share than permitted.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_over(at_the_end=True):
            raise self._too_many() from None
        kinds, seen = self.counts
        if kinds:
            warnings.warn(
                f"on_error has skipped {sum(kinds.values())} of the {seen} samples of this epoch:\n{self._table()}",
                RuntimeWarning,
                stacklevel=level_outside(),
            )

    def _is_over(self, *, at_the_end: bool = False) -> bool:
        (kinds, seen), limit = self.counts, self._limit
        count = sum(kinds.values())
        if limit is None or isinstance(limit, int):
            return limit is not None and count > limit
        return count > limit * seen and (at_the_end or seen >= FEWEST)

    def _too_many(self) -> TooManySkipped:
        kinds, seen = self.counts
        limit = self._limit
        share = f"{100 * limit:g} % of {seen} samples" if isinstance(limit, float) else f"{limit} samples"
        return told_of(
            sum(kinds.values()), f"error_limit={limit!r}", f"{share}, in this epoch", self._table(), self._last
        )

    def _table(self) -> str:
        return table_of({(kind, self._place): count for kind, count in self.counts[0].items()})

    def state(self) -> dict[str, Any]:
        """The counts as a state holds them."""
        kinds, seen = self.counts
        return {"kinds": dict(kinds), "seen": seen}
