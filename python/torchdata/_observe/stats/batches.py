"""Counts and times the batches of a `StatefulDataLoader`: reading their samples, and collating them.

With `persistent_workers=False`, each epoch has new workers and counters, so the statistics cover only the last epoch.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from torchdata._handlers import raise_if_of_handler
from torchdata._native import IterationToken, StatsBoard
from torchdata._observe.stats.counting import MAIN, MAIN_PAGE, PIPES, Counting
from torchdata._observe.stats.labels import describe_pipes
from torchdata._observe.stats.model import STATEFUL
from torchdata._observe.stats.recorder import Recorder, StatsLevel
from torchdata._reporting import is_users
from torchdata._users_code import ITERATED, READ, code_location, code_of, codes_of_dataset
from torchdata.datapipes.datapipe import IterDataPipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.model import LoaderStats, Reading

#: All batches that take at least this many nanoseconds are timed; timing them costs less than 0.3 % of their time.
_EACH = 500_000
_MOST = 256
#: The maximum number of counted pipes in a dataset. Of the `PIPES` rows of counters, three belong to the dataset,
#: `collate_fn` and the loader.
_ROOM = PIPES - 3


class BatchClock:
    """Times some of the batches; fast batches are timed less often.

    Args:
        read: the index of the row of counters for reading samples; None if the dataset's pipes are timed separately.
        collated: the index of the row of counters for `collate_fn`.
    """

    __slots__ = ("_board", "_collated", "_full", "_gap", "_longest", "_page", "_random", "_read")

    def __init__(self, board: StatsBoard, page: int, read: int | None, collated: int) -> None:
        self._board, self._page, self._read, self._collated = board, page, read, collated
        self._full = board.full
        #: Only one batch in `_gap` batches is timed, so its times are counted `_gap` times. `_gap` is random, with a
        #: mean of at most `_longest`.
        self._gap = self._longest = 1
        self._random = random.Random()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def note(self, samples: int, reading: int, collating: int) -> int:
        """Records the times of one batch in nanoseconds. Returns the number of batches until the next timed batch."""
        gap = self._gap
        if self._read is not None:
            self._board.add_work(self._page, self._read, samples * gap, reading, gap)
        self._board.add_work(self._page, self._collated, gap, collating, gap)
        if self._full:
            return 1
        mean = min(_EACH // max(1, reading + collating), self._longest)
        self._longest = min(2 * self._longest, _MOST)
        # A random number prevents timed batches from coinciding with a periodic pattern of the dataset.
        self._gap = 1 if mean <= 1 else self._random.randrange(1, 2 * mean)
        return self._gap


def bind_reading(
    counting: Counting, dataset: Any, is_iterable: bool, collate_fn: Any, hands_out: bool = False
) -> tuple[BatchClock, int]:
    """Registers the reading of samples and the collate function in this process's table of counters. Returns the
    `BatchClock`, and the index of the row (in the table of counters) for the loader's batches.

    Args:
        hands_out: whether the user's program receives the batches in this process.
    """
    board = counting.board
    rows: list[_Row] = []
    if board.full and isinstance(dataset, IterDataPipe):
        rows = describe_pipes(dataset, True)[-_ROOM:]
        rows[-1] = (*rows[-1][:3], len(rows), *rows[-1][4:])
    read = None if rows else 0
    if not rows:
        rows = [_row(*_name_of_dataset(dataset, is_iterable), reader=1)]
    collated = len(rows)
    rows.append(_row(*_name_of_collate(collate_fn), reader=collated + 1 if hands_out else None))
    if hands_out:
        rows.append(_row(STATEFUL, ""))
    board.bind(counting.page, rows, len(rows))
    return BatchClock(board, counting.page, read, collated), collated + 1


_Row = tuple[IterationToken, str, str, int | None, int, int]


def _row(name: str, location: str, reader: int | None = None) -> _Row:
    return IterationToken(), name, location, reader, 0, 0


def _name_of_dataset(dataset: Any, is_iterable: bool) -> tuple[str, str]:
    methods = ITERATED if is_iterable else READ
    codes = codes_of_dataset(dataset, methods)
    if codes:
        return codes[0].name, codes[0].location
    if isinstance(dataset, IterDataPipe):
        *_, (_, name, location, *_) = describe_pipes(dataset, False)
        return name, location
    return type(dataset).__qualname__, ""


def _name_of_collate(collate_fn: Any) -> tuple[str, str]:
    function = collate_fn
    while (inner := getattr(function, "func", None)) is not None:
        function = inner
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    code = code_of(collate_fn)
    is_torchs = str(getattr(function, "__module__", "")).startswith("torch.")
    return name, code_location(code) if code is not None and is_users(function) and not is_torchs else ""


class BatchRecorder(Recorder):
    """The statistics of a loader that counts batches, such as a `StatefulDataLoader`."""

    name = STATEFUL

    def __init__(self, level: StatsLevel | None, wait_warning: float | None) -> None:
        super().__init__(level, None, wait_warning)
        self._epochs = self._before = 0
        self._final: Reading | None = None

    def begin_here(self, iterator: Any, dataset: Any, is_iterable: bool, collate_fn: Any) -> BatchClock | None:
        counting = self._counting_here()
        if counting is None:
            return None
        clock, row = bind_reading(counting, dataset, is_iterable, collate_fn, hands_out=True)
        self._begin(iterator, row)
        return clock

    def _counting_here(self, new_board: Callable[[], StatsBoard] | None = None) -> Counting | None:
        if self._counting is None or self._processes is not None or self._pid != os.getpid():
            try:
                board = StatsBoard(1, 1, PIPES, self.full) if new_board is None else new_board()
            except OSError as error:
                raise_if_of_handler(error)
                return None
            board.adopt(MAIN_PAGE, MAIN, 0)
            self._take(Counting(board, MAIN_PAGE), None)
        return self._counting

    @property
    def counting(self) -> Counting | None:
        return self._counting

    def begin_in(self, iterator: Any, pool: Any) -> None:
        if self._processes is not pool:
            self._take(pool.counting, pool)
            pool.counting.board.bind(MAIN_PAGE, [_row(STATEFUL, "")], 1)
        self._begin(iterator, 0)

    def _take(self, counting: Counting, processes: Any) -> None:
        self._counting, self._processes, self._pid = counting, processes, os.getpid()
        self._before, self._since = self._epochs, None

    def _begin(self, iterator: Any, row: int) -> None:
        assert self._counting is not None
        self._epochs += 1
        self._has_ended, self._final = False, None
        self._note_beginning()
        self._counting.board.count_items(iterator, MAIN_PAGE, row)

    def end(self) -> None:
        """Ends an epoch before non-persistent workers exit."""
        self._has_ended = True
        if self._counting is None or self._pid != os.getpid():
            return
        self._counting.end()
        if self._processes is not None:
            self._final = super().reading()
        self._warn_if_slow()

    def reading(self) -> Reading:
        return self._final or super().reading()

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        stats = super().stats(since)
        return replace(stats, epoch=self._before + stats.epoch)

    def copied(self) -> Self:
        return type(self)("full" if self.full else "counts", self.wait_warning)
