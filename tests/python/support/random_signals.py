"""Signal handlers that raise at random moments while worker processes start: no exception is lost, and nothing is left.

A timer expires at a random moment between the start of a loader and shortly after its first item. Its handler raises.
The exception must reach the program that starts the loader, in whichever step of the start it occurs.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
import traceback

from drivers.frame import Driver
from families import FAMILIES
from leftovers import children, cmdline, state


class Rang(Exception):
    """The exception of the signal handler."""


class Timer:
    """Sends SIGALRM, SIGUSR1 or SIGTERM once, after a delay."""

    NUMBERS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM)

    def __init__(self):
        self.rung, self.where = 0, ""
        self._before = {}

    def __enter__(self):
        self._before = {number: signal.signal(number, self._ring) for number in self.NUMBERS}
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wind(self, seconds):
        self.rung = 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _ring(self, number, frame):
        if number == signal.SIGALRM and random.random() < 0.5:  # another signal may be used as well
            os.kill(os.getpid(), random.choice(self.NUMBERS[1:]))
            return
        self.rung += 1
        self.where = "".join(traceback.format_stack(frame))
        raise Rang

    def await_ring(self):
        deadline = time.monotonic() + 100
        while not self.rung and time.monotonic() < deadline:
            time.sleep(0.001)
        raise AssertionError(f"the handler has raised, and the exception is lost:\n{self.where}")


def is_told(error):
    """Returns whether the exception is, or was caused by, the handler's exception, which may occur while a graph is
    unpickled.
    """
    while error is not None and not isinstance(error, Rang):
        error = error.__cause__ or error.__context__
    return error is not None


class Plan:
    """The loader to start, and when the signal is sent."""

    def __init__(self, seed, methods):
        rng = random.Random(f"signals {seed}")
        self.family, self.method = rng.choice(list(FAMILIES)), rng.choice(methods)
        self.moments = [rng.random() for _ in range(10)]

    def __repr__(self):
        return f"{self.family} by {self.method}, at {self.moments}"


#: By family and start method: the seconds of a start.
_took = {}


def check(plan):
    """Starts loaders, with one signal during each start; returns how many."""
    opened = FAMILIES[plan.family]
    key = plan.family, plan.method
    if key not in _took:
        begun = time.monotonic()
        with opened(plan.method) as items:
            next(items)
        _took[key] = time.monotonic() - begun
    for moment in plan.moments:
        with Timer() as timer:
            caught = 0
            try:
                timer.wind(max(1e-6, 1.2 * moment * _took[key]))
                with opened(plan.method) as items:
                    next(items)
                    timer.await_ring()
            except Exception as error:
                if not is_told(error):
                    raise
                caught += 1
            assert (timer.rung, caught) == (1, 1), f"the handler raised {timer.rung} times, {caught} arrived"
        gc.collect()
        deadline = time.monotonic() + 20
        while children() and time.monotonic() < deadline:  # a thread of the loader may be the last to release it
            time.sleep(0.001)
        assert [(state(pid), cmdline(pid)) for pid in children()] == [], "a worker was left behind"
    return len(plan.moments)


DRIVER = Driver(lambda seed, options: Plan(seed, options.start_methods.split(",")), check, "starts")
