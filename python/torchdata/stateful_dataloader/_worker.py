"""What runs in a worker of a `StatefulDataLoader`: reads what main asks for, and sends the batches.

Role: the child's side, the program of a group of the engine. Main's orders come over the link for commands, in the
order in which they are to be obeyed: begin an epoch, read this index, stop. Batches go out over another link, which the
engine's pump serves: its iterator (`Batches`) takes an order and returns the batch. An iterable dataset needs no
orders; how far it runs ahead is what main grants.

A worker runs one shard: its part of the dataset, with its own reader, random numbers and worker info. If the epoch of
a state was begun by more workers, a worker runs several shards in turn, each with a copy of the dataset.

A unit is (shard, number of the order, batch, news). `news` is a dict, mostly absent:

- "before", "after": the frozen place of the reading before this batch, or after it
- "failure": why there is no batch
- "skipped": what was skipped of it; "seen": how many samples it accounts for with these, if they are not those of its
  order; "empty": there is no batch; "left": the places of indices that were read, for another one
- "digest": a checksum of some of the samples so far, of a stream without a state, where it has changed
- "ended": the iterable dataset has no more; "filler": nothing, to let another worker have the first turn
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from signal import strsignal
from typing import Any, ClassVar

import torch
import torch.utils.data

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.items.failures import describe
from torchdata._engine.items.torch_worker import seed_worker, show_worker, tell_torch
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.workers.child import Child
from torchdata._engine.workers.program import Program, Runner
from torchdata._observe.stats.batches import bind_reading
from torchdata._observe.stats.counting import Counting
from torchdata.datapipes._pipe.state.exchanging import ShardGlobals
from torchdata.stateful_dataloader._cadence import Cadence, Watch
from torchdata.stateful_dataloader._copying import Copies
from torchdata.stateful_dataloader._frozen import freeze
from torchdata.stateful_dataloader._generators import GLOBAL, Moment, set_all
from torchdata.stateful_dataloader._reading import Reader, Reading
from torchdata.stateful_dataloader._shipping import holds_shared_memory
from torchdata.stateful_dataloader._skipping import NOTHING

__all__ = ["NO_ORDER", "Batches", "Job", "Received", "Shard", "Start"]

#: The number of a unit that answers no order.
NO_ORDER = -1


@dataclass
class Received:
    """What main has received in this epoch of one that has died, for the one that takes its place.

    Args:
        account: units, and their checksum.
        indices: what was read for those of them that the place does not tell of.
        ended: whether the iterable dataset had no more.
    """

    account: tuple[int, int]
    indices: list[Any]
    ended: bool


@dataclass
class Start:
    """How a shard begins an epoch.

    Args:
        place: the place to go on from; None for the beginning.
        filler: whether its first unit is none, to let another shard have the first turn.
        received: what main has received of the one before it, where it takes the place of one that has died.
    """

    place: Any
    filler: bool = False
    received: Received | None = None


#: (shard, order, batch, news), as said above.
Unit = tuple[int, int, Any, dict[str, Any] | None]


class Shard:
    """What reads one share of the dataset, from epoch to epoch.

    Args:
        job: what is done, with the shard's own dataset.
        number: its number.
        name: what the process is called in messages.
        order: returns the index that main orders next.
        is_local: whether this is the process of the program, which gets exceptions as they are.
        counting: the counters of the process; None if batches are not timed.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        name: str,
        order: Callable[[], Any] | None = None,
        is_local: bool = False,
        counting: Counting | None = None,
    ) -> None:
        self.job, self.number, self.name, self.is_local = job, number, name, is_local
        self.order, self.counting = order, counting
        #: What it has of the process while another shard runs.
        self.globals = ShardGlobals()
        #: Whether this epoch is read as far as main has room, and needs no orders.
        self.iterates = False
        self.reader: Reader | None = None
        self.watch: Watch
        #: Why nothing can be read.
        self.failure: Any = None
        if job.num_shards:
            seed_worker(job.base_seed, number)
        else:  # it goes on with what the program has read
            set_all(job.generators)
        self._tell_torch()

    @classmethod
    def failed(cls, number: int, name: str, order: Callable[[], Any], failure: Any) -> Shard:
        """One of which nothing can be read."""
        shard = cls.__new__(cls)
        shard.number, shard.name, shard.order, shard.is_local = number, name, order, False
        shard.reader, shard.failure = None, failure
        return shard

    def _tell_torch(self) -> None:
        job = self.job
        if not job.num_shards:
            torch.utils.data._utils.worker._worker_info = None
        else:
            tell = show_worker if self.is_local else tell_torch
            tell(self.number, job.num_shards, job.reading.dataset)

    def described(self, error: BaseException) -> Any:
        """An exception as main gets it."""
        return error if self.is_local else describe(error, self.name)

    def index_of(self, ordered: Any) -> Any:
        """What is read for an order."""
        return self.job.reading.iterable_index() if self.job.reading.is_iterable else ordered

    def work_off(self, indices: list[Any]) -> None:
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

    def begin_epoch(self, iterates: bool, shared_seed: int | None, fresh: bool, start: Start) -> Batches:
        """Begins an epoch: its units, for the pump.

        Args:
            iterates: whether it needs no orders.
            shared_seed: what pipes of torch's kind are seeded with.
            fresh: the epoch of the place is over: only what outlives it is taken from there.
            start: where it begins.
        """
        self.iterates, place, received = iterates, start.place, start.received
        batches = Batches(self, start.filler)
        try:
            if self.failure is None:
                self._begin(shared_seed, place, fresh)
                has_ended = received is not None and (received.ended or not self._read_again(received.indices))
                went_on = place is not None and not fresh
                assert self.reader is not None
                batches.begin(self.reader, went_on, told=received is not None and bool(received.indices))
                batches.is_over = has_ended
        except BaseException as error:
            if self.is_local:
                raise
            self.failure = self.described(error)
        if self.failure is not None and received is not None:
            batches.is_over = iterates and bool(received.indices)
        return batches

    def repeat(self, shared_seed: int | None, place: Any, fresh: bool, indices: list[Any]) -> None:
        """Reads an epoch that is over once more, and drops it: later ones depend on it."""
        try:
            if self.failure is None:
                self._begin(shared_seed, place, fresh)
                self._read_again(indices)
        except BaseException as error:
            self.failure = self.described(error)

    def _read_again(self, indices: list[Any]) -> bool:
        """Reads, and drops, what the one had read that had this place before; False where that was the end."""
        assert self.reader is not None
        is_whole = True
        for index in indices:
            try:
                self.reader.read(self.index_of(index))
            except StopIteration:
                if self.job.reading.is_iterable:
                    is_whole = False
                    break
            except Exception:  # it was reported
                pass
        self.watch.look()
        return is_whole

    def _begin(self, shared_seed: int | None, place: Any, fresh: bool) -> None:
        reading = self.job.reading
        if shared_seed is not None:  # a pipe of torch's kind
            from torch.utils.data.graph_settings import apply_random_seed

            generator = torch.Generator()
            generator.manual_seed(shared_seed)
            reading.dataset = apply_random_seed(reading.dataset, generator)
            self._tell_torch()
        if self.reader is None:
            if self.job.init_fn is not None:
                self.job.init_fn(self.number)
            self.watch = Watch([] if self.job.num_shards else GLOBAL)
            self.reader = Reader(reading, self.watch.states)
            if self.counting is not None:
                how = reading.dataset, reading.is_iterable, reading.collate_fn
                self.reader.time_by(bind_reading(self.counting, *how, hands_out=self.is_local)[0])
        self.watch.look()  # `begin` may take a place at the end of the last epoch
        if place is not None:
            self.reader.restore(place)
        if place is None or fresh:
            self.reader.begin()


