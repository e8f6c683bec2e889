"""Epochs of a random loader: main carries out the plan's actions, and judges each item that comes."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hosts import LocallyRemote
from random_loaders.graphs import Collected
from random_loaders.items import ids, keys, leaves
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, SequentialReadingService
from torchdata.dataloader2.reading_service import ReadingServiceInterface


class Wrong(AssertionError):
    """An epoch was not what it should have been."""


class Touched(ReadingServiceInterface):
    """Gives the service behind it functions for pause, resume and limit that change something in every process."""

    def initialize(self, datapipe):
        return datapipe

    def _pause(self, pause_fn=None):
        return touch

    def _resume(self, resume_fn=None):
        return touch

    def _limit(self, num_batches, limit_fn=None):
        return touch


def touch(datapipe, _count=None):
    datapipe.touched = getattr(datapipe, "touched", 0) + 1


class Run:
    """One loader of a plan in this process, from its making to its end."""

    def __init__(self, setup, folder, name, say=print):
        self.setup, self.name, self.say = setup, name, say
        self.flags = []
        for node in setup.fails:
            self.flags.append(Path(folder) / f"{name}-{node.number}-fails")
            node.function.flag = str(self.flags[-1])
        self.loader = DataLoader2(self._pipe(), reading_service=self._service())
        self.whole = setup.expected()
        #: The epoch under way: the seed that it follows from, and its number after that.
        self.ident = (None, -1)
        self.seed = None
        #: Whether the next `iter` begins an epoch, rather than taking over one of which no item was asked.
        self.begins = True
        self.tags = {}
        self.orders = {}
        self.kept = []

    def _pipe(self):
        pipe = self.setup.graph.build()
        if self.setup.main is None:
            return pipe
        collected = next(node for node in self.setup.main.walk() if isinstance(node, Collected))
        collected.options["pipe"] = lambda: pipe
        return self.setup.main.build()

    def _service(self):
        if self.setup.method == "remote":  # behind carriers, as on other machines
            service = LocallyRemote(self.setup.workers, **self.setup.options)
        else:
            service = MultiProcessingReadingService(self.setup.workers, self.setup.method, **self.setup.options)
        return SequentialReadingService(Touched(), service) if self.setup.functions else service

    # -- what main does ------------------------------------------------------------------------------------------

    def iterator(self):
        """`iter(loader)`, with a note of which epoch that begins."""
        iterator = iter(self.loader)
        if self.begins:
            seed, number = self.ident
            self.ident = (seed, number + 1) if self.seed is None else (self.seed, 0)
            self.seed = None
        self.begins = False
        return iterator

    def epoch(self, number, action, other=None):
        """Carries out one action, and checks what came."""
        self.say(f"{self.name}: epoch {number}")
        if action.seed is not None:
            self.seed = action.seed
            self.loader.seed(action.seed)
        taken_over = not self.begins
        if action.armed is not None:
            self.flags[action.armed].touch()
        try:
            got, error, complete = self._carry_out(action, other)
        finally:
            for flag in self.flags:
                flag.unlink(missing_ok=True)
        ending = f"{type(error).__name__}" if error else "complete" if complete else "left"
        self.say(f"{self.name}: epoch {number}: {len(got)} items, {ending}")
        self.judge(got, error, complete, None if taken_over else action.armed, action.armed)
        if action.rest:
            time.sleep(action.rest)

    def _carry_out(self, action, other):
        if action.before is not None:
            first = self.iterator()
            for _ in islice(first, action.before):
                pass
            self.begins = action.before > 0
            iterator = self.iterator()
            try:
                next(first)
            except RuntimeError as error:
                if "invalidated" not in str(error):
                    raise
            else:
                raise Wrong("an iterator went on after iter() was called again")
        else:
            iterator = self.iterator()
        got, ending = [], []

        def iterate():
            try:
                ending.append((None, self._take(iterator, action, other, got)))
            except BaseException as error:
                ending.append((error, False))

        if action.thread:
            thread = threading.Thread(target=iterate, name="reads the loader")
            thread.start()
            thread.join()
        else:
            iterate()
        if not action.drop:
            self.left = iterator  # lives until the next epoch's takes its place
        else:
            self.left = None
        return got, *ending[0]

    def _take(self, iterator, action, other, got):
        """Appends the items' ids to `got`; whether they were all."""
        if action.take == 0:
            return False
        self.begins = True
        dice = random.Random(len(got))
        others = None
        for item in self._limited(iterator, action):
            got.append(ids(item))
            if len(self.kept) < action.keep:
                self.kept.append((item, got[-1]))
            if len(got) == action.take:
                return False
            if action.slow:
                time.sleep(dice.uniform(0, action.slow))
            if other is not None and (others is None or dice.random() < 0.5):
                others = others or other.reading()
                next(others, None)
            self._progress(got)
        if others is not None:
            for _ in others:
                pass
        return True

    def _progress(self, got):
        if len(got) % 100 == 0:
            self.say(f"{self.name}: {len(got)} items so far")

    @staticmethod
    def _limited(iterator, action):
        if action.limit is None:
            yield from iterator
            return
        iterator.limit(action.limit)
        while True:
            count = 0
            for item in iterator:
                count += 1
                yield item
            if count < action.limit:
                return
            time.sleep(action.paused)
            iterator.resume()

    def reading(self):
        """Reads one whole epoch bit by bit, while another loader is read; checks it at its end."""
        got = []
        self.say(f"{self.name}: begins")
        iterator = self.iterator()
        self.begins = True
        for item in iterator:
            got.append(ids(item))
            yield
        self.say(f"{self.name}: {len(got)} items")
        self.judge(got, None, True, None, None)

    # -- what is right -------------------------------------------------------------------------------------------

    def judge(self, got, error, complete, armed, perhaps):
        """Whether this may come of an epoch.

        Args:
            got: the ids.
            error: what ended it.
            complete: whether it ended by itself, without an error.
            armed: the function that fails for sure.
            perhaps: the function that may fail, as it was armed while the epoch ran already.
        """
        self._judge_tags(got)
        found = [keys(item) for item in got]
        if error is not None:
            if perhaps is None:
                raise error
            self._judge_error(error, self.setup.fails[perhaps].function.kind)
            complete = False
        elif complete and armed is not None and self.setup.expected(armed).raises:
            raise Wrong(f"an epoch of {len(got)} items ended, although {self.setup.fails[armed]!r} fails in it")
        if self.setup.exact:
            self._judge_order(found, complete)
        else:
            self._judge_contents(found, complete)
        if complete and self.setup.options["in_order"] and self.ident[0] is not None:
            before = self.orders.setdefault(self.ident, got)
            if before != got:
                raise Wrong(f"seed and epoch {self.ident} gave another order before: {difference(got, before)}")

    @staticmethod
    def _judge_error(error, kind):
        if kind != "exit":
            right = type(error).__name__ == {"error": "Provoked", "odd": "Odd"}[kind]
        else:  # sys.exit in a child
            right = isinstance(error, Exception) and "process" in str(error)
        if not right:
            raise Wrong(f"the function's {kind} came as {error!r}") from error

    def _judge_tags(self, got):
        for tag in {one >> 32 for one in leaves(got)} - {0}:
            if self.tags.setdefault(tag, self.ident) != self.ident:
                raise Wrong(f"an item of the epoch {self.tags[tag]} came in the epoch {self.ident}")

    def _judge_order(self, found, complete):
        expected = self.whole.items if complete else self.whole.items[: len(found)]
        if found != expected:
            raise Wrong(difference(found, expected))

    def _judge_contents(self, found, complete):
        # A shuffle, or main's batches of what came in any order, may put anything into one batch.
        got, expected = Counter(leaves(found)), Counter(leaves(self.whole.items))
        if got - expected:
            raise Wrong(f"{(got - expected).total()} items too many: {some(got - expected)}")
        if complete and expected - got:
            missing = expected - got
            raise Wrong(f"{missing.total()} of {expected.total()} items are missing: {some(missing)}")
        self._judge_workers(found)

    def _judge_workers(self, found):
        """Out of order, the items of one worker still come in its order, where an item tells who sent it."""
        kinds = {type(node).__name__ for node in self.setup.graph.walk()}
        if not kinds.isdisjoint({"Shuffled", "Dispatched"}):
            return  # it does not follow from the model which worker has an item
        places = {}
        for place, (item, worker) in enumerate(zip(self.whole.items, self.whole.workers, strict=False)):
            if repr(item) in places:
                return
            places[repr(item)] = place, worker
        latest = {}
        for item in found:
            place, worker = places.get(repr(item), (None, None))
            if place is None:
                return  # no worker alone sends it
            if place < latest.get(worker, -1):
                raise Wrong(f"{item!r} of worker {worker} came after one that it sent later")
            latest[worker] = place

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, ending):
        """Ends the loader, and looks whether what main has kept is still what it was."""
        self.say(f"{self.name}: {ending}")
        self.left = None
        if ending != "shutdown":
            next(self.iterator(), None)
        if ending == "dropped":
            self.loader = None
            gc.collect()
        else:
            self.loader.shutdown()
        for item, before in self.kept:
            if ids(item) != before:
                raise Wrong(f"an item that was kept has changed: it was {before!r}")
        self.kept.clear()
        self.loader = None


def difference(found, expected):
    """Where two lists differ first, and how."""
    with suppress(StopIteration):
        place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
        return f"item {place} of {len(found)} is {found[place]!r:.200} instead of {expected[place]!r:.200}"
    return f"{len(found)} items instead of {len(expected)}, equal as far as they go"


def some(counter):
    return ", ".join(f"{item}" for item in list(counter.elements())[:5])
