"""Executes a plan: loaders are read and resumed from saved states, while events such as Ctrl-C happen."""

import argparse
import contextlib
import copy
import gc
import pickle
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from drivers.frame import Driver, Skipped
from leftovers import children, shown
from pressing import alarm, press
from random_graphs.elsewhere import elsewhere
from random_loaders import events
from random_loaders.epochs import Epoch, read_epoch
from random_loaders.faults import inject
from random_loaders.model import compare, is_known
from random_loaders.pipelines import ENDS, Differs, begin, is_planned, key
from random_loaders.plans import LoaderPlan, only_read
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, describe

LONG = 2_000_000


@contextlib.contextmanager
def busy(how: str) -> Iterator[None]:
    ended = threading.Event()

    def hog() -> None:
        while not ended.wait(0.05):
            sum(range(LONG))

    def handle(*_: Any) -> None:
        # The timer is not periodic, because a periodic timer might interrupt its own handler.
        gc.collect(0) if how == "timer" else sum(range(LONG))
        if not ended.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.005 if how == "timer" else 0.05)

    thread = threading.Thread(target=hog, name="hog")
    before = None
    if how == "thread":
        thread.start()
    elif how and threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGALRM, handle)
        handle()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
        if before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class Run:
    def __init__(self, plan: LoaderPlan, expected: list[Epoch]) -> None:
        self.plan, self.expected = plan, expected
        self.rng = random.Random(f"run {plan.seed}")
        self.did: list[str] = []
        self.exits = Counter[int]()
        self.aside: list[tuple[int, dict[str, Any], list[Any]]] = []
        self.epoch = 0
        self.received: list[Any] = []
        #: Received items that the main process keeps, each with a copy of its original contents.
        self.kept: list[tuple[Any, Any]] = []
        self.workers: int | str | None = None
        self.is_left = self.has_left = False
        self.loader: Any = plan.made()
        if plan.loader_seed is not None:
            self.loader.seed(plan.loader_seed)
        self.iterator: Any = None
        fault = plan.fault
        self.last = None if fault is None else self.rng.randrange(len(plan.epochs) + 1)

    def go_through(self) -> None:
        try:
            for seed, until in [*self.plan.epochs, (None, None)]:
                self.plan.arm(self.epoch)
                if seed is not None:
                    self.loader.seed(seed)
                self.received = []
                if self.epoch == self.last:
                    inject(self)
                    return
                self.begin()
                self.has_left = False
                try:
                    self._read_epoch(until)
                except ENDS as error:
                    if not (is_planned(error) and self.plan.free and self.plan.armed[self.epoch]):
                        raise
                    self.did.append("failed")
                    if self.has_others and self.epoch < len(self.plan.epochs):
                        self.read_on(between=True)
                self.epoch += 1
            self._end()
        finally:
            if self.loader is not None:
                self.loader.shutdown()
            self.loader = self.iterator = None
            self.plan.set_flag(False)
        self.compare_kept()

    def _end(self) -> None:
        self.did.append(self.plan.ending)
        if self.plan.ending == "shutdown":
            return
        self.plan.set_flag(False)
        next(iter(self.loader), None)
        if self.plan.ending == "dropped":
            self.loader = self.iterator = None
            gc.collect()

    def _read_epoch(self, until: int | None) -> None:
        self.is_left = until is not None and until <= self.size and not self.expected[self.epoch].fails
        while self.at < self.size:
            if self.rng.random() < 0.6:
                self.rng.choice(events.possible(self))(self)
            else:
                self.read(self.rng.choice([1, 2, 5, 20, 100]))
        if self.is_left:
            self.did.append("leave")
            self.has_left = True
            return
        if self.rng.random() < 0.4:
            self.read_on()
            self.read(self.size)
        try:
            got, fails = next(self.iterator, self), False
        except ENDS as error:
            if not is_planned(error):
                raise
            got, fails = self, True
        if got is not self or fails != self.expected[self.epoch].fails:
            raise Differs(f"the last item of epoch {self.epoch} is followed by {'an error' if fails else got!r:.100}")
        self.did.append("end")
        if (self.has_others or self.rng.random() < 0.4) and self.epoch < len(self.plan.epochs):
            self.did.append("between:")
            self.read_on(between=True)

    @property
    def has_others(self) -> bool:
        return self.workers is not None and not self.plan.moves

    @property
    def size(self) -> int:
        return self.expected[self.epoch].size

    @property
    def at(self) -> int:
        return len(self.received)

    def read(self, count: int) -> None:
        count = min(count, self.size - self.at)
        self.did.append(f"read {count}")
        self.take(islice(self.iterator, count), count)

    def take(self, items: Iterator[Any] | list[Any], count: int) -> None:
        got = []
        for item in items:
            got.append(key(item))
            if len(self.kept) < self.plan.keeps:
                self.kept.append((item, copy.deepcopy(got[-1])))
        try:
            self.expected[self.epoch].check(self.received, got, self.plan.free)
        except Differs as error:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {error}") from None
        if len(got) != count:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {len(got)} items instead of {count}")
        self.received += got

    def compare_kept(self) -> None:
        for item, before in self.kept:
            if key(item) != before:
                raise Differs(f"an item that was kept has changed: it was {before!r:.200}")
        self.kept.clear()

    def state(self, ago: int = 0) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict(items_ago=ago, with_pipe=self.rng.choice([None, True, False]))
        describe(state)
        return state

    def put_aside(self, *states: dict[str, Any]) -> None:
        self.aside += [(self.epoch, state, list(self.received)) for state in states]

    def read_on(self, between: bool = False, reads_on: bool = True) -> None:
        plan, rng = self.plan, self.rng
        ends_first = rng.random() < 0.2
        if ends_first:
            self.did.append("shut down")
            self.loader.shutdown()
        run = self.loader._run
        ago = 0 if between or ends_first else min(rng.choice([0, 0, 1, 2]), run.is_iterating * run.delivery.received)
        state = pickle.loads(pickle.dumps(self.state(ago)))
        at = self.at - ago
        more = rng.choice([0, 0, 1, 5]) if reads_on and not between and not ends_first else 0
        if more and not self.loader._is_paused:
            self.read(more)
        seeded = between and self.epoch + 1 < len(plan.epochs) and plan.epochs[self.epoch + 1][0] is not None
        # A seed must be set before the call of `iter`.
        way = rng.choice(["new", "new", "new", "new" if seeded else "after iter", "from state"])
        if plan.moves:
            self.workers = rng.choice(["auto", *plan.numbers()] if plan.auto else plan.numbers())
            if self.workers != plan.workers:  # The number of shards in later epochs depends on the number of workers.
                for epoch in self.expected[self.epoch + bool(at) :]:
                    epoch.shares = None
        elif plan.kind == "workers":
            # An epoch that resumes with another number of workers keeps its shards; a new epoch has other shards.
            self.workers = None if between or self.is_left or not at else rng.choice(plan.numbers())
        if plan.method != "remote":
            plan.method = rng.choice([method for method in plan.methods if method != "remote"])
        self.did.append(f"go on {way} from {at}, {'as before' if self.workers is None else self.workers}")
        self._leave_loader()
        if way == "from state" and state["serialized_datapipe"] is not None:
            begin(99)
            self.loader = DataLoader2.from_state(state, plan.service_of(self.workers))
        else:
            self.loader = plan.made(self.workers)
            if way == "after iter":
                self.loader.seed(77)
                iter(self.loader)
            begin(99)
            if self._is_cut_off(lambda: self.loader.load_state_dict(state)):
                self.loader.shutdown()
                self.loader = plan.made(self.workers)
                self.loader.load_state_dict(state)
        self.exits.clear()
        if not between:
            del self.received[at:]
            self.begin()

    def begin(self) -> None:
        if not self._is_cut_off(self._set_iterator):
            return
        if self.plan.draws_in_main:
            raise Skipped("generators were drawn from")  # The interrupted attempt has already drawn its random numbers.
        # If pipes keep state between epochs, a new loader must resume from the state of the interrupted loader.
        if not self.has_left and (self.plan.lasts or self.rng.random() < 0.5):
            try:
                state = pickle.loads(pickle.dumps(self.state()))
            except RuntimeError as error:
                if "the start of the next epoch was interrupted" not in str(error):
                    raise
                raise Skipped("it is not known whether an epoch was left") from error
            self._leave_loader()
            self.loader = self.plan.made(self.workers)
            begin(99)
            self.loader.load_state_dict(state)
        self._set_iterator()

    def _set_iterator(self) -> None:
        old, self.iterator = self.iterator, iter(self.loader)
        if self.has_left and self.rng.random() < 0.3 and old is not None and old is not self.iterator:
            try:
                next(old)
            except (RuntimeError, StopIteration):
                return
            raise Differs("an iterator yielded items after iter() was called again")

    def _is_cut_off(self, function: Callable[[], None]) -> bool:
        """Calls `function`, sometimes presses Ctrl-C during the call, and returns whether Ctrl-C has interrupted it."""
        is_main = threading.current_thread() is threading.main_thread()
        if not self.plan.presses or not is_main or self.rng.random() < 0.8:
            function()
            return False
        with alarm(None):
            try:
                signal.signal(signal.SIGALRM, press)
                signal.setitimer(signal.ITIMER_REAL, self.rng.choice([1e-5, 1e-4, 1e-3, 5e-3]))
                function()
                signal.setitimer(signal.ITIMER_REAL, 0)
                return False
            except KeyboardInterrupt:
                self.did.append("cut off")
                return True

    def _leave_loader(self) -> None:
        if self.rng.random() < 0.8:
            self.loader.shutdown()
        else:  # Without references, garbage collection ends the loader.
            self.iterator = self.loader = None
            gc.collect()
        if self.rng.random() < 0.3:
            self.compare_kept()

    def check_aside(self) -> int:
        chosen = self.rng.sample(self.aside, min(3, len(self.aside)))
        for epoch, state, arrived in chosen:
            arguments = (self.plan, self.expected, epoch, pickle.dumps(state), arrived)
            if self.rng.random() < self.plan.away:
                elsewhere("random_loaders.run", "resume_from", *arguments)
            else:
                workers = self.plan.kind == "workers" and self.plan.method != "remote"
                resume_from(*arguments, self.rng.choice(self.plan.numbers()) if workers else None)
        return len(chosen)