class _Worker:
    is_interrupted: ClassVar[bool] = False

    def __init__(self, child: Child) -> None:
        self.child, self.setup, self.sender = child, child.setup, child.sender
        #: An order that was taken while an epoch ran, and ends it.
        self.pending: tuple[Any, ...] | None = None
        #: Why nothing can be read.
        self.failure: tuple[Any, ...] | None = None
        self.shards: list[Shard] = []
        #: Which of them runs.
        self._entered = 0
        #: What was ordered and not read in an epoch that was broken off.
        self._left: list[Any] = []

    def prepare(self, program: Job) -> None:
        """See `Runner`."""
        for number in self.setup.shards:
            if self.shards:
                self.shards[self._entered].globals.leave()
            job = program if program.copies is None else program.copied()
            self._entered = len(self.shards)
            self.shards.append(Shard(job, number, self.setup.name, self._ordered, counting=self.child.counting))

    def obey(self, command: tuple[Any, ...]) -> bool:
        """See `Runner`."""
        order: tuple[Any, ...] | None = command
        while order is not None:
            if order[0] == "stop":
                return False
            if order[0] == "epoch":
                left, self._left = self._left, []
                if left and self.shards:
                    self.shards[0].work_off(left)
                self._run_epoch(*order[1:])
            elif order[0] == "repeat":
                if self.shards:
                    self.shards[0].repeat(*order[1:])
            else:
                self._left.append(order[1])
            order, self.pending = self.pending, None
        return True

    def _ordered(self) -> tuple[int, Any]:
        """The number and the index of main's next order; ends the epoch if it is another command."""
        order = self.child.next_command()
        if type(order[0]) is not int:
            self.pending = order
            raise StopIteration
        number, index = order
        return number, index

    def _enter(self, shard: int) -> None:
        """Lets a shard have the process, which another one has had."""
        if shard != self._entered and self.failure is None:
            self.shards[self._entered].globals.leave()
            self._entered = shard
            self.shards[shard].globals.enter()

    def _run_epoch(
        self, epoch: int, iterates: bool, shared_seed: int | None, fresh: bool, starts: Sequence[Start]
    ) -> None:
        """Reads until main has ordered something else, or has no room for what was read and wants it no more."""
        self.child.counting.begin(epoch)
        links = [(one.received.account if one.received is not None else (0, 0), 0, None) for one in starts]
        self.sender.start_epoch(epoch, 1, links if any(one.received is not None for one in starts) else None)
        if self.failure is not None:
            name = self.setup.name
            self.shards = [Shard.failed(number, name, self._ordered, self.failure) for number in self.setup.shards]
        each = []
        for place, (shard, start) in enumerate(zip(self.shards, starts, strict=True)):
            if self.failure is None:
                self._enter(place)
            each.append(shard.begin_epoch(iterates, shared_seed, fresh, start))
        batches = each[0] if len(each) == 1 else tuple(each)
        while True:
            try:
                self.sender.pump(batches, self._enter)
                return
            except BaseException as error:  # the batch cannot be sent
                each[self._entered].failed_to_leave(describe(error, self.setup.name))


