"""`"auto"`: changes workers and windows between two epochs, by what the loader counts.

Role: runs in main, in the thread that begins epochs. The next epoch begins in as many workers as were chosen, so no
item is lost, comes twice or in another order. The reading service owns it.
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any

from torchdata import _machine as machine
from torchdata._observe.show.table import duration
from torchdata._observe.stats.reading import read_board, summarise
from torchdata.dataloader2.services import choosing

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats, Reading
    from torchdata.dataloader2.services.shifts import Shifts
    from torchdata.dataloader2.services.worker_output import WorkerOutput

__all__ = ["MOST_CHANGES", "Steering", "say"]

#: Seconds over which is counted before a choice, and those after which it is made even of few items.
ENOUGH, PATIENCE = 1.0, 5.0
#: How often the number of workers changes at most.
MOST_CHANGES = 3
#: Epochs after which the window stays as it is.
WINDOW_LOOKS = 20

_logger = logging.getLogger("torchdata")


def say(line: str) -> None:
    """Tells the user a line: in the log, or if nobody has set up logging, on stderr."""
    if _logger.hasHandlers():
        _logger.info("%s", line)
    else:
        print(f"torchdata: {line}", file=sys.stderr, flush=True)


class Steering:
    """The choices of a reading service for `"auto"`.

    Args:
        service: the service, which owns this.
        workers: whether it chooses the number of workers.
        window: whether it chooses how many items workers are ahead.
    """

    def __init__(self, service: Any, workers: bool, window: bool) -> None:
        self._service = weakref.proxy(service)
        self.workers, self.window = workers, window
        #: The choices so far, in words.
        self.choices: list[str] = []
        #: The counters from which on the workers are judged; None: from the first epoch on.
        self._since: Reading | None = None
        #: Whether the workers' start is among what was counted.
        self._are_new = True
        self._changes = 0
        self._looks = 0
        #: Before the last change: how many workers there were, and items a second.
        self._before: tuple[int, float] | None = None
        #: For the next epoch: 0 if it runs in main after workers, or how many workers after main.
        self._next: int | None = None
        #: While main runs the graph: how many workers there were, and the seconds that each item was waited for.
        self._dismissed: tuple[int, float] | None = None

    def prepare(self, number: int) -> tuple[int, int]:
        """How often the workers, who are so many at first, may be replaced, and how many there may be."""
        return MOST_CHANGES, max(number, choosing.most_workers())

    @property
    def _shifts(self) -> Shifts:
        shifts: Shifts = self._service._shifts
        return shifts

    def keep(self, why: str) -> None:
        """Chooses no number of workers any more."""
        if self.workers:
            self.workers = False
            self._tell(f'num_workers="auto" keeps {self._service.num_workers} workers: {why}')

    def _keep_because_of(self, number: int, error: Exception) -> None:
        self.keep(f"{number} could not be started ({type(error).__name__}: {error})")

    def _tell(self, line: str) -> None:
        self.choices.append(line)
        say(line)

    @property
    def moves(self) -> bool:
        """Whether main is to run the next epoch after workers, or workers after main."""
        return self._next is not None

    def move(self) -> int | None:
        """Lets main run the next epoch after workers, or workers after main, if that was chosen.

        Returns:
            How many workers there are now; None if nothing has moved.
        """
        number, self._next = self._next, None
        if number is None:
            return None
        if number == 0:
            self._shifts.dismiss()
        else:
            try:
                self._shifts.call_back(number)
            except Exception as error:
                self._keep_because_of(number, error)
                return None
        self._count_anew()
        return number

    def begin_epoch(self, output: WorkerOutput | None) -> None:
        """Chooses for the epoch that is about to begin, and for those behind it. `output` is None in main."""
        if (output is not None and output.goes_on) or not (self.workers or self.window):
            return
        board = self._shifts.children.stats
        stats = summarise(read_board(board), self._since)
        if self.window and output is not None:
            self._choose_window(stats)
        if self.workers and self._are_new and stats.items and stats.seconds < PATIENCE:
            self._count_anew()  # the processor time of their start would weigh too much
            self._are_new = False
        elif self.workers and _is_ripe(stats):
            if output is None:
                self._compare_main(stats)
            else:
                self._choose_workers(output, stats)

    def _choose_window(self, stats: LoaderStats) -> None:
        children = self._shifts.children
        if not choosing.is_enough(stats):
            return
        self._looks += 1
        choice = choosing.choose_window(stats, children.window, children.budget)
        if choice.number != children.window:
            if children.set_window(choice.number):
                self._shifts.ahead.chosen = choice.number
                self._tell(f'prefetch "auto": each worker is {choice.number} items ahead: {choice.reason}')
            if not self.workers:
                self._count_anew()
        elif self._looks >= WINDOW_LOOKS:
            self.window = False

    def _count_anew(self) -> None:
        self._since = read_board(self._shifts.children.stats)

    def _choose_workers(self, output: WorkerOutput, stats: LoaderStats) -> None:
        now, rate = len(stats.workers), stats.items_per_second
        if self._before is not None:
            had, before = self._before
            if now > had and rate < choosing.GAIN * before:
                self._before = None
                self._changes = MOST_CHANGES - 1  # the last one
                words = f"{now} workers load no faster, {rate:.4g} items a second after {before:.4g}"
                self._change(output, choosing.Choice(had, words), rate)
                return
        allowed = choosing.limits(self._shifts.most)
        choice = choosing.choose_workers(stats, allowed, _private_memory(stats), self._shifts.children.window)
        if choice.number == 0 and self._changes < MOST_CHANGES:  # so that workers can be called back
            self._dismissed = now, choosing.waited_per_item(stats)
            self._move(0, now, choice.reason)
        elif choice.number in (0, now) or self._changes >= MOST_CHANGES:
            self._decide(now, choice.reason)
        else:
            self._change(output, choice, rate)

    def _compare_main(self, stats: LoaderStats) -> None:
        """Calls workers back if main needs longer for an item than an item of theirs was waited for."""
        assert self._dismissed is not None
        number, waited = self._dismissed
        took = choosing.waited_per_item(stats)
        if took <= choosing.GAIN * waited:
            self._count_anew()  # work may become dearer
            return
        self._changes += 1
        self._before = None
        words = f"an item takes the main process {duration(took)}, and took {duration(waited)} to come from workers"
        self._move(number, 0, words)

    def _move(self, number: int, had: int, reason: str) -> None:
        """Lets main run the graph after this epoch, or workers again."""
        self._next = number
        self._are_new = True
        self._tell(f'num_workers="auto": {number} workers instead of {had} after this epoch: {reason}')

    def _decide(self, number: int, reason: str) -> None:
        self.workers = False
        self._tell(f'num_workers="auto": {number} workers: {reason}')

    def _change(self, output: WorkerOutput, choice: choosing.Choice, rate: float) -> None:
        """Starts other workers, and lets them take over."""
        had = self._shifts.children.num_workers
        try:
            children = self._shifts.start_others(choice.number)
        except Exception as error:
            self._keep_because_of(choice.number, error)
            return
        self._shifts.replace(children, output.read_from)
        self._changes += 1
        self._before = had, rate
        self._count_anew()
        self._are_new = True
        self._tell(f'num_workers="auto": {choice.number} workers instead of {had}: {choice.reason}')
        if choice.number < had or self._changes >= MOST_CHANGES:
            self.workers = False

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("what steers a reading service belongs to that one alone")


def _is_ripe(stats: LoaderStats) -> bool:
    """Whether there is enough to choose by."""
    return stats.seconds >= ENOUGH and (choosing.is_enough(stats) or stats.seconds >= PATIENCE)


def _private_memory(stats: LoaderStats) -> int | None:
    found = [machine.private_memory(worker.pid) for worker in stats.workers]
    known = [memory for memory in found if memory is not None]
    return max(known, default=None)
