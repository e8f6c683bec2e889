"""The recorder of a loader's statistics: finds or makes the board, binds its pipes, reads it.

Role: owned by one `DataLoader2`; runs in main. If the service starts processes, the board is theirs; otherwise it
has one page. Loading never fails for want of statistics.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torchdata._native import Delivery, StatsBoard
from torchdata._observe.outside.stacks import answer_no_more
from torchdata._observe.outside.stalls import (
    WaitWarning,
    warn_in_thread,
    warn_of_calls,
    warn_of_calls_no_more,
    warn_of_stalls,
)
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting
from torchdata._reporting import warn_outside

if TYPE_CHECKING:
    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.diagnosis import Verdict
    from torchdata._observe.stats.model import LoaderStats, Reading

__all__ = ["Recorder", "StatsLevel"]

StatsLevel = Literal["counts", "full"]
_LEVELS = ("counts", "full")
#: The variable of the environment that sets the level, if the loader is not told.
VARIABLE = "TORCHDATA_STATS"
#: The variable of the environment that turns the warning of long waits off, by "0".
WAIT_VARIABLE = "TORCHDATA_WAIT_WARNING"
#: The default of `wait_warning`: the share of an epoch that a program may wait for the loader without a warning.
WAIT = 0.3
#: Shorter epochs, in seconds, give no warning.
LEAST = 10.0


class CountedService(Protocol):
    """The interface of a reading service to the statistics."""

    def engine_processes(self) -> Any:
        """The processes that run the graph and have a board; None without such."""

    def stats_notes(self) -> Sequence[str]:
        """Sentences below the table."""


class Recorder:
    """The statistics of one loader.

    Args:
        level: "counts", or "full" to take the time of each pipe, too; None for what the environment says.
        stall_warning: after how many seconds without an item a warning says who waits for whom; None: never.
        wait_warning: the share of an epoch that the program may wait for the loader before a warning says so, once;
            None: never.
    """

    #: The class of the loader.
    name = "DataLoader2"

    def __init__(
        self, level: StatsLevel | None, stall_warning: float | None, wait_warning: float | None = WAIT
    ) -> None:
        chosen = os.environ.get(VARIABLE) or "counts" if level is None else level
        if chosen not in _LEVELS:
            source = f"the environment variable {VARIABLE}" if level is None else "stats"
            raise ValueError(f'{source} is "counts" or "full", not {chosen!r}')
        if stall_warning is not None and (isinstance(stall_warning, bool) or not stall_warning > 0):
            raise ValueError(f"stall_warning is a positive number of seconds or None, not {stall_warning!r}")
        self.full = chosen == "full"
        if wait_warning is not None and (isinstance(wait_warning, bool) or not 0 < wait_warning <= 1):
            raise ValueError(f"wait_warning is a share from 0 to 1 or None, not {wait_warning!r}")
        self.stall_warning, self.wait_warning = stall_warning, wait_warning
        #: Whether the warning of a long wait was given or is turned off; when this epoch began, and the counters then.
        self._is_wait_told = wait_warning is None or os.environ.get(WAIT_VARIABLE) == "0"
        self._began = 0.0
        self._since: Reading | None = None
        self._pid = 0
        #: The loader's delivery, as long as its calls are watched, and the number that they are known by.
        self._watched: tuple[int, Delivery] | None = None
        self._counting: Counting | None = None
        #: The counters when the loader was shut down, and that moment.
        self._last: tuple[int, bool, list[Any]] | None = None
        #: Whether a warning has said that pages of the board are damaged.
        self._is_damage_told = False
        #: The processes that ran the graph in the last epoch.
        self._processes: Any = None
        #: The sentences of the service below the table.
        self._notes: Callable[[], Sequence[str]] = tuple

    def begin(self, service: CountedService, datapipe: Any, delivery: Delivery) -> None:
        """An epoch is about to begin that reads `datapipe`, and hands out items by `delivery`."""
        processes = service.engine_processes()
        if self._counting is None or self._pid != os.getpid() or processes is not self._processes:
            self._counting = self._take_board(service)
            self._pid = os.getpid()
        self._processes = processes
        if self._counting is not None:
            self._counting.bind(datapipe)
            self._note_beginning()
            if self._watched is None and self.stall_warning is not None:
                self._watched = warn_of_calls(self, delivery, self.stall_warning), delivery

    def _take_board(self, service: CountedService) -> Counting | None:
        self._notes = service.stats_notes
        children = service.engine_processes()
        if children is not None:
            warn_of_stalls(children, self.stall_warning)
            return Counting(children.stats, MAIN_PAGE)
        try:
            counting = Counting(StatsBoard(1, 1, PIPES, self.full), MAIN_PAGE)
        except OSError:
            return None
        counting.adopt_main()
        return counting

    def end(self) -> None:
        """The epoch is over."""
        if self._processes is not None and self._pid == os.getpid():
            self._processes.end_epoch()
        if self._counting is not None and self._pid == os.getpid():
            self._counting.end()
            self._warn_if_slow()

    def _note_beginning(self) -> None:
        """Notes the counters at the beginning of an epoch, with which it is compared at its end."""
        if not self._is_wait_told and self.board is not None:
            pages = self.board.read()
            self._began = time.monotonic()
            self._since = _reading_of(time.monotonic_ns(), self.full, pages)

    def _warn_if_slow(self) -> None:
        """Warns, once, if the program has waited for the loader for much of the epoch that is over."""
        if self._is_wait_told or self._since is None or time.monotonic() - self._began < LEAST:
            return
        from torchdata._observe.stats.waiting import waited_for_long

        stats = self.stats()
        words = waited_for_long(
            replace(self._summary(self._since), epoch=stats.epoch), self.name, self.wait_warning or 1
        )
        if words is not None:
            self._is_wait_told = True
            try:
                warn_outside(words, WaitWarning)
            except Warning as error:  # the epoch is over in order, whatever becomes of warnings
                threading.excepthook(threading.ExceptHookArgs((type(error), error, None, threading.current_thread())))

    def close(self) -> None:
        """The loader is shut down: what was counted stays to be read."""
        if self._watched is not None:
            warn_of_calls_no_more(*self._watched)
            self._watched = None
        self._processes = None
        counting = self._counting
        if counting is not None and self._pid == os.getpid():
            # As it is: at the interpreter's end nothing can be imported that would make something of it. And before the
            # board is given up: another thread may ask meanwhile.
            board = counting.board
            self._warn_of_damage(board)
            self._last = time.monotonic_ns(), board.full, board.read()
            self._counting = None
            answer_no_more(board, MAIN_PAGE)
            board.close_descriptor()
        self._counting = None

    @property
    def board(self) -> StatsBoard | None:
        """The counters; None before the first epoch and after the end."""
        counting = self._counting  # once: another thread may shut the loader down
        return None if counting is None else counting.board

    def reading(self) -> Reading:
        """The counters so far."""
        from torchdata._observe.stats.reading import read_board

        board = self.board
        if board is not None and self._pid == os.getpid():
            self._warn_of_damage(board)
            return read_board(board)
        at, full, read = self._last or (0, self.full, [])
        return _reading_of(at, full, read)

    def _warn_of_damage(self, board: StatsBoard) -> None:
        """Warns, once, if pages are left out. It raises nothing, even where warnings are errors."""
        damage = None if self._is_damage_told else board.damage()
        if damage is not None:
            self._is_damage_told = True
            warn_in_thread(
                RuntimeWarning(
                    f"the statistics of this loader are incomplete: {damage}. Code in one of its processes has written "
                    "over memory that is not its own; items that were damaged are reported as errors"
                )
            )

    def skipped(self, since: Reading | None) -> dict[tuple[str, str], int]:
        """By kind of exception and pipe, how many items other processes than this one have skipped since a reading."""
        from torchdata._observe.stats.reading import summarise

        found: dict[tuple[str, str], int] = {}
        for process in summarise(self.reading(), since).processes:
            for pipe in process.pipes if process.role != "main" else ():
                for kind, count in pipe.skipped_kinds.items():
                    found[kind, pipe.name] = found.get((kind, pipe.name), 0) + count
        return found

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        """See `DataLoader2.stats`."""
        earlier = None if since is None else since.reading
        if earlier is not None and earlier.at < self._made:
            earlier = None  # of workers before these, whose counters are gone
        return replace(self._summary(earlier), choices=tuple(self._notes()))

    def copied(self) -> Recorder:
        """The recorder of a copy of the loader."""
        return Recorder("full" if self.full else "counts", self.stall_warning, self.wait_warning)

    def diagnose(self, since: LoaderStats | None = None, ended: int = 0) -> Verdict:
        """See `DataLoader2.diagnose`.

        Args:
            since: earlier statistics, from which on to look.
            ended: how many epochs have ended, if none runs.
        """
        from torchdata._observe.stats.diagnosis import diagnose

        stats = self.stats(since)
        if not stats.epoch:  # an epoch begins with its first item, and there was none
            stats = replace(stats, epoch=ended, epochs=ended)
        return diagnose(stats)

    def _summary(self, since: Reading | None) -> ShownStats:
        from torchdata._observe.stats.reading import summarise

        return summarise(self.reading(), since)

    @property
    def _made(self) -> int:
        """When the counters were made that are read now, in nanoseconds; 0 if there are none."""
        board = self.board
        return 0 if board is None else board.made()[1]


def _reading_of(at: int, full: bool, pages: list[Any]) -> Reading:
    from torchdata._observe.stats.model import Reading

    return Reading(at, full, {page["page"]: page for page in pages})