@dataclass
class Job(Program):
    """What the workers do; the same for all of them, so that it is pickled once."""

    runner: ClassVar[type[Runner]] = _Worker
    #: As torch calls them.
    worker_name: ClassVar[str] = "DataLoader worker process {}"
    stage: ClassVar[str] = "reading batches"
    item: ClassVar[str] = "batch"
    mended: ClassVar[str] = "dataset or collate_fn"

    reading: Reading
    init_fn: Callable[[int], Any] | None
    base_seed: int
    persistent: bool
    #: After how many batches a worker tells its place.
    every: int = 1
    #: How many shards there are. 0 for one that goes on where a program without workers was: it has no worker info, and
    #: these global generators.
    num_shards: int = 0
    generators: Moment = field(default_factory=dict)
    #: Whether the workers end with their first epoch, as the next one has another number of shards.
    lasts_one_epoch: bool = False
    #: Copies of the dataset and the functions, if processes run several shards; they are missing here then.
    copies: Copies | None = None

    def copied(self) -> Job:
        """The job of another shard in the same process."""
        assert self.copies is not None
        reading, init_fn = self.copies.make()
        return replace(self, reading=reading, init_fn=init_fn, copies=None)

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """Says what to do."""
        return (
            "StatefulDataLoader: the dataset, collate_fn or worker_init_fn cannot be pickled, which start method "
            f"{start_method!r} needs ({type(error).__name__}: {error}); open files, locks and connections in the "
            "worker, when they are first used"
        )

    def holds_shared_memory(self) -> bool:
        """Whether it has tensors in shared memory, which are to stay there."""
        return self.copies is not None or holds_shared_memory(self)

    @classmethod
    def exit_error(
        cls, process: ChildProcess, worker: int | None, text: str | None = None, item: int | None = None
    ) -> WorkerExitedError:
        """In torch's words, too, which programs match."""
        error = super().exit_error(process, worker, text, item)
        text = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {error}"
        if process.exitcode is not None and process.exitcode < 0:
            text += f". DataLoader worker (pid {process.pid}) is killed by signal: {strsignal(-process.exitcode)}."
        return WorkerExitedError(text, worker, process.exitcode, cls.stage, item)


