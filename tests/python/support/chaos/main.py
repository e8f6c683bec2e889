"""The program that is struck: `python -m chaos.main SEED METHODS DESCRIPTOR`.

It says where it is, and at the end what it saw, to the descriptor, one JSON object a line; its standard streams are to
stay empty. It goes on to its end once its standard input has ended, as nothing will happen to it any more then.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings

import numpy as np

from chaos.plans import make_plan
from hanging import Hanging
from leftovers import children, shared_mappings
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from watchdog import show_stacks_on_demand

show_stacks_on_demand()
#: Numbers to add up at once; takes a few hundredths of a second, in which no other Python code runs.
LONG = 2_000_000
SPEECH = int(sys.argv[3]) if __name__ == "__main__" else None


def say(**what):
    os.write(SPEECH, (json.dumps({**what, "time": time.monotonic()}) + "\n").encode())


class Work:
    """The work for an item: sleeps, fills an array, and dies or hangs if the plan says so."""

    def __init__(self, plan, folder):
        self.plan = plan
        self.hang = Hanging(plan.hang, folder, plan.times)

    def __call__(self, number):
        plan = self.plan
        if plan.victim == "self" and plan.hang:
            if number == plan.at:
                self.hang()
        elif plan.victim == "self" and number == plan.at:
            if plan.blow == "exit":
                os._exit(7)
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.sleep:
            time.sleep(plan.sleep * (number * 7919 % 1000) / 1000)
        return np.full(plan.elements, number) if plan.elements else number


def ignore_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Program:
    """Main, from its loader to its end."""

    def __init__(self, plan, folder):
        self.plan, self.folder = plan, folder
        self.loader = None
        self.asked = None
        self.interrupts = []
        self.errors = []
        self.wrong = []
        self.complete = 0
        self.ended = threading.Event()

    def run(self):
        parts, over = (self.work, self.afterwards, self.wait_for_peace, ignore_interrupts), []
        while len(over) < len(parts):  # an interrupt may come between two parts, too
            try:
                for part in parts[len(over) :]:
                    self.interruptible(part, over)
            except KeyboardInterrupt:
                self.interrupts.append(time.monotonic())
        self.ended.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.loader = None
        self.look_around()
        say(
            report=True,
            interrupts=self.interrupts,
            errors=self.errors,
            wrong=self.wrong,
            complete=self.complete,
        )

    def interruptible(self, part, over):
        """Runs a part again until it was not interrupted; the first one is over after an interrupt."""
        while part not in over:
            try:
                part()
                over.append(part)
            except KeyboardInterrupt:
                self.interrupts.append(time.monotonic())
                if part == self.work:
                    over.append(part)

    # -- the parts -----------------------------------------------------------------------------------------------

    def work(self):
        try:
            self.keep_busy()
            self.work_through()
        except Exception as error:
            self.note(error)

    def work_through(self):
        plan = self.plan
        self.loader = self.make()
        self.phase("start")
        iterator = self.begin()
        say(children=children())
        self.phase("iterate")
        self.take(iterator)
        if plan.resumes:
            self.resume()
        self.phase("leave")
        self.take(self.begin(), plan.items // 3)
        self.phase("turn")
        iterator = self.begin()
        self.take(iterator)
        self.phase("between")
        time.sleep(0.02)
        iterator = self.begin()
        iterator.limit(max(1, plan.items // 2))
        got = self.take(iterator, None, judge=False)
        self.phase("pause")
        time.sleep(0.01)
        self.phase("resume")
        iterator.resume()
        iterator.limit(None)
        self.take(iterator, None, got)
        self.phase("last")
        self.take(self.begin())
        self.phase("shutdown")
        self.loader.shutdown()

    def resume(self):
        """Leaves an epoch in its midst, and goes on in another loader. That is none of the epochs that are counted."""
        got, complete = self.take(self.begin(), self.plan.items // 3), self.complete
        state = self.loader.state_dict()
        self.loader.shutdown()
        self.loader = self.make()
        self.loader.load_state_dict(state)
        self.take(self.begin(), None, got)
        self.complete = complete

    def make(self):
        """The loader."""
        plan, work = self.plan, Work(self.plan, self.folder)
        pipe = IterableWrapper(range(plan.items))
        if plan.before:
            pipe = pipe.map(work)
        if plan.dispatch:
            pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        else:
            pipe = pipe.sharding_filter()
        service = MultiProcessingReadingService(
            plan.workers,
            plan.method,
            worker_prefetch_cnt=plan.window,
            main_prefetch_cnt=plan.window,
            in_order=plan.in_order,
            timeout=plan.timeout,
            on_timeout="restart" if plan.hang else "error",
        )
        return DataLoader2(pipe if plan.before else pipe.map(work), reading_service=service)

    def afterwards(self):
        """After an error or an interrupt the loader either works or says why it does not; then it is shut down."""
        if (self.errors or self.interrupts) and self.plan.again and self.loader is not None:
            say(again=True)
            try:
                self.take(self.begin())
            except Exception as error:
                self.note(error)
        say(ends=True)
        if self.loader is not None:
            self.loader.shutdown()

    def wait_for_peace(self):
        say(peace=True)
        os.read(0, 1)

    def look_around(self):
        """Looks for processes and mappings that the loader left."""
        deadline = time.monotonic() + 5
        gc.collect()
        while (left := [children(), shared_mappings()]) != [[], 0] and time.monotonic() < deadline:
            time.sleep(0.01)
        if left != [[], 0]:
            self.wrong.append(f"left behind: child processes {left[0]}, {left[1]} shared mappings")

    # -- its tools -----------------------------------------------------------------------------------------------

    def phase(self, name):
        say(phase=name)

    def begin(self):
        self.asked = time.monotonic()
        return iter(self.loader)

    def take(self, iterator, count=None, before=(), judge=True):
        """Reads items, and judges them: all there are in the end, or as many as came by then."""
        got, whole = list(before), False
        try:
            while count is None or len(got) < count:
                self.asked = time.monotonic()
                try:
                    item = next(iterator)
                except StopIteration:
                    whole = judge and count is None
                    break
                got.append(self.number(item))
        finally:
            self.judge(got, whole)
        self.complete += whole
        return got

    def number(self, item):
        if not self.plan.elements:
            return item
        number = int(item[0])
        if item.shape != (self.plan.elements,) or not (item == number).all():
            self.wrong.append(f"the array of item {number} is damaged")
        return number

    def judge(self, got, whole):
        expected = list(range(self.plan.items))
        if not self.plan.in_order:
            right = len(set(got)) == len(got) and set(got) <= set(expected)
            right = right and (not whole or len(got) == len(expected))
        else:
            right = got == (expected if whole else expected[: len(got)])
        if not right:
            what = "a whole epoch" if whole else "a part of an epoch"
            self.wrong.append(f"{what} of {len(got)} of {len(expected)} items is not what it should be: {got!s:.200}")

    def note(self, error):
        now = time.monotonic()
        self.errors.append(
            {
                "type": type(error).__name__,
                "text": str(error),
                "died": isinstance(error, WorkerExitedError),
                "time": now,
                "asked": self.asked,
            }
        )

    def keep_busy(self):
        """Keeps the GIL for long, again and again, in a thread or in a signal handler."""
        if self.plan.busy == "handler":
            signal.signal(signal.SIGALRM, self.handle)
            self.handle()
        elif self.plan.busy == "thread":
            threading.Thread(target=self.hog, name="hog", daemon=True).start()

    def hog(self):
        while not self.ended.wait(0.05):
            sum(range(LONG))

    def handle(self, *_signal):
        # Each sets the next one off, as a timer that fires by itself would find a slow machine in the handler again.
        sum(range(LONG))
        if not self.ended.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.05)


if __name__ == "__main__":
    made = make_plan(int(sys.argv[1]), sys.argv[2].split(","))
    if made.hang:  # all other warnings are errors
        warnings.filterwarnings("ignore", ".*was killed for it", RuntimeWarning)
    with tempfile.TemporaryDirectory(prefix="chaos") as where:
        Program(made, where).run()