def resume_from(
    plan: LoaderPlan,
    expected: list[Epoch],
    number: int,
    state: bytes,
    arrived: list[Any],
    workers: int | str | None = None,
) -> None:
    position, epoch = pickle.loads(state)["iteration_state"], expected[number]
    received = 0 if position is None else position["received"]
    if not (received or plan.moves):  # A new epoch needs a shard for each planned worker.
        workers = None
    begin(98)
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    plan.arm(number)
    with plan.made(workers) as loader:
        loader.load_state_dict(pickle.loads(state))
        until = epoch.size - received
        resumes = number + 1 < len(expected) and until and epoch.until is None and not (plan.draws_in_main or plan.free)
        resumes = resumes and (workers is None or plan.moves)
        got = read_epoch(loader, None if resumes else until) if until else Epoch()
        try:
            epoch.check(arrived[:received], got, plan.free)
        except Differs as error:
            raise Differs(f"from a state inside epoch {number}, at {received}: {error}") from None
        if got.fails and plan.free and plan.armed[number]:
            return
        if len(got) != until:
            raise Differs(f"from a state inside epoch {number}: {len(got)} items instead of {until}")
        if not resumes:
            return
        number += 1
        plan.arm(number)
        if number < len(plan.epochs) and plan.epochs[number][0] is not None:
            loader.seed(plan.epochs[number][0])
        if (got := read_epoch(loader, expected[number].size or None)) != expected[number][: expected[number].size]:
            raise Differs(f"epoch {number}, after a loaded epoch: {got!s:.200}")
    plan.set_flag(False)