class Batches(Iterator[Unit]):
    """The units of one epoch, for the pump.

    Args:
        shard: what is read.
        filler: whether the first unit is none.
    """

    def __init__(self, shard: Shard, filler: bool) -> None:
        self._shard = shard
        self._iterates = shard.iterates
        self._reader: Reader | None = None
        #: Units that go before all others.
        self._owed: list[Unit] = []
        self._order = NO_ORDER
        #: What the next unit brings along.
        self._news: dict[str, Any] | None = None
        #: What the last one did.
        self._brought: dict[str, Any] | None = None
        #: Whether no more units come.
        self.is_over = False
        #: Whether the place in the dataset is told, and not just that of the generators.
        self._takes_places = False
        self._cadence = Cadence(shard.job.every) if shard.failure is None else Cadence(1)
        #: Until when no place is told, and nothing is looked at, by the clock.
        self._due = 0.0
        self._last = b""
        self._digest: int | None = None
        if filler:
            self._owed.append(self._unit(None, {"filler": True}))

    @property
    def news(self) -> dict[str, Any]:
        """What the next unit brings along, apart from its batch."""
        return self._news or {}

    def begin(self, reader: Reader, went_on: bool, told: bool = False) -> None:
        """Sees what is read, and takes its place where that may be wanted.

        Args:
            reader: what reads; its epoch has begun.
            went_on: whether it went on from a saved place, which main has.
            told: whether main has units of this epoch that it has not looked at: a place before the next one would come
                too early.
        """
        self._reader, self._digest = reader, reader.digest
        self._takes_places = reader.is_stateful and reader.restores_place
        self._watches = self._takes_places or not self._shard.job.reading.is_iterable
        if not told and (not went_on or self._takes_places):
            self._shard.watch.look()
            self._news = {"before": self._frozen_place()}

    def __next__(self) -> Unit:
        if self._owed:
            return self._owed.pop()
        if self.is_over:
            raise StopIteration
        index = None if self._iterates else self._ordered()
        news, self._news = self._news, None
        reader = self._reader
        if reader is None:
            self.is_over = self._iterates
            return self._unit(None, {"failure": self._shard.failure})
        index = self._shard.index_of(index)
        began = time.monotonic()
        try:
            batch = reader.read(index)
        except StopIteration as error:
            if self._shard.job.reading.is_iterable:
                return self._end(news)
            return self._unit(None, {**(news or {}), "failure": self._shard.described(error)})
        except BaseException as error:
            if self._shard.is_local and not isinstance(error, Exception):
                raise  # Ctrl-C
            if self._shard.job.reading.skips:
                news = self._with_skipped(news, reader, index)
            return self._unit(None, {**(news or {}), "failure": self._shard.described(error)})
        if self._shard.job.reading.skips:
            news = self._with_skipped(news, reader, index)
            if batch is NOTHING:
                batch, news = None, {**(news or {}), "empty": True}
                if reader.left is not None:
                    news["left"] = reader.left
        if (digest := reader.digest) != self._digest:
            self._digest = digest
            news = {**(news or {}), "digest": digest}
        if self._watches and (now := time.monotonic()) >= self._due:
            if (frozen := self._place_after(now, now - began)) is not None:
                news = {**(news or {}), "after": frozen}
            self._due = min(self._shard.watch.due, self._cadence.due if self._tells else math.inf)
        return self._unit(batch, news)

    @property
    def _tells(self) -> bool:
        """Whether its places hold anything."""
        return bool(self._takes_places or self._shard.watch.moved)

    def _place_after(self, now: float, took: float) -> bytes | None:
        """The place behind the batch that was just read, if it is to be told."""
        watch, cadence = self._shard.watch, self._cadence
        looks = now >= watch.due
        first = looks and watch.look_in_time(now)
        if not self._tells:
            return b"" if looks else None  # nothing that is to be read once more
        if not cadence.is_due(now, took) and not first:  # a place without that generator is none
            return None
        frozen = self._frozen_place()
        cadence.took(time.monotonic(), time.monotonic() - now)
        return frozen

    def _ordered(self) -> Any:
        """The index that main orders next."""
        assert self._shard.order is not None
        try:
            self._order, index = self._shard.order()
        except StopIteration:
            self.is_over = True
            raise
        return index

    def _end(self, news: dict[str, Any] | None) -> Unit:
        self.is_over = True
        news = {**(news or {}), "ended": True}
        if self._takes_places or self._shard.job.persistent:  # later epochs depend on it
            self._shard.watch.look()
            news["after"] = self._frozen_place()
        return self._unit(None, news)

    def _unit(self, batch: Any, news: dict[str, Any] | None) -> Unit:
        self._brought = news
        return self._shard.number, self._order, batch, news

    def _frozen_place(self) -> bytes:
        """Where the reading stands; empty if that is where it stood."""
        assert self._reader is not None
        frozen = freeze(self._reader.place())
        self._reader.took(frozen)
        if frozen == self._last:
            return b""
        self._last = frozen
        return frozen

    def _with_skipped(self, news: dict[str, Any] | None, reader: Reader, index: Any) -> dict[str, Any] | None:
        """The news of a unit, and what was skipped of its batch."""
        if reader.skipped:
            news = {**(news or {}), "skipped": reader.skipped}
        if reader.seen != self._shard.job.reading.samples_of(index):
            news = {**(news or {}), "seen": reader.seen}
        return news

    def failed_to_leave(self, failure: tuple[Any, ...]) -> None:
        """Puts an error in the place of the unit that could not be sent."""
        self._owed.append(self._unit(None, {**(self._brought or {}), "failure": failure}))
