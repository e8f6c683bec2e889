"""Executes a plan: reads a loader and loaders that resume it, during events such as Ctrl-C."""

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
from lives import events
from lives.blows import strike
from lives.epochs import Epoch, read_epoch
from lives.model import compare, is_known
from lives.pipelines import ENDS, Differs, begin, is_planned, key
from lives.plans import Life, only_read
from pressing import alarm, press
from random_graphs.elsewhere import elsewhere
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
    def __init__(self, life: Life, expected: list[Epoch]) -> None:
        self.life, self.expected = life, expected
        self.dice = random.Random(f"run {life.seed}")
        self.did: list[str] = []
        self.exits = Counter[int]()
        self.aside: list[tuple[int, dict[str, Any], list[Any]]] = []
        self.epoch = 0
        self.given: list[Any] = []
        #: Received items that the main process keeps, each with a copy of its original contents.
        self.kept: list[tuple[Any, Any]] = []
        self.workers: int | str | None = None
        self.is_left = self.has_left = False
        self.loader: Any = life.made()
        if life.loader_seed is not None:
            self.loader.seed(life.loader_seed)
        self.iterator: Any = None
        blow = life.blow
        self.last = None if blow is None else self.dice.randrange(len(life.epochs) + 1)

    def live(self) -> None:
        try:
            for seed, until in [*self.life.epochs, (None, None)]:
                self.life.arm(self.epoch)
                if seed is not None:
                    self.loader.seed(seed)
                self.given = []
                if self.epoch == self.last:
                    strike(self)
                    return
                self.begin()
                self.has_left = False
                try:
                    self._read_epoch(until)
                except ENDS as error:
                    if not (is_planned(error) and self.life.free and self.life.armed[self.epoch]):
                        raise
                    self.did.append("failed")
                    if self.has_others and self.epoch < len(self.life.epochs):
                        self.read_on(between=True)
                self.epoch += 1
            self._end()
        finally:
            if self.loader is not None:
                self.loader.shutdown()
            self.loader = self.iterator = None
            self.life.set_flag(False)
        self.compare_kept()

    def _end(self) -> None:
        self.did.append(self.life.ending)
        if self.life.ending == "shutdown":
            return
        self.life.set_flag(False)
        next(iter(self.loader), None)
        if self.life.ending == "dropped":
            self.loader = self.iterator = None
            gc.collect()

    def _read_epoch(self, until: int | None) -> None:
        self.is_left = until is not None and until <= self.size and not self.expected[self.epoch].fails
        while self.at < self.size:
            if self.dice.random() < 0.6:
                self.dice.choice(events.possible(self))(self)
            else:
                self.read(self.dice.choice([1, 2, 5, 20, 100]))
        if self.is_left:
            self.did.append("leave")
            self.has_left = True
            return
        if self.dice.random() < 0.4:
            self.read_on()
            self.read(self.size)
        try:
            got, fails = next(self.iterator, self), False
        except ENDS as error:
            if not is_planned(error):
                raise
            got, fails = self, True
        if got is not self or fails != self.expected[self.epoch].fails:
            raise Differs(f"behind the last item of epoch {self.epoch} comes {'an error' if fails else got!r:.100}")
        self.did.append("end")
        if (self.has_others or self.dice.random() < 0.4) and self.epoch < len(self.life.epochs):
            self.did.append("between:")
            self.read_on(between=True)

    @property
    def has_others(self) -> bool:
        return self.workers is not None and not self.life.moves

    @property
    def size(self) -> int:
        return self.expected[self.epoch].size

    @property
    def at(self) -> int:
        return len(self.given)

    def read(self, count: int) -> None:
        count = min(count, self.size - self.at)
        self.did.append(f"read {count}")
        self.take(islice(self.iterator, count), count)

    def take(self, items: Iterator[Any] | list[Any], count: int) -> None:
        got = []
        for item in items:
            got.append(key(item))
            if len(self.kept) < self.life.keeps:
                self.kept.append((item, copy.deepcopy(got[-1])))
        try:
            self.expected[self.epoch].check(self.given, got, self.life.free)
        except Differs as error:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {error}") from None
        if len(got) != count:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {len(got)} items instead of {count}")
        self.given += got

    def compare_kept(self) -> None:
        for item, before in self.kept:
            if key(item) != before:
                raise Differs(f"an item that was kept has changed: it was {before!r:.200}")
        self.kept.clear()

    def state(self, ago: int = 0) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict(items_ago=ago, with_pipe=self.dice.choice([None, True, False]))
        describe(state)
        return state

    def put_aside(self, *states: dict[str, Any]) -> None:
        self.aside += [(self.epoch, state, list(self.given)) for state in states]

    def read_on(self, between: bool = False, reads_on: bool = True) -> None:
        life, dice = self.life, self.dice
        ends_first = dice.random() < 0.2
        if ends_first:
            self.did.append("shut down")
            self.loader.shutdown()
        ago = 0 if between or ends_first else min(dice.choice([0, 0, 1, 2]), self.loader._run.delivery.given)
        state = pickle.loads(pickle.dumps(self.state(ago)))
        at = self.at - ago
        more = dice.choice([0, 0, 1, 5]) if reads_on and not between and not ends_first else 0
        if more and not self.loader._is_paused:
            self.read(more)
        seeded = between and self.epoch + 1 < len(life.epochs) and life.epochs[self.epoch + 1][0] is not None
        # A seed must be set before the call of `iter`.
        way = dice.choice(["new", "new", "new", "new" if seeded else "after iter", "from state"])
        if life.moves:
            self.workers = dice.choice(["auto", *life.numbers()] if life.auto else life.numbers())
            if self.workers != life.workers:  # The number of shards in later epochs depends on the number of workers.
                for epoch in self.expected[self.epoch + bool(at) :]:
                    epoch.shares = None
        elif life.kind == "workers":
            # The number of workers changes only within an epoch, because a new epoch would have other shards.
            self.workers = None if between or self.is_left or not at else dice.choice(life.numbers())
        if life.method != "remote":
            life.method = dice.choice([method for method in life.methods if method != "remote"])
        self.did.append(f"go on {way} from {at}, {'as before' if self.workers is None else self.workers}")
        self._leave_loader()
        if way == "from state" and state["serialized_datapipe"] is not None:
            begin(99)
            self.loader = DataLoader2.from_state(state, life.service_of(self.workers))
        else:
            self.loader = life.made(self.workers)
            if way == "after iter":
                self.loader.seed(77)
                iter(self.loader)
            begin(99)
            if self._is_cut_off(lambda: self.loader.load_state_dict(state)):
                self.loader.shutdown()
                self.loader = life.made(self.workers)
                self.loader.load_state_dict(state)
        self.exits.clear()
        if not between:
            del self.given[at:]
            self.begin()

    def begin(self) -> None:
        if not self._is_cut_off(self._set_iterator):
            return
        if self.life.draws_in_main:
            raise Skipped("generators were drawn from")  # The interrupted attempt has already drawn its random numbers.
        # If pipes keep state between epochs, a new loader must resume from the state of the interrupted loader.
        if not self.has_left and (self.life.lasts or self.dice.random() < 0.5):
            try:
                state = pickle.loads(pickle.dumps(self.state()))
            except RuntimeError as error:
                if "the beginning of the next epoch was cut off" not in str(error):
                    raise
                raise Skipped("it is not known whether an epoch was left") from error
            self._leave_loader()
            self.loader = self.life.made(self.workers)
            begin(99)
            self.loader.load_state_dict(state)
        self._set_iterator()

    def _set_iterator(self) -> None:
        old, self.iterator = self.iterator, iter(self.loader)
        if self.has_left and self.dice.random() < 0.3 and old is not None and old is not self.iterator:
            try:
                next(old)
            except (RuntimeError, StopIteration):
                return
            raise Differs("an iterator went on after iter() was called again")

    def _is_cut_off(self, function: Callable[[], None]) -> bool:
        """Calls `function`, sometimes presses Ctrl-C during the call, and returns whether Ctrl-C has interrupted it."""
        is_main = threading.current_thread() is threading.main_thread()
        if not self.life.presses or not is_main or self.dice.random() < 0.8:
            function()
            return False
        with alarm(None):
            try:
                signal.signal(signal.SIGALRM, press)
                signal.setitimer(signal.ITIMER_REAL, self.dice.choice([1e-5, 1e-4, 1e-3, 5e-3]))
                function()
                signal.setitimer(signal.ITIMER_REAL, 0)
                return False
            except KeyboardInterrupt:
                self.did.append("cut off")
                return True

    def _leave_loader(self) -> None:
        if self.dice.random() < 0.8:
            self.loader.shutdown()
        else:  # Without references, garbage collection ends the loader.
            self.iterator = self.loader = None
            gc.collect()
        if self.dice.random() < 0.3:
            self.compare_kept()

    def check_aside(self) -> int:
        chosen = self.dice.sample(self.aside, min(3, len(self.aside)))
        for epoch, state, came in chosen:
            arguments = (self.life, self.expected, epoch, pickle.dumps(state), came)
            if self.dice.random() < self.life.away:
                elsewhere("lives.run", "resume_from", *arguments)
            else:
                workers = self.life.kind == "workers" and self.life.method != "remote"
                resume_from(*arguments, self.dice.choice(self.life.numbers()) if workers else None)
        return len(chosen)


