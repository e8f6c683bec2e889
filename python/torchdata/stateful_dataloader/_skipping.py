"""Skips samples of a `StatefulDataLoader` if the dataset raises an exception for them.

The fetcher omits the samples with exceptions, and reports them together with the batch. The main process counts omitted
samples when it returns the batch to the user.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

from torch.utils.data import IterableDataset

from torchdata._users_code import ITERATED, READ, codes_of_dataset
from torchdata.datapipes._pipe.skipping import check_limit, is_over, plus_one, report, too_many, write_line
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.stateful_dataloader._fetching import ENDS
from torchdata.stateful_dataloader._position import Counts


def check_on_error(how: Any, limit: Any, log: str | os.PathLike[str] | None, dataset: Any) -> None:
    if how not in ("raise", "skip"):
        raise ValueError(f"StatefulDataLoader: on_error must be 'raise' or 'skip', but got {how!r}")
    check_limit("StatefulDataLoader", "error_limit", limit)
    if how == "raise":
        if limit is not None or log is not None:
            raise ValueError("StatefulDataLoader: error_limit and error_log require on_error='skip'")
        return
    if not isinstance(dataset, IterableDataset):
        return
    if isinstance(dataset, IterDataPipe):
        raise ValueError(
            f"StatefulDataLoader: on_error='skip' cannot skip exceptions of {type(dataset).__name__}, because it is "
            "made of pipes: put .on_error('skip') at the end of these pipes"
        )
    if inspect.isgeneratorfunction(inspect.unwrap(type(dataset).__iter__)):
        raise ValueError(
            f"StatefulDataLoader: on_error='skip' cannot skip exceptions of the __iter__ of {type(dataset).__name__}: "
            f"{ENDS}"
        )


class Skipped:
    def __init__(self, loader: Any, counts: Counts | None) -> None:
        codes = codes_of_dataset(loader.dataset, ITERATED if loader._dataset_kind else READ)
        self._location = str(codes[0]) if len(codes) == 1 else type(loader.dataset).__qualname__
        self._limit, self._log, self._epoch = loader.error_limit, loader.error_log, loader._epochs_begun
        loader._epochs_begun += 1
        self.counts: Counts = counts or ({}, 0)
        self._has_ended = False
        self._last = ""

    @classmethod
    def of(cls, loader: Any, counts: Counts | None) -> Skipped | None:
        return cls(loader, counts) if loader.on_error == "skip" else None

    def count(self, samples: int, skipped: Sequence[dict[str, Any]]) -> None:
        kinds, seen = self.counts
        for line in skipped:
            kinds = plus_one(kinds, line["error"])
        self.counts = kinds, seen + samples

    def report(self, skipped: Sequence[dict[str, Any]], worker: int | None = None) -> None:
        if not skipped:
            return
        if self._log is not None:
            for line in skipped:
                write_line(self._log, {"epoch": self._epoch, "worker": worker, "dataset": self._location} | line)
        last = skipped[-1]
        which = "" if last["index"] is None else f"index {last['index']}: "
        self._last = f"The last one was {which}{last['error']}: {last['message']}\n"
        self._check_limit()

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._check_limit(at_the_end=True)
        report(self._table(), f"of the {self.counts[1]} samples of this epoch")

    def _check_limit(self, *, at_the_end: bool = False) -> None:
        kinds, seen = self.counts
        if is_over([(sum(kinds.values()), seen)], self._limit, at_the_end=at_the_end):
            samples = f"{seen} samples"
            raise too_many(self._table(), self._limit, "error_limit", samples, "this epoch", self._last) from None

    def _table(self) -> dict[tuple[str, str], int]:
        return {(kind, self._location): count for kind, count in self.counts[0].items()}
