"""Records the statistics of one loader.

The counters are in the shared memory of the loader's processes, or in new memory if all pipes run in the main process.
Errors in statistics never interrupt loading.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from torchdata._handlers import FailuresSuppressed
from torchdata._native import Delivery, StatsBoard
from torchdata._observe.outside.stacks import stop_answering
from torchdata._observe.outside.stalls import (
    WaitWarning,
    stop_call_warnings,
    warn_in_thread,
    warn_of_calls,
    warn_of_stalls,
)
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting
from torchdata._reporting import warn_outside

if TYPE_CHECKING:
    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.diagnosis import Verdict
    from torchdata._observe.stats.model import LoaderStats, Reading

StatsLevel = Literal["counts", "full"]
_LEVELS = ("counts", "full")
VARIABLE = "TORCHDATA_STATS"
WAIT_VARIABLE = "TORCHDATA_WAIT_WARNING"
WAIT = 0.3
#: The minimum duration in seconds of an epoch that may cause a warning about long waits.
LEAST = 10.0


class Recorder:
    """Records the statistics of one loader.

    Args:
        level: "counts", or "full" to also time each pipe; None for the value of `TORCHDATA_STATS`.
        stall_warning: the number of seconds without an item before a warning.
        wait_warning: the fraction of an epoch that the program may wait without a warning.
    """

    name = "DataLoader2"

    def __init__(
        self, level: StatsLevel | None, stall_warning: float | None, wait_warning: float | None = WAIT
    ) -> None:
        chosen = os.environ.get(VARIABLE) or "counts" if level is None else level
        if chosen not in _LEVELS:
            source = f"the environment variable {VARIABLE}" if level is None else "stats"
            raise ValueError(f'{source} must be "counts" or "full", not {chosen!r}')
        if stall_warning is not None and (isinstance(stall_warning, bool) or not stall_warning > 0):
            raise ValueError(f"stall_warning must be a positive number of seconds or None, not {stall_warning!r}")
        self.full = chosen == "full"
        if wait_warning is not None and (isinstance(wait_warning, bool) or not 0 < wait_warning <= 1):
            raise ValueError(f"wait_warning must be a share from 0 to 1 or None, not {wait_warning!r}")
        self.stall_warning, self.wait_warning = stall_warning, wait_warning
        self._is_wait_reported = wait_warning is None or os.environ.get(WAIT_VARIABLE) == "0"
        self._has_ended = False
        self._began = 0.0
        #: The time, the level of detail and the counters at the beginning of the epoch. They become a `Reading` only
        #: when it is needed, because importing the module of `Reading` would delay the first item.
        self._since: tuple[int, bool, list[Any]] | None = None
        self._pid = 0
        #: The loader's number in the thread that monitors calls of `next`, and the `Delivery` that counts the loader's
        #: items.
        self._watched: tuple[int, Delivery] | None = None
        self._counting: Counting | None = None
        #: The time, the level of detail and the counters at the shutdown of the loader.
        self._last: tuple[int, bool, list[Any]] | None = None
        self._is_damage_reported = False
        self._processes: Any = None
        self._notes: Callable[[], Sequence[str]] = tuple

    def begin(self, service: Any, datapipe: Any, delivery: Delivery) -> None:
        """Begins an epoch of the reading service `service`. `delivery` counts the items of the epoch."""
        self._has_ended = False
        processes = service.engine_processes()
        if self._counting is None or self._pid != os.getpid() or processes is not self._processes:
            self._counting, self._since = self._take_board(service), None
            self._pid = os.getpid()
        self._processes = processes
        if self._counting is not None:
            self._counting.bind(datapipe)
            self._note_beginning()
            if self._watched is None and self.stall_warning is not None:
                self._watched = warn_of_calls(self, delivery, self.stall_warning), delivery

    def _take_board(self, service: Any) -> Counting | None:
        self._notes = service.stats_notes
        children = service.engine_processes()
        if children is not None:
            warn_of_stalls(children, self.stall_warning)
            return Counting(children.stats, MAIN_PAGE)
        with FailuresSuppressed(OSError):
            counting = Counting(StatsBoard(1, 1, PIPES, self.full), MAIN_PAGE)
            counting.adopt_main()
            return counting
        return None

    def end(self) -> None:
        self._has_ended = True
        if self._processes is not None and self._pid == os.getpid():
            self._processes.end_epoch()
        if self._counting is not None and self._pid == os.getpid():
            self._counting.end()
            self._warn_if_slow()

    def _note_beginning(self) -> None:
        # Reading the counters takes a large part of the time between two epochs, so an epoch that soon follows another
        # epoch uses the reading of the earlier epoch.
        is_recent = self._since is not None and time.monotonic() - self._began < LEAST / 100
        if not self._is_wait_reported and self.board is not None and not is_recent:
            pages = self.board.read()
            self._began = time.monotonic()
            self._since = time.monotonic_ns(), self.full, pages

    def _warn_if_slow(self) -> None:
        if self._is_wait_reported or self._since is None or time.monotonic() - self._began < LEAST:
            return
        from torchdata._observe.stats.diagnosis import waited_for_long

        recent = replace(self._summary(_reading_of(*self._since)), epoch=self.stats().epoch)
        words = waited_for_long(recent, self.name, self.wait_warning or 1)
        if words is not None:
            self._is_wait_reported = True
            try:
                warn_outside(words, WaitWarning)
            except Warning as error:  # the epoch has ended normally, even if warnings are errors
                threading.excepthook(threading.ExceptHookArgs((type(error), error, None, threading.current_thread())))

    def close(self) -> None:
        if self._watched is not None:
            stop_call_warnings(*self._watched)
            self._watched = None
        self._processes = None
        counting = self._counting
        if counting is not None and self._pid == os.getpid():
            # The counters are stored unprocessed, because the modules that process them cannot be imported at
            # interpreter exit. `_last` is set before `_counting` is cleared, because another thread may request
            # statistics between the two assignments.
            board = counting.board
            self._warn_of_damage(board)
            self._last = time.monotonic_ns(), board.full, board.read()
            self._counting = None
            stop_answering(board, MAIN_PAGE)
            board.close_descriptor()
        self._counting = None

    @property
    def board(self) -> StatsBoard | None:
        """The counters, or None before the first epoch and after the end of the loader."""
        counting = self._counting  # read only once, because another thread may shut the loader down
        return None if counting is None else counting.board

    def reading(self) -> Reading:
        from torchdata._observe.stats.reading import read_board

        board = self.board
        if board is not None and self._pid == os.getpid():
            self._warn_of_damage(board)
            return read_board(board)
        at, full, read = self._last or (0, self.full, [])
        return _reading_of(at, full, read)

    def _warn_of_damage(self, board: StatsBoard) -> None:
        """Issues a warning if counters were overwritten, but never raises an exception, even if warnings are errors."""
        damage = None if self._is_damage_reported else board.damage()
        if damage is not None:
            self._is_damage_reported = True
            warn_in_thread(
                RuntimeWarning(
                    f"the statistics of this loader are incomplete: {damage}. Code in one of its processes has "
                    "overwritten the loader's memory; damaged items are reported as errors"
                )
            )

    def skipped(self, since: Reading | None) -> dict[tuple[str, str], int]:
        """Returns the number of items that other processes have skipped, by kind of exception and pipe."""
        from torchdata._observe.stats.reading import summarise

        found: dict[tuple[str, str], int] = {}
        for process in summarise(self.reading(), since).processes:
            for pipe in process.pipes if process.role != "main" else ():
                for kind, count in pipe.skipped_kinds.items():
                    found[kind, pipe.name] = found.get((kind, pipe.name), 0) + count
        return found

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        earlier = None if since is None else since.reading
        if earlier is not None and (board := self.board) is not None and earlier.at < board.made()[1]:
            earlier = None
        return replace(self._summary(earlier), choices=tuple(self._notes()))

    def copied(self) -> Recorder:
        return Recorder("full" if self.full else "counts", self.stall_warning, self.wait_warning)

    def diagnose(self, since: LoaderStats | None = None) -> Verdict:
        from torchdata._observe.stats.diagnosis import diagnose, with_copied_memory

        stats = self.stats(since)
        if self._has_ended and not stats.epoch:  # epochs without items are not counted
            stats = replace(stats, epoch=1, epochs=1)
        return with_copied_memory(diagnose(stats), stats, getattr(self._processes, "inherited", 0))

    def _summary(self, since: Reading | None) -> ShownStats:
        from torchdata._observe.stats.reading import summarise

        return summarise(self.reading(), since)


def _reading_of(at: int, full: bool, pages: list[Any]) -> Reading:
    from torchdata._observe.stats.model import Reading

    return Reading(at, full, {page["page"]: page for page in pages})