def resume_from(
    life: Life, expected: list[Epoch], number: int, state: bytes, came: list[Any], workers: int | str | None = None
) -> None:
    position, epoch = pickle.loads(state)["iteration_state"], expected[number]
    given = 0 if position is None else position["given"]
    if not (given or life.moves):  # A new epoch needs a shard for each planned worker.
        workers = None
    begin(98)
    snapshots.SECONDS, snapshots.FACTOR = life.cadence
    life.arm(number)
    with life.made(workers) as loader:
        loader.load_state_dict(pickle.loads(state))
        until = epoch.size - given
        resumes = number + 1 < len(expected) and until and epoch.until is None and not (life.draws_in_main or life.free)
        resumes = resumes and (workers is None or life.moves)
        got = read_epoch(loader, None if resumes else until) if until else Epoch()
        try:
            epoch.check(came[:given], got, life.free)
        except Differs as error:
            raise Differs(f"from a state in the midst of epoch {number}, at {given}: {error}") from None
        if got.fails and life.free and life.armed[number]:
            return
        if len(got) != until:
            raise Differs(f"from a state in the midst of epoch {number}: {len(got)} items instead of {until}")
        if not resumes:
            return
        number += 1
        life.arm(number)
        if number < len(life.epochs) and life.epochs[number][0] is not None:
            loader.seed(life.epochs[number][0])
        if (got := read_epoch(loader, expected[number].size or None)) != expected[number][: expected[number].size]:
            raise Differs(f"epoch {number}, behind one that was loaded: {got!s:.200}")
    life.set_flag(False)


def check(life: Life) -> int:
    snapshots.SECONDS, snapshots.FACTOR = life.cadence
    before = set(children())
    expected = only_read(life)
    if is_known(life):
        compare(life, expected)
    begin()
    with busy(life.busy):
        run = Run(life, expected)
        try:
            run.live()
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
        raise Differs(f"processes were left behind after {run.did}: {list(map(shown, left))}")
    return len(run.did)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calm", action="store_true", help="without Ctrl-C at moments that follow from the clock")
    parser.add_argument("--blows", action="store_true", help="only lives that end by a blow")


def plan_of(seed: int, options: argparse.Namespace) -> Life:
    for number in range(seed * 1000, (seed + 1) * 1000):
        life = Life(number if options.blows else seed, tuple(options.start_methods.split(",")), options.blows or None)
        if life.blow is not None or not options.blows:
            break
    life.presses &= not options.calm
    return life


def is_quiet(life: Life) -> bool:
    return not (life.presses or life.auto)


DRIVER = Driver(plan_of, check, "things done", is_quiet=is_quiet, more=more)