def check(plan: LoaderPlan) -> int:
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    before = set(children())
    expected = only_read(plan)
    if is_known(plan):
        compare(plan, expected)
    begin()
    with busy(plan.busy):
        run = Run(plan, expected)
        try:
            run.go_through()
            run.check_aside()
        except KeyboardInterrupt as error:  # Ctrl-C may interrupt any code, so a failed run proves nothing.
            raise Skipped("Ctrl-C came late") from error
        except Exception as error:
            error.add_note(f"did: {run.did}")
            raise
    deadline = time.monotonic() + 5
    while (left := set(children()) - before) and time.monotonic() < deadline:
        time.sleep(0.005)
    if left:
        raise Differs(f"processes still run after {run.did}: {list(map(shown, left))}")
    return len(run.did)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-interrupts", action="store_true", help="do not press Ctrl-C at moments that depend on the clock"
    )
    parser.add_argument("--faults", action="store_true", help="only run plans that end by a failure")


def plan_of(seed: int, options: argparse.Namespace) -> LoaderPlan:
    for number in range(seed * 1000, (seed + 1) * 1000):
        plan = LoaderPlan(
            number if options.faults else seed, tuple(options.start_methods.split(",")), options.faults or None
        )
        if plan.fault is not None or not options.faults:
            break
    plan.presses &= not options.no_interrupts
    return plan


def is_quiet(plan: LoaderPlan) -> bool:
    return not (plan.presses or plan.auto)


DRIVER = Driver(plan_of, check, "things done", is_quiet=is_quiet, more=more)
