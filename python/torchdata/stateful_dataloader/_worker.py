"""What runs in a worker of a `StatefulDataLoader`: reads what main asks for, and sends the batches.

Role: the child's side. Main's orders come over one link, in the order in which they are to be obeyed: begin an epoch,
read this index, stop. Batches go out over another, which the engine's pump serves: its iterator (`_Batches`) takes an
order and returns the batch. An iterable dataset needs no orders; how far it runs ahead is what main grants.

A unit is (worker, number of the order, batch, news). `news` is a dict, mostly absent:

- "before", "after": the frozen place of the reading before this batch, or after it
- "failure": why there is no batch
- "ended": the iterable dataset has no more; "filler": nothing, to let another worker have the first turn
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy
import torch
import torch.utils.data
from torch.utils.data._utils.worker import _generate_state

import torchdata._engine.codec  # noqa: F401 - imported late, another thread's fork might copy the import half done
from torchdata import _engine
from torchdata._engine.crossing import Handle, SharedPickle
from torchdata._engine.entering import CommonSetup
from torchdata._engine.failures import describe
from torchdata._engine.garbage import settle
from torchdata._engine.torch_worker import tell_torch
from torchdata._native import Collector, Link, Sender
from torchdata.stateful_dataloader._cadence import Cadence, Watch, next_due
from torchdata.stateful_dataloader._frozen import freeze
from torchdata.stateful_dataloader._reading import Reader, Reading

__all__ = ["MAIN", "NO_ORDER", "Job", "Setup", "run_worker"]

#: Index of main's bell.
MAIN = 0
#: The number of a unit that answers no order.
NO_ORDER = -1
#: Seconds between two looks at whether shared memory can be given back.
_IDLE = 1.0

#: (worker, order, batch, news), as said above.
Unit = tuple[int, int, Any, dict[str, Any] | None]


@dataclass
class Job:
    """What the workers do; the same for all of them, so that it is pickled once."""

    reading: Reading
    init_fn: Callable[[int], Any] | None
    base_seed: int
    persistent: bool
    #: After how many batches a worker tells its place.
    every: int = 1


@dataclass
class Setup:
    """Everything that one worker needs."""

    worker_id: int
    num_workers: int
    #: Whether it reads as far as main has room, and needs no orders to: an iterable dataset, for one epoch.
    iterates: bool
    job: Job | SharedPickle
    common: CommonSetup
    orders: Handle[Link]
    batches: Handle[Link]

    @property
    def name(self) -> str:
        """What the worker is called in messages, as torch does."""
        return f"DataLoader worker process {self.worker_id}"


def run_worker(setup: Setup) -> None:
    """The target of the process."""
    if setup.common.enter(setup.name, [setup.orders.shared, setup.batches.shared]):
        _Worker(setup).run()


def _refuse(_peer: int, description: Any) -> NoReturn:
    raise RuntimeError(f"main sent an error: {description!r}")


class _Worker:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        bells, own = setup.common.bells.shared, 1 + setup.worker_id
        self.orders = Collector([setup.orders.shared], bells, own, [MAIN], _refuse, name="main")
        self.sender = Sender([setup.batches.shared], bells, own, [MAIN])
        #: An order that was taken while an epoch ran, and ends it.
        self.pending: tuple[Any, ...] | None = None
        #: Why nothing can be read.
        self.failure: tuple[Any, ...] | None = None

    def run(self) -> None:
        try:
            self._initialise()
        except BaseException as error:
            self.failure = describe(error, self.setup.name)
        settle(self.setup.common.gc_thresholds)
        left: list[Any] = []
        while True:
            order, self.pending = self.pending or self.next_order(), None
            if order[0] == "stop":
                gc.unfreeze()  # cycles in what is the user's are to be finalised where the interpreter ends in order
                return
            if order[0] == "epoch":
                self._work_off(left)
                left = []
                self._run_epoch(*order[1:])
            else:
                left.append(order[1])

    def _work_off(self, indices: list[Any]) -> None:
        """Reads what was ordered in an epoch that was broken off, as torch's workers do.

        So how far a dataset and its generators have come does not depend on how fast this worker was.
        """
        if self.reader is None or self.failure is not None:
            return
        for index in indices:
            if self.reader.has_ended:
                return
            with contextlib.suppress(Exception):
                self.reader.read(self.index_of(index))
        self.watch.look()

    def index_of(self, ordered: Any) -> Any:
        """What is read for an order."""
        return self.job.reading.iterable_index() if self.job.reading.is_iterable else ordered

    def next_order(self) -> tuple[Any, ...]:
        """Waits for an order, and gives shared memory back that is not used any more."""
        order = None
        while order is None:
            order = self.orders.receive(0, _IDLE if self.sender.tidy() else None)
        return order  # type: ignore[no-any-return]

    def _initialise(self) -> None:
        torch.set_num_threads(1)  # the workers are the parallelism
        setup = self.setup
        job = setup.job.load() if isinstance(setup.job, SharedPickle) else setup.job
        self.job: Job = job
        _engine.current_sender = self.sender
        _seed(job.base_seed, setup.worker_id)
        self._tell_torch()
        self.reader: Reader | None = None
        self.watch: Watch

    def _tell_torch(self) -> None:
        tell_torch(self.setup.worker_id, self.setup.num_workers, self.job.reading.dataset)

    def _run_epoch(self, epoch: int, shared_seed: int | None, place: Any, fresh: bool, filler: bool) -> None:
        """Reads until main has ordered something else, or has no room for what was read and wants it no more."""
        self.sender.start_epoch(epoch)
        batches = _Batches(self, filler)
        try:
            if self.failure is None:
                self._begin(batches, shared_seed, place, fresh)
        except BaseException as error:
            self.failure = describe(error, self.setup.name)
        while True:
            try:
                self.sender.pump(batches)
                return
            except BaseException as error:  # the batch cannot be sent
                batches.failed_to_leave(describe(error, self.setup.name))

    def _begin(self, batches: _Batches, shared_seed: int | None, place: Any, fresh: bool) -> None:
        reading = self.job.reading
        if shared_seed is not None:  # a pipe of torch's kind
            from torch.utils.data.graph_settings import apply_random_seed

            generator = torch.Generator()
            generator.manual_seed(shared_seed)
            reading.dataset = apply_random_seed(reading.dataset, generator)
            self._tell_torch()
        if self.reader is None:
            if self.job.init_fn is not None:
                self.job.init_fn(self.setup.worker_id)
            self.watch = Watch()
            self.reader = Reader(reading, self.watch.states)
        if place is not None:
            self.reader.restore(place)
        if place is None or fresh:
            self.reader.begin()
        batches.begin(self.reader, went_on=place is not None and not fresh)


class _Batches(Iterator[Unit]):
    """The units of one epoch, for the pump.

    Args:
        worker: whose orders are taken.
        filler: whether the first unit is none.
    """

    def __init__(self, worker: _Worker, filler: bool) -> None:
        self._worker = worker
        self._iterates = worker.setup.iterates
        self._reader: Reader | None = None
        #: Units that go before all others.
        self._owed: list[Unit] = []
        self._order = NO_ORDER
        #: What the next unit brings along.
        self._news: dict[str, Any] | None = None
        #: What the last one did.
        self._brought: dict[str, Any] | None = None
        self._is_over = False
        #: Whether the place in the dataset is told, and not just that of the generators.
        self._takes_places = False
        self._cadence = Cadence(worker.job.every) if worker.failure is None else Cadence(1)
        self._last = b""
        if filler:
            self._owed.append(self._unit(None, {"filler": True}))

    def begin(self, reader: Reader, went_on: bool) -> None:
        """Sees what is read, and takes its place where that may be wanted.

        Args:
            reader: what reads; its epoch has begun.
            went_on: whether it went on from a saved place, which main has.
        """
        self._reader = reader
        self._takes_places = reader.is_stateful and reader.restores_place
        self._watches = self._takes_places or not self._worker.job.reading.is_iterable
        if not went_on or self._takes_places:
            self._worker.watch.look()
            self._news = {"before": self._frozen_place()}

    def __next__(self) -> Unit:
        if self._owed:
            return self._owed.pop()
        if self._is_over:
            raise StopIteration
        index = self._worker.index_of(None if self._iterates else self._ordered())
        news, self._news = self._news, None
        reader = self._reader
        if reader is None:
            self._is_over = self._iterates
            return self._unit(None, {"failure": self._worker.failure})
        began = time.monotonic()
        try:
            batch = reader.read(index)
        except StopIteration as error:
            if self._worker.job.reading.is_iterable:
                return self._end(news)
            return self._unit(None, {**(news or {}), "failure": describe(error, self._worker.setup.name)})
        except BaseException as error:
            return self._unit(None, {**(news or {}), "failure": describe(error, self._worker.setup.name)})
        if self._watches and (frozen := self._place_after(began)) is not None:
            news = {**(news or {}), "after": frozen}
        return self._unit(batch, news)

    def _place_after(self, began: float) -> bytes | None:
        """The place behind the batch that was just read, if it is to be told."""
        watch, cadence = self._worker.watch, self._cadence
        now = time.monotonic()
        looks, first = now >= watch.due, False
        if looks:
            first = watch.look()
            watch.due = next_due(now, time.monotonic() - now)
        if not (self._takes_places or watch.moved):
            return b"" if looks else None  # nothing that is to be read once more
        if not cadence.is_due(now, now - began) and not first:  # a place without that generator is none
            return None
        frozen = self._frozen_place()
        cadence.took(time.monotonic(), time.monotonic() - now)
        return frozen

    def _ordered(self) -> Any:
        """The index that main orders next."""
        order = self._worker.next_order()
        if type(order[0]) is not int:
            self._worker.pending = order
            self._is_over = True
            raise StopIteration
        self._order, index = order
        return index

    def _end(self, news: dict[str, Any] | None) -> Unit:
        self._is_over = True
        news = {**(news or {}), "ended": True}
        if self._takes_places or self._worker.job.persistent:  # later epochs depend on it
            self._worker.watch.look()
            news["after"] = self._frozen_place()
        return self._unit(None, news)

    def _unit(self, batch: Any, news: dict[str, Any] | None) -> Unit:
        self._brought = news
        return self._worker.setup.worker_id, self._order, batch, news

    def _frozen_place(self) -> bytes:
        """Where the reading stands; empty if that is where it stood."""
        assert self._reader is not None
        frozen = freeze(self._reader.place())
        self._reader.took(frozen)
        if frozen == self._last:
            return b""
        self._last = frozen
        return frozen

    def failed_to_leave(self, failure: tuple[Any, ...]) -> None:
        """Puts an error in the place of the unit that could not be sent."""
        self._owed.append(self._unit(None, {**(self._brought or {}), "failure": failure}))


def _seed(base_seed: int, worker_id: int) -> None:
    """Seeds the worker's generators as torch does."""
    seed = base_seed + worker_id
    random.seed(seed)
    torch.manual_seed(seed)
    numpy_seed: Any = _generate_state
    numpy.random.seed(numpy_seed(base_seed, worker_id))
