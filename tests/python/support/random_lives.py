"""Whole lives of random loaders: all that one may do to a loader, in any order, against one that is only read.

    python -m random_lives --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m random_lives --seed 17 --runs 1              # one of them again

A life has a pipeline, a service, and some epochs, of which some are left early and some begin with a seed of their own.
The items of a loader that is only read must come in the other loader, too, in which everything else happens: states
between two items and from signal handlers and threads, loaders that go on from them, also from older ones, before and
after `iter`, with other numbers of workers; `skip`, limits, other iterators, statistics; and deaths of processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from driving import drive, parser_of
from leftovers import children, told
from life_epochs import Bad, Epoch, read_epoch
from life_plans import Life, only_read
from pressing import alarm, press
from process_checks import kill_fork_server
from random_pipelines import Differs, begin, key
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, describe

#: How a process dies, or stops, and is killed because it hangs.
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGXCPU, signal.SIGSTOP]


class Inconclusive(Exception):
    """The items to come cannot be known."""


class Run:
    """A loader that lives, and those that take its place."""

    def __init__(self, life: Life, expected: list[Epoch]) -> None:
        self.life, self.expected = life, expected
        self.dice = random.Random(f"run {life.seed}")
        self.did: list[str] = []
        self.deaths = Counter[int]()
        #: States that were taken in the midst of things: the epoch, and the state.
        self.aside: list[tuple[int, dict[str, Any], list[Any]]] = []
        self.epoch = 0
        #: The items that came in this epoch; None for one that was passed over.
        self.given: list[Any] = []
        self.workers: int | str | None = None
        self.is_left = self.has_left = False
        self.loader: Any = life.made()
        if life.loader_seed is not None:
            self.loader.seed(life.loader_seed)
        self.iterator: Any = None

    def live(self) -> None:
        try:
            for seed, until in [*self.life.epochs, (None, None)]:
                if seed is not None:
                    self.loader.seed(seed)
                self.given = []
                self._begin()
                self.has_left = False
                self._read_epoch(until)
                self.epoch += 1
        finally:
            if self.loader is not None:
                self.loader.shutdown()
            self.loader = self.iterator = None

    # -- an epoch ----------------------------------------------------------------------------------

    def _read_epoch(self, until: int | None) -> None:
        self.is_left = until is not None and until <= self.size and not self.expected[self.epoch].fails
        while self.at < self.size:
            if self.dice.random() < 0.6:
                self.dice.choice(self._things())()
            else:
                self._read(self.dice.choice([1, 2, 5, 20, 100]))
        if self.is_left:
            self.did.append("leave")
            self.has_left = True
            return
        if self.dice.random() < 0.4:
            self._go_on()
            self._read(self.size)
        try:
            got, fails = next(self.iterator, self), False
        except Bad:
            got, fails = self, True
        if got is not self or fails != self.expected[self.epoch].fails:
            raise Differs(f"behind the last item of epoch {self.epoch} comes {'an error' if fails else got!r:.100}")
        self.did.append("end")
        if self.dice.random() < 0.4 and self.epoch < len(self.life.epochs):
            self.did.append("between:")
            self._go_on(between=True)

    @property
    def size(self) -> int:
        """How many items are read of the epoch."""
        return self.expected[self.epoch].size

    @property
    def at(self) -> int:
        """How many items came in this epoch."""
        return len(self.given)

    def _things(self) -> list[Callable[[], None]]:
        """The acts that are possible now."""
        things = [self._go_on, self._go_on, self._save, self._limit, self._iterate, self._look]
        if threading.current_thread() is threading.main_thread():
            things += [self._save_by_signal, self._interrupt] if self.life.presses else [self._save_by_signal]
        things.append(self._save_by_thread)
        if self.life.skips:
            things.append(self._skip)
        if self.life.kind == "workers" and self.workers != 0:
            things.append(self._halt)
            if self.life.restarts:
                things += [self._kill, self._kill, self._kill]
        return things

    def _iterate(self) -> None:
        if not self.loader._reset_iter:  # no item was asked for
            self.did.append("iter")
            self.iterator = iter(self.loader)

    def _look(self) -> None:
        self.did.append("look")
        self.loader.stats(), self.loader.diagnose(), repr(self.loader)

    def _skip(self) -> None:
        count = min(self.dice.choice([0, 1, 2, 7, 30]), self.size - self.at - self.is_left)
        self.did.append(f"skip {count}")
        skipped = self.loader.skip(count)
        if skipped != count:
            raise Differs(f"{skipped} items were skipped instead of {count}")
        self.given += [None] * count
        if self.dice.random() < 0.5:
            self.iterator = iter(self.loader)

    def _read(self, count: int) -> None:
        count = min(count, self.size - self.at)
        self.did.append(f"read {count}")
        self._take([key(item) for item in islice(self.iterator, count)], count)

    def _take(self, got: list[Any], count: int) -> None:
        """Compares what came."""
        try:
            self.expected[self.epoch].check(self.given, got, self.life.free)
        except Differs as error:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {error}") from None
        if len(got) != count:
            raise Differs(f"epoch {self.epoch} from item {self.at} on: {len(got)} items instead of {count}")
        self.given += got

    def _limit(self) -> None:
        count = self.dice.choice([1, 3, 10])
        if count >= self.size - self.at:
            return
        self.did.append(f"limit {count}")
        self.iterator.limit(count)
        self._take([key(item) for item in self.iterator], count)
        then = self.dice.random()
        if then < 0.2:
            self._go_on()  # whose iterator has no limit
            return
        if then < 0.5:
            self._save()
        elif then < 0.6 and self._kill in self._things():
            self._kill()
        self.iterator.resume()
        self.iterator.limit(None)

    # -- states ------------------------------------------------------------------------------------

    def _state(self, ago: int = 0) -> dict[str, Any]:
        state = self.loader.state_dict(items_ago=ago, with_pipe=self.dice.choice([None, True, False]))
        describe(state)
        return state

    def _save(self) -> None:
        self.did.append(f"state at {self.at}")
        self._put_aside(self._state())

    def _put_aside(self, *states: dict[str, Any]) -> None:
        self.aside += [(self.epoch, state, list(self.given)) for state in states]

    def _save_by_signal(self) -> None:
        """Reads on while a signal handler takes a state, whenever that is."""
        found: list[dict[str, Any]] = []
        self.did.append("signal")
        with alarm(self.dice.choice([1e-6, 1e-4, 1e-3]), lambda *_: found.append(self.loader.state_dict())):
            self._read(self.dice.choice([1, 5, 20]))
        self._put_aside(*found)

    def _save_by_thread(self) -> None:
        """Reads on while another thread takes states."""
        found: list[dict[str, Any]] = []
        failed: list[Exception] = []
        stop, loader = threading.Event(), self.loader

        def work() -> None:
            try:
                while not stop.is_set():
                    found.append(loader.state_dict())
                    stop.wait(0.0003)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        self.did.append("thread")
        thread.start()
        try:
            self._read(self.dice.choice([1, 5, 20]))
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]
        self._put_aside(*self.dice.sample(found, min(2, len(found))))

    def _interrupt(self) -> None:
        """Cuts the loop off by Ctrl-C, whenever that is; another loader goes on from the state that is saved then."""
        most = self.size - self.is_left  # one is to be asked of whoever leaves an epoch
        if self.at >= most:
            return
        got: list[Any] = []
        with alarm(None):
            try:
                signal.signal(signal.SIGALRM, press)
                signal.setitimer(signal.ITIMER_REAL, self.dice.choice([1e-6, 3e-5, 1e-4, 1e-3]))
                for item in self.iterator:
                    got.append(item)
                    if self.at + len(got) == most:
                        break
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
        self._take([key(item) for item in got], len(got))
        place = self.loader.state_dict()["iteration_state"]
        given = 0 if place is None else place["given"]
        if given - self.at not in (0, 1):  # the moment between the count and the loop is the interpreter's own
            raise Differs(f"{self.at} items of epoch {self.epoch} came, and {given} are counted")
        self.did.append(f"interrupted at {given}")
        self.given += [None] * (given - self.at)
        self._go_on(reads_on=False)

    def _go_on(self, between: bool = False, reads_on: bool = True) -> None:
        """Another loader takes the place of this one.

        Args:
            between: whether no epoch is under way.
            reads_on: whether this one may be read before that, so that the other goes on from an older place.
        """
        life, dice = self.life, self.dice
        ends_first = dice.random() < 0.2
        if ends_first:
            self.did.append("shut down")
            self.loader.shutdown()
        ago = 0 if between or ends_first else min(dice.choice([0, 0, 1, 2]), self.loader._run.delivery.given)
        state = pickle.loads(pickle.dumps(self._state(ago)))
        at = self.at - ago
        more = dice.choice([0, 0, 1, 5]) if reads_on and not between and not ends_first else 0
        if more and not self.loader._is_paused:
            self._read(more)
        seeded = between and self.epoch + 1 < len(life.epochs) and life.epochs[self.epoch + 1][0] is not None
        # A state that is loaded after `iter` is loaded into an epoch that has begun: no seed can be given for it any
        # more.
        way = dice.choice(["new", "new", "new", "new" if seeded else "after iter", "from state"])
        if life.moves and way != "from state":
            choices = [None, 1, 2, 3, 4, *([0] if life.shard == "filter" and not life.main else [])]
            self.workers = dice.choice(["auto", *choices] if life.auto else choices)
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
            if not self._is_cut_off(lambda: self.loader.load_state_dict(state)):
                self.loader.shutdown()
                self.loader = life.made(self.workers)
                self.loader.load_state_dict(state)
        self.deaths.clear()
        if not between:
            del self.given[at:]
            self._begin()

    def _begin(self) -> None:
        """Begins or goes on with an epoch, perhaps in spite of Ctrl-C."""
        if self._is_cut_off(self._set_iterator):
            return
        if self.life.draws_in_main:
            raise Inconclusive  # what the beginning has drawn from the global generators is gone
        # It is not known whether an epoch was left. Lasting state may have moved on in processes.
        if not self.has_left and (self.life.lasts or self.dice.random() < 0.5):
            try:
                state = pickle.loads(pickle.dumps(self._state()))
            except RuntimeError as error:
                if "the beginning of the next one was cut off" not in str(error):
                    raise
                raise Inconclusive from error
            self._leave_loader()
            self.loader = self.life.made(self.workers)
            begin(99)
            self.loader.load_state_dict(state)
        self._set_iterator()

    def _set_iterator(self) -> None:
        self.iterator = iter(self.loader)

    def _is_cut_off(self, function: Callable[[], None]) -> bool:
        """Calls a function, which Ctrl-C may cut off; whether it has come to its end."""
        if not self.life.presses or threading.current_thread() is not threading.main_thread():
            function()
            return True
        if self.dice.random() < 0.8:
            function()
            return True
        with alarm(None):
            try:
                signal.signal(signal.SIGALRM, press)
                signal.setitimer(signal.ITIMER_REAL, self.dice.choice([1e-5, 1e-4, 1e-3, 5e-3]))
                function()
                signal.setitimer(signal.ITIMER_REAL, 0)
                return True
            except KeyboardInterrupt:
                self.did.append("cut off")
                return False

    def _leave_loader(self) -> None:
        if self.dice.random() < 0.8:
            self.loader.shutdown()
        else:  # to the collector
            self.iterator = self.loader = None
            gc.collect()

    # -- deaths ------------------------------------------------------------------------------------

    def _victim(self) -> tuple[int, int] | None:
        """Which child, and its process; None while a thread of main is about to have all of them replaced."""
        service = self.loader.reading_service
        pids: list[int] = getattr(service, "reading_services", [service])[-1]._children.pids
        who = self.dice.randrange(max(1, len(pids)))
        return (who, pids[who]) if pids else None

    def _halt(self) -> None:
        """A process stands still for a moment."""
        if (victim := self._victim()) is None:
            return
        who, pid = victim
        _signal(pid, signal.SIGSTOP)
        timer = threading.Timer(0.005, _signal, [pid, signal.SIGCONT])
        self.did.append(f"halt {who}")
        timer.start()
        self._read(self.dice.choice([1, 5, 20]))
        timer.join()

    def _kill(self) -> None:
        """A process dies, now or while items are read."""
        if (victim := self._victim()) is None:
            return
        who, pid = victim
        if self.deaths[who] == 2:  # the third in a row is an error
            return
        self.deaths[who] += 1
        self.did.append(f"kill {who}")
        if self.life.method == "forkserver" and self.dice.random() < 0.5:
            self.did.append("kill the fork server")
            kill_fork_server()
        timer = threading.Timer(self.dice.choice([0.0, 0.0005, 0.002]), _signal, [pid, self.dice.choice(SIGNALS)])
        timer.start()
        if self.dice.random() < 0.5 or self.loader._is_paused:
            timer.join()
        else:
            self._read(self.dice.choice([1, 5, 20]))
            timer.join()

    def check_aside(self) -> int:
        """Goes on from states that were taken in the midst of things, as far as it is known what comes; how many."""
        chosen = self.dice.sample(self.aside, min(3, len(self.aside)))
        for epoch, state, came in chosen:
            place, expected = state["iteration_state"], self.expected[epoch]
            given = 0 if place is None else place["given"]
            begin(98)
            with self.life.made(self.workers if self.life.moves else None) as loader:
                loader.load_state_dict(pickle.loads(pickle.dumps(state)))
                until = expected.size - given
                got = read_epoch(loader, until) if until else []
                try:
                    expected.check(came[:given], got, self.life.free)
                except Differs as error:
                    raise Differs(f"from a state in the midst of epoch {epoch}, at {given}: {error}") from None
                if len(got) != until:
                    raise Differs(f"from a state in the midst of epoch {epoch}: {len(got)} items instead of {until}")
        return len(chosen)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def check(life: Life) -> int:
    """Runs a life; returns how many things were done in it."""
    snapshots.SECONDS, snapshots.FACTOR = life.cadence
    before = set(children())
    expected = only_read(life)
    begin()
    run = Run(life, expected)
    try:
        run.live()
        run.check_aside()
    except (Inconclusive, KeyboardInterrupt):  # a finaliser has held it back, and anything may be cut off by it
        return 0
    except Exception as error:
        error.add_note(f"did: {run.did}")
        raise
    left = set(children()) - before
    if left:
        raise Differs(f"processes were left behind after {run.did}: {list(map(told, left))}")
    return len(run.did)


def main() -> int:
    options = parser_of(__doc__).parse_args()
    methods = tuple(options.start_methods.split(","))
    return drive(options, lambda seed: Life(seed, methods), check, "things done")


if __name__ == "__main__":
    sys.exit(main())
