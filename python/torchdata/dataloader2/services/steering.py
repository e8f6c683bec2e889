"""`"auto"`: looks at what the loader counts in the first seconds, and changes workers and windows while an epoch runs.

Role: runs in main, in the thread that begins epochs, between two items. The number of workers changes as it does when a
state is loaded with another number: those that go on begin behind all that was given, so nothing is lost, comes twice
or in another order. They are started beside those that work, and take their place once they are ready. The reading
service owns it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchdata import _machine as machine
from torchdata._observe.stats.reading import read_board, summarise
from torchdata.dataloader2.services import choosing

if TYPE_CHECKING:
    from torchdata._engine.processes import Children
    from torchdata._observe.stats.model import LoaderStats, Reading
    from torchdata.dataloader2.services.shifts import Shifts
    from torchdata.dataloader2.services.worker_output import WorkerOutput

__all__ = ["MOST_CHANGES", "Looks", "Steering", "say"]

#: Seconds over which is counted before a choice, and those after which it is made even of few items.
ENOUGH, PATIENCE = 1.0, 5.0
#: Seconds between two looks: at what was counted, at whether new workers are ready, and at the window.
LOOK, GLANCE = 0.25, 0.02
#: Seconds that new workers may take to be ready.
STARTING = 120.0
#: How often the number of workers changes at most.
MOST_CHANGES = 3
#: Looks after which the window stays as it is.
WINDOW_LOOKS = 20

_logger = logging.getLogger("torchdata")


def say(line: str) -> None:
    """One line to who runs the program: to the log where there is one, else to stderr."""
    if _logger.hasHandlers():
        _logger.info("%s", line)
    else:
        print(f"torchdata: {line}", file=sys.stderr, flush=True)


class Steering:
    """What a reading service does for `"auto"`.

    Args:
        service: the service, which owns this.
        workers: whether it chooses the number of workers.
        window: whether it chooses how many items workers are ahead.
    """

    def __init__(self, service: Any, workers: bool, window: bool) -> None:
        self._service = weakref.proxy(service)
        self.workers, self.window = workers, window
        #: What was chosen so far, in words.
        self.choices: list[str] = []
        #: When to look next, by the monotonic clock.
        self.due = 0.0
        self._since: Reading | None = None
        self._thread = threading.get_ident()
        self._changes = 0
        self._looks = 0
        #: Workers that are starting, what they are chosen for, and until when they may take.
        self._starting: tuple[Children, choosing.Choice, float] | None = None
        #: Before the last change: how many workers there were, and items a second.
        self._before: tuple[int, float] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be chosen, and none is to go that others have replaced."""
        return not self.workers and not self.window and not self._shifts.others

    def prepare(self, number: int) -> tuple[int, int]:
        """How often the workers, who are so many at first, may be replaced, and how many there may be."""
        return MOST_CHANGES, max(number, machine.cores())

    @property
    def _shifts(self) -> Shifts:
        shifts: Shifts = self._service._shifts
        return shifts

    def keep(self, why: str) -> None:
        """Chooses no number of workers any more."""
        if self.workers:
            self.workers = False
            self._give_up_starting()
            self._tell(f'num_workers="auto" keeps {self._service.num_workers} workers: {why}')

    def _tell(self, line: str) -> None:
        self.choices.append(line)
        say(line)

    # -- looking -----------------------------------------------------------------------------------

    def begin_epoch(self, output: WorkerOutput) -> None:
        """An epoch is about to begin. Where those before were too short, the choice is made between two of them."""
        self._thread = threading.get_ident()
        self.due = 0.0
        self._shifts.reap()
        if output.goes_on or not self.workers:
            return
        if self._starting is None and self._since is not None:
            stats = self._stats(output.run.children)
            if _is_ripe(stats):
                self._choose_workers(stats)
        if self._starting is not None:
            (children, choice, _), self._starting = self._starting, None
            self._shifts.replace_between_epochs(output, children)
            self._changed(choice)

    def look(self, output: WorkerOutput) -> None:
        """To be called now and then, between two items."""
        now = time.monotonic()
        children = output.run.children
        is_here = threading.get_ident() == self._thread  # and not in the thread of a pipe that reads ahead
        self.due = now + LOOK
        self._shifts.reap()
        if self._starting is not None:
            self.due = now + GLANCE
            if is_here:
                self._look_at_starting(output, now)
            return
        if self._since is None:
            self._begin_counting(children)
            return
        output.forget_earlier()
        stats = self._stats(children)
        if self.window:
            self._choose_window(children, stats)
        if self.workers and is_here and _is_ripe(stats):
            self._choose_workers(stats)

    def _begin_counting(self, children: Children) -> None:
        self._since = read_board(children.stats)

    def _stats(self, children: Children) -> LoaderStats:
        return summarise(read_board(children.stats), self._since)

    # -- windows -----------------------------------------------------------------------------------

    def _choose_window(self, children: Children, stats: LoaderStats) -> None:
        if not choosing.is_enough(stats):
            return
        self._looks += 1
        choice = choosing.choose_window(stats, children.window, children.budget)
        if choice.number != children.window:
            if children.set_window(choice.number):
                self._shifts.ahead.chosen = choice.number
                self._tell(f'prefetch "auto": each worker is {choice.number} items ahead: {choice.reason}')
            if not self.workers:
                self._begin_counting(children)
        elif self._looks >= WINDOW_LOOKS:
            self.window = False

    # -- workers -----------------------------------------------------------------------------------

    def _choose_workers(self, stats: LoaderStats) -> None:
        now, rate = len(stats.workers), stats.items_per_second
        if self._before is not None:
            had, before = self._before
            if now > had and rate < choosing.GAIN * before:
                self._before = None
                choice = choosing.Choice(
                    had, f"{now} workers load no faster, {rate:.4g} items a second after {before:.4g}"
                )
                self._changes = MOST_CHANGES - 1  # the last one
                self._change(choice, rate)
                return
        allowed = choosing.limits(self._shifts.most)
        memory = _private_memory(stats)
        choice = choosing.choose_workers(stats, allowed, memory, self._shifts.children.window)
        if choice.number == now or self._changes >= MOST_CHANGES:
            self._decide(now, choice.reason)
        else:
            self._change(choice, rate)

    def _decide(self, number: int, reason: str) -> None:
        self.workers = False
        self._tell(f'num_workers="auto": {number} workers: {reason}')

    def _change(self, choice: choosing.Choice, rate: float) -> None:
        """Starts other workers, beside those that work."""
        self._changes += 1
        self._before = (self._shifts.children.num_workers, rate)
        try:
            children = self._shifts.start_others(choice.number)
            children.ask_whether_ready()
        except Exception as error:
            self.keep(f"{choice.number} could not be started ({type(error).__name__}: {error})")
            return
        self._starting = children, choice, time.monotonic() + STARTING

    def _look_at_starting(self, output: WorkerOutput, now: float) -> None:
        assert self._starting is not None
        children, choice, deadline = self._starting
        try:
            if not children.are_ready():
                if now >= deadline:
                    raise TimeoutError(f"they are not ready after {STARTING:.0f} s")
                return
            if not self._shifts.replace(output, children):
                return  # nobody knows the place now: tried again a little later
        except Exception as error:
            self.keep(f"{choice.number} could not take over ({type(error).__name__}: {error})")
            return
        self._starting = None
        self._changed(choice)

    def _changed(self, choice: choosing.Choice) -> None:
        had, _ = self._before or (0, 0.0)
        self._tell(f'num_workers="auto": {choice.number} workers instead of {had}: {choice.reason}')
        self._since = None  # the first items of new workers are not counted
        self.due = time.monotonic() + LOOK
        if choice.number < had or self._changes >= MOST_CHANGES:
            self.workers = False

    def _give_up_starting(self) -> None:
        if self._starting is not None:
            (children, *_), self._starting = self._starting, None
            self._shifts.let_go(children)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("what steers a reading service belongs to that one alone")


def _is_ripe(stats: LoaderStats) -> bool:
    """Whether there is enough to choose by."""
    return stats.seconds >= ENOUGH and (choosing.is_enough(stats) or stats.seconds >= PATIENCE)


def _private_memory(stats: LoaderStats) -> int | None:
    found = [machine.private_memory(worker.pid) for worker in stats.workers]
    known = [memory for memory in found if memory is not None]
    return max(known, default=None)


class Looks(Iterator["WorkerOutput"]):
    """An output, once for each item that is to be taken from it, as long as something is to be chosen.

    No item is on its way while Python code runs here, so Ctrl-C loses none.

    Args:
        output: the output.
        steering: what looks between two items.
    """

    def __init__(self, output: WorkerOutput, steering: Steering) -> None:
        self._output = output
        self._steering = steering

    def __next__(self) -> WorkerOutput:
        steering = self._steering
        if time.monotonic() >= steering.due:
            steering.look(self._output)
            if steering.is_over:
                raise StopIteration
        return self._output
