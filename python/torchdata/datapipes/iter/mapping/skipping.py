"""The pipe that skips items that make other pipes raise exceptions: OnError.

`OnError` itself only yields the items of its source. Earlier pipes call the module `_pipe/skipping.py` to skip
exceptions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Literal

from torchdata.datapipes._pipe import skipping
from torchdata.datapipes._pipe.checks import check_source
from torchdata.datapipes.datapipe import IterDataPipe, T_co

__all__ = ["OnError"]


class OnError(IterDataPipe[T_co]):
    """Skips items that make an earlier pipe raise an exception.

    If a pipeline contains several `on_error` pipes, each skips only exceptions of the pipes between the previous
    `on_error` and itself.

    An item that causes an exception is left out, and counted by exception type and pipe. `on_error` skips exceptions of
    functions that you pass to pipes such as `map` and `filter`, and exceptions that a pipe raises because an item has
    an unsupported type, or because a stream or archive cannot be read. If a stream or archive cannot be read to its
    end, its remaining part is left out.

    Exceptions from your own generators and iterables are not skipped, because a generator ends when it raises an
    exception. An exception from a generator or iterable gets a note that explains why it is not skipped. `on_error`
    never skips errors from listing a store, errors of `on_disk_cache` and `fullsync`, `KeyboardInterrupt`,
    `SystemExit`, `MemoryError` and the exit of a process.

    A saved state contains the counts of skipped items. A resumed run continues counting from the saved counts, and does
    not read the skipped items again. At the end of an epoch, a `RuntimeWarning` reports how many items were skipped in
    this process or, with a `DataLoader2`, in all its workers. `DataLoader2.stats()` returns the counts at any time.

    Args:
        datapipe: the pipe to read.
        how: what happens to an item that raises an exception; "skip" (the default) is the only supported value.
        limit: maximum number of items that are skipped in an epoch, in each process. If `limit` is a float, it is the
            maximum fraction of each pipe's items that may be skipped. A limit that is a fraction is checked from the
            pipe's 100th item on, and at the end of the epoch. If `limit` is None (the default), any number of items may
            be skipped.
        log: the path of a log file; each process appends a line of JSON for every item that it skips. If `log` is None
            (the default), nothing is logged. The fields are the `epoch` of the loader, from 0 (null without a
            `DataLoader2`), the number of the `worker` ("dispatch" for the dispatching process, null for the main
            process), the `pipe`, the number of the `item` in this pipe and process, the `key`, `error`, `message` and
            `notes`. The field `key` names the file, URL or archive member that a pipe was reading, or describes the
            first argument of the function that raised the exception. Every epoch and run appends to the log, so several
            lines can have the same `key`.

    Raises:
        ValueError: `how` has an unsupported value, or `limit` is negative or a fraction over 1.
        TypeError: `limit` is not a number.
        TooManySkipped (a `RuntimeError`): while iterating, more than `limit` items have raised exceptions.

    Example:
        >>> import warnings
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> warnings.simplefilter("ignore")
        >>> list(IterableWrapper(["1", "2", "three", "4"]).map(int).on_error("skip"))
        [1, 2, 4]
    """

    iteration_state = ()
    #: A run that resumes from a state may use another `log`, because `log` does not affect the items.
    tuning = frozenset({"log"})
    _skips = True

    def __init__(
        self,
        datapipe: Iterable[T_co],
        how: Literal["skip"] = "skip",
        limit: int | float | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        self.datapipe = check_source("OnError", datapipe)
        if how != "skip":
            raise ValueError(f"OnError: how must be 'skip', but got {how!r}")
        skipping.check_limit("OnError", "limit", limit)
        self.how = how
        self.limit = limit
        self.log = None if log is None else os.fspath(log)

    def __iter__(self) -> Iterator[T_co]:
        skipping.claim(self)
        return chain(iter(self.datapipe), self._end())

    def _end(self) -> Iterator[Any]:
        """Warns about the skipped items at the end of the iteration. Yields no items."""
        skipped = skipping.skipped_of(self)
        if (failure := skipping.limit_error(self, at_the_end=True)) is not None:
            raise failure
        skipping.release(self)
        if skipping.worker is None:
            skipping.report(skipped)
        return
        yield
