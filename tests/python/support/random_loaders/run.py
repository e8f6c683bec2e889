"""Runs the plan of one seed in this process: `python -m random_loaders.run --seed 17`. No watchdog."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager

from leftovers import children, descriptors, shared_mappings
from random_loaders import epochs
from random_loaders.plans import METHODS, make_plan


def say(line):
    print(f"{time.monotonic() - STARTED:7.3f} {line}", flush=True)


STARTED = time.monotonic()


def run(plan, folder):
    with timer(plan.timer):
        first = epochs.Run(plan.setup, folder, "loader", say)
        other = None
        if plan.other is not None:
            other = epochs.Run(plan.other, folder, "other loader", say)
        for number, action in enumerate(plan.actions):
            first.epoch(number, action, other if action.both else None)
        first.finish(plan.ending)
        if other is not None:
            other.finish("shutdown")


@contextmanager
def timer(seconds):
    """Has main handle a signal again and again, each time so long after the last one was handled."""
    going = bool(seconds)

    def handle(*_signal):
        gc.collect(0)
        if going:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    signal.signal(signal.SIGALRM, handle)
    handle()
    try:
        yield
    finally:
        going = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def left_behind(before):
    """The leftovers of the loaders, once they had time to go."""
    deadline = time.monotonic() + 10
    while True:
        gc.collect()
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        left = {
            "child processes": children(),
            # multiprocessing keeps a few of its own (resource tracker, fork server).
            "more descriptors": max(0, descriptors() - before - 6),
            "shared mappings": shared_mappings(),
            "threads": threads,
        }
        left = {name: what for name, what in left.items() if what}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start-methods", default=",".join(METHODS))
    parser.add_argument("--show", action="store_true", help="only print the plan")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    plan = make_plan(options.seed, options.start_methods.split(","))
    print(plan.describe(), flush=True)
    if options.show:
        return 0
    before = descriptors()
    with tempfile.TemporaryDirectory() as folder:
        run(plan, folder)
    left = left_behind(before)
    if left:
        print(f"left behind: {left}", flush=True)
        return 1
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
