"""The recorder of a loader's statistics: finds or makes the board, binds its pipes, reads it.

Role: owned by one `DataLoader2`; runs in main. If the service starts processes, the board is theirs; otherwise it
has one page. Loading never fails for want of statistics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torchdata._native import Delivery, StatsBoard
from torchdata._observe.outside.stacks import answer_no_more
from torchdata._observe.outside.stalls import warn_in_thread, warn_of_calls, warn_of_calls_no_more, warn_of_stalls
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting

if TYPE_CHECKING:
    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.model import LoaderStats, Reading

__all__ = ["Recorder", "StatsLevel"]

StatsLevel = Literal["counts", "full"]
_LEVELS = ("counts", "full")
#: The variable of the environment that sets the level, if the loader is not told.
VARIABLE = "TORCHDATA_STATS"


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
    """

    def __init__(self, level: StatsLevel | None, stall_warning: float | None) -> None:
        chosen = os.environ.get(VARIABLE) or "counts" if level is None else level
        if chosen not in _LEVELS:
            source = f"the environment variable {VARIABLE}" if level is None else "stats"
            raise ValueError(f'{source} is "counts" or "full", not {chosen!r}')
        if stall_warning is not None and (isinstance(stall_warning, bool) or not stall_warning > 0):
            raise ValueError(f"stall_warning is a positive number of seconds or None, not {stall_warning!r}")
        self.full = chosen == "full"
        self.stall_warning = stall_warning
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
        from torchdata._observe.stats.model import Reading
        from torchdata._observe.stats.reading import read_board

        board = self.board
        if board is not None and self._pid == os.getpid():
            self._warn_of_damage(board)
            return read_board(board)
        at, full, read = self._last or (0, self.full, [])
        return Reading(at, full, {page["page"]: page for page in read})

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
        from torchdata._observe.stats.reading import summarise

        stats = summarise(self.reading(), None if since is None else since.reading)
        return replace(stats, choices=tuple(self._notes()))
