"""The program of a `StatefulDataLoader` worker, which reads batches and sends them to the main process.

Commands of the main process arrive over a link: begin an epoch, read the batch of an index (an *order*), or stop. A
worker that receives no batch requests reads an iterable dataset as far ahead as the main process allows.

A worker runs one shard: a part of the dataset, with its own reader, random generators and worker info. If the loaded
state is from a loader with more workers, a worker runs several shards in turn, each with a copy of the dataset.

A message to the main process (`Unit`) contains the shard, the number of the batch request, the batch, and the fields of
`News` (or None).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from signal import strsignal
from typing import Any, ClassVar, NamedTuple

import torch
import torch.utils.data

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.items.failures import describe
from torchdata._engine.items.torch_worker import seed_worker, set_worker_info, show_worker
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.workers.child import ChildLoop
from torchdata._engine.workers.program import Program, Runner
from torchdata._native import ShardTurns
from torchdata._observe.stats.batches import bind_reading
from torchdata._observe.stats.counting import Counting
from torchdata.datapipes._pipe.exchanging import ShardGlobals
from torchdata.stateful_dataloader._cadence import GeneratorWatch, SnapshotCadence
from torchdata.stateful_dataloader._copying import Copies
from torchdata.stateful_dataloader._fetching import NOTHING
from torchdata.stateful_dataloader._generators import GLOBAL, Moment, set_all
from torchdata.stateful_dataloader._pipes import seeded
from torchdata.stateful_dataloader._reading import EpochReader, ReadingSettings

NO_ORDER = -1


class EpochStart(NamedTuple):
    """The position where a shard begins an epoch, or continues the epoch of a failed worker.

    Args:
        position: the snapshot to load; None for the beginning.
        account: the number and the checksum of the messages that the main process has received from a failed worker.
        again: the indices of the batches that are reread after the snapshot was loaded.
    """

    position: Any
    account: tuple[int, int] = (0, 0)
    again: Sequence[Any] = ()
    ended: bool = False


class News(NamedTuple):
    """Data that a worker sends together with a batch, or instead of a batch.

    Args:
        before: the pickled snapshot from before the batch, or None.
        after: the pickled snapshot from after the batch, or None.
        failure: the error that was raised instead of returning the batch.
        seen: the number of samples of the batch, including skipped samples; None if it equals the requested number.
        empty: whether all samples were skipped, so that the batch is missing.
        digest: for a dataset without a state, a checksum of some samples of this epoch; None if the checksum has not
            changed.
    """

    before: bytes | None = None
    after: bytes | None = None
    failure: Any = None
    skipped: Sequence[dict[str, Any]] = ()
    seen: int | None = None
    empty: bool = False
    digest: int | None = None
    ended: bool = False


NO_NEWS = News()
Unit = tuple[int, int, Any, tuple[Any, ...] | None]


class ShardReader:
    """Reads one shard of the dataset in successive epochs.

    Args:
        counting: the process's counters for times; None if batches are not timed.
        worker: the worker that runs the shard; None in the main process, where exceptions are raised unchanged.
    """

    reader: EpochReader | None = None
    failure: Any = None

    def __init__(self, job: Job, number: int, counting: Counting | None, worker: _Worker | None = None) -> None:
        self.job, self.number, self.counting, self.worker = job, number, counting, worker
        self.globals = ShardGlobals()
        self.watch: GeneratorWatch
        if job.num_shards:
            seed_worker(job.base_seed, number)
        else:  # the worker continues an epoch of a loader without workers
            set_all(job.generators)
        self._set_worker_info()

    @classmethod
    def failed(cls, number: int, worker: _Worker) -> ShardReader:
        shard = cls.__new__(cls)
        shard.number, shard.worker, shard.failure = number, worker, worker.failure
        return shard

    def _set_worker_info(self) -> None:
        job = self.job
        if not job.num_shards:
            torch.utils.data._utils.worker._worker_info = None
        else:
            set_info = show_worker if self.worker is None else set_worker_info
            set_info(self.number, job.num_shards, job.reading.dataset)

    def described(self, error: BaseException) -> Any:
        return error if self.worker is None else describe(error, self.worker.setup.name)

    def finish_abandoned(self, indices: list[Any]) -> None:
        """Reads the requested batches of an abandoned epoch, as PyTorch's workers do, so that the dataset's next epoch
        does not depend on how many of these batches the worker had already read."""
        if self.reader is None or self.failure is not None:
            return
        for index in indices:
            if self.reader.has_ended:
                return
            with contextlib.suppress(Exception):
                self.reader.read(index)

    def begin_epoch(self, iterates: bool, shared_seed: int | None, fresh: bool, start: Iterable[Any]) -> Batches:
        """Begins or resumes an epoch.

        Args:
            iterates: whether the shard reads ahead in an iterable dataset, without waiting for batch requests.
            fresh: whether a new epoch begins after the snapshot was loaded; otherwise, the epoch of the snapshot
                continues.
            start: the fields of an `EpochStart`.
        """
        position, _, again, ended = EpochStart(*start)
        batches = Batches(self, iterates)
        try:
            if self.failure is None:
                self._begin(shared_seed, position, fresh)
                has_ended = ended or (bool(again) and not self._read_again(again))
                is_resumed = position is not None and not fresh
                assert self.reader is not None
                batches.begin(self.reader, is_resumed, again=bool(again))
                batches.is_over = has_ended
        except BaseException as error:
            if self.worker is None:
                raise
            self.failure = self.described(error)
        if self.failure is not None:
            batches.is_over = iterates and bool(again)
        return batches

    def _read_again(self, indices: Sequence[Any]) -> bool:
        """Rereads the batches that the failed worker had read; returns False if the dataset ends earlier."""
        assert self.reader is not None
        is_whole = True
        for index in indices:
            try:
                self.reader.read(index)
            except StopIteration:
                if self.job.reading.is_iterable:
                    is_whole = False
                    break
            except Exception:  # the failed worker has already sent this exception
                pass
        self.watch.look()
        return is_whole

    def _begin(self, shared_seed: int | None, position: Any, fresh: bool) -> None:
        reading = self.job.reading
        if shared_seed is not None:
            reading.dataset, reading.shared_seed = seeded(reading.dataset, shared_seed), shared_seed
            self._set_worker_info()
        if self.reader is None:
            if self.job.init_fn is not None:
                self.job.init_fn(self.number)
            self.watch = GeneratorWatch([] if self.job.num_shards else GLOBAL)
            self.reader = EpochReader(reading, self.watch.states)
            if self.counting is not None:
                how = reading.dataset, reading.is_iterable, reading.collate_fn
                self.reader.time_by(bind_reading(self.counting, *how, hands_out=self.worker is None)[0])
        self.watch.look()  # `begin` may take a snapshot that includes the used generators
        if position is None or fresh:
            self.reader.begin(position)
        else:
            self.reader.restore(position)


class _Worker:
    is_interrupted: ClassVar[bool] = False

    def __init__(self, child: ChildLoop) -> None:
        self.child, self.setup, self.sender = child, child.setup, child.sender
        self.pending: tuple[Any, ...] | None = None
        self.failure: tuple[Any, ...] | None = None
        self.shards: list[ShardReader] = []
        self._turns = ShardTurns((), self._exchange, 0)
        #: The indices of requested batches that the worker had not read when the main process ended the last epoch.
        self._left: list[Any] = []

    def prepare(self, program: Job) -> None:
        for number in self.setup.shards:
            if self.shards:
                self.shards[-1].globals.leave(is_all=True)
            job = program if program.copies is None else program.copied()
            self.shards.append(ShardReader(job, number, self.child.counting, self))
        of_each = [shard.globals for shard in self.shards]
        self._turns = ShardTurns(of_each, self._exchange, len(of_each) - 1)

    def execute(self, command: tuple[Any, ...]) -> bool:
        order: tuple[Any, ...] | None = command
        while order is not None:
            if order[0] == "stop":
                return False
            if order[0] == "epoch":
                left, self._left = self._left, []
                if left and self.shards:
                    self.shards[0].finish_abandoned(left)
                self._run_epoch(*order[1:])
            elif order[0] == "repeat":
                if self.shards:  # repeats an epoch of the replaced worker, because later epochs depend on that epoch
                    self.shards[0].begin_epoch(*order[1:])
            else:
                self._left.append(order[1])
            order, self.pending = self.pending, None
        return True

    def _exchange(self, left: int, entered: int) -> None:
        self.shards[left].globals.leave(is_all=True)
        self.shards[entered].globals.enter()

    def _run_epoch(
        self, epoch: int, iterates: bool, shared_seed: int | None, fresh: bool, first: int, starts: list[Any]
    ) -> None:
        self.child.counting.begin(epoch)
        turn = next((index for index, shard in enumerate(self.setup.shards) if shard >= first), 0)
        self.sender.start_epoch(epoch, 1, [(EpochStart(*one).account, 0, None) for one in starts], turn)
        if self.failure is not None:
            self.shards = [ShardReader.failed(number, self) for number in self.setup.shards]
        each = []
        for number, (shard, start) in enumerate(zip(self.shards, starts, strict=True)):
            if self.failure is None:
                self._turns.enter(number)
            each.append(shard.begin_epoch(iterates, shared_seed, fresh, start))
        batches = each[0] if len(each) == 1 else tuple(each)
        while True:
            try:
                self.sender.pump(batches, self._turns if self.failure is None else None)
                return
            except BaseException as error:
                each[self._turns.entered].failed_to_leave(describe(error, self.setup.name))


@dataclass
class Job(Program):
    """The arguments of the workers, which are pickled once for all workers."""

    runner: ClassVar[type[Runner]] = _Worker
    worker_name: ClassVar[str] = "DataLoader worker process {}"
    stage: ClassVar[str] = "reading batches"
    item: ClassVar[str] = "batch"
    to_correct: ClassVar[str] = "dataset or collate_fn"

    reading: ReadingSettings
    init_fn: Callable[[int], Any] | None
    base_seed: int
    persistent: bool
    every: int = 1
    #: The number of shards; 0 if the worker resumes an epoch of a loader without workers. With `num_shards=0`, the
    #: worker has copies of the main process's generators, and no worker info.
    num_shards: int = 0
    generators: Moment = field(default_factory=dict)
    lasts_one_epoch: bool = False
    #: Makes copies of the dataset and the functions, for a process that runs several shards. If `copies` is not None,
    #: `reading` contains neither the dataset nor functions.
    copies: Copies | None = None

    def copied(self) -> Job:
        assert self.copies is not None
        reading, init_fn = self.copies.make()
        return replace(self, reading=reading, init_fn=init_fn, copies=None)

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        return (
            "StatefulDataLoader: the dataset, collate_fn or worker_init_fn cannot be pickled, which start method "
            f"{start_method!r} needs ({type(error).__name__}: {error}); open files, locks and connections in the "
            "worker, when they are first used"
        )

    def holds_shared_memory(self) -> bool:
        return self.copies is not None

    @classmethod
    def exit_error(
        cls, process: ChildProcess, worker: int | None, text: str | None = None, item: int | None = None
    ) -> WorkerExitedError:
        """Returns the error for an exited worker. The message contains PyTorch's words, because existing programs
        search for them."""
        error = super().exit_error(process, worker, text, item)
        text, code = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {error}", process.exitcode
        if code is not None and code < 0:
            text = f"{text.rstrip('.')}. DataLoader worker (pid {process.pid}) is killed by signal: {strsignal(-code)}."
        return WorkerExitedError(text, worker, code, cls.stage, item)


class Batches(Iterator[Unit]):
    """Yields the messages of a shard in one epoch. The engine sends the messages of `Batches` to the main process.

    Args:
        iterates: whether the shard reads ahead in an iterable dataset, without waiting for batch requests.
    """

    def __init__(self, shard: ShardReader, iterates: bool) -> None:
        self._shard, self._iterates = shard, iterates
        self._reader: EpochReader | None = None
        self._pending: list[Unit] = []
        self._order = NO_ORDER
        #: Data to send in the next message, in addition to the batch. `_brought` is the `News` of the last message.
        self.news = self._brought = NO_NEWS
        #: `_takes_positions`: whether snapshots contain the state of the dataset.
        self.is_over = self._takes_positions = False
        self._cadence = SnapshotCadence(shard.job.every) if shard.failure is None else SnapshotCadence(1)
        #: The earliest time of the next snapshot or the next check of the random generators.
        self._due = 0.0
        self._last = b""
        self._digest: int | None = None

    def begin(self, reader: EpochReader, is_resumed: bool, again: bool = False) -> None:
        """Takes a snapshot and sends it with the first message, if the main process may need it.

        Args:
            is_resumed: whether the epoch resumes from a saved position, which the main process already knows.
            again: whether this worker replaces a failed worker that has sent messages of this epoch. If `again` is
                True, the worker sends no snapshot, because the main process might assign the snapshot to a wrong batch.
        """
        self._reader, self._digest = reader, reader.digest
        self._takes_positions = reader.is_stateful and reader.restores_position
        self._watches = self._takes_positions or not self._shard.job.reading.is_iterable
        if not again and (not is_resumed or self._takes_positions):
            self._shard.watch.look()
            self.news = News(before=self._frozen_position())

    def __next__(self) -> Unit:
        if self._pending:
            return self._pending.pop()
        if self.is_over:
            raise StopIteration
        index = None if self._iterates else self._ordered()
        news, self.news = self.news, NO_NEWS
        reader = self._reader
        if reader is None:
            self.is_over = self._iterates
            return self._unit(None, News(failure=self._shard.failure))
        began = time.monotonic()
        try:
            batch = reader.read(index)
        except BaseException as error:
            if isinstance(error, StopIteration) and self._shard.job.reading.is_iterable:
                return self._end(news)
            if self._shard.worker is None and not isinstance(error, Exception):
                self.news = news  # for example, Ctrl-C in the main process
                raise
            news = self._with_skipped(news, reader, index)._replace(failure=self._shard.described(error))
            return self._unit(None, news)
        digest, last = self._digest, self._last
        try:
            return self._read_unit(reader, index, batch, news, began)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.news, self._digest, self._last = news, digest, last
                reader.put_back(batch)
            raise

    def _read_unit(self, reader: EpochReader, index: Any, batch: Any, news: News, began: float) -> Unit:
        if self._shard.job.reading.skips:
            news = self._with_skipped(news, reader, index)
            if batch is NOTHING:
                batch, news = None, news._replace(empty=True)
        if (digest := reader.digest) != self._digest:
            self._digest = digest
            news = news._replace(digest=digest)
        if self._watches and (now := time.monotonic()) >= self._due:
            if (frozen := self._position_after(now, now - began)) is not None:
                news = news._replace(after=frozen)
            self._due = min(self._shard.watch.due, self._cadence.due if self._sends_positions else math.inf)
        return self._unit(batch, news)

    @property
    def _sends_positions(self) -> bool:
        return bool(self._takes_positions or self._shard.watch.moved)

    def _position_after(self, now: float, took: float) -> bytes | None:
        watch, cadence = self._shard.watch, self._cadence
        looks = now >= watch.due
        first = looks and watch.look_in_time(now)
        if not self._sends_positions:
            return b"" if looks else None
        if not cadence.is_due(now, took) and not first:  # earlier snapshots lack generators that `watch` has just found
            return None
        frozen = self._frozen_position()
        cadence.took(time.monotonic(), time.monotonic() - now)
        return frozen

    def _ordered(self) -> Any:
        """Waits until the main process requests a batch, and returns the requested index. A command that is not a batch
        request ends the epoch.
        """
        worker = self._shard.worker
        assert worker is not None
        order = worker.child.next_command()
        if type(order[0]) is not int:
            worker.pending, self.is_over = order, True
            raise StopIteration
        self._order, index = order
        return index

    def _end(self, news: News) -> Unit:
        self.is_over = True
        news = news._replace(ended=True)
        if self._takes_positions or self._shard.job.persistent:
            self._shard.watch.look()
            news = news._replace(after=self._frozen_position())
        return self._unit(None, news)

    def _unit(self, batch: Any, news: News) -> Unit:
        self._brought = news
        return self._shard.number, self._order, batch, None if news is NO_NEWS else tuple(news)

    def _frozen_position(self) -> bytes:
        """Returns the pickled position, or empty bytes if the previous snapshot was equal."""
        assert self._reader is not None
        frozen = self._reader.position().frozen()
        self._reader.took(frozen)
        if frozen == self._last:
            return b""
        self._last = frozen
        return frozen

    def _with_skipped(self, news: News, reader: EpochReader, index: Any) -> News:
        reading, (skipped, seen) = self._shard.job.reading, reader.skipped
        if not reading.skips or (not skipped and seen == reading.samples_of(index)):
            return news
        return news._replace(skipped=skipped, seen=seen)

    def failed_to_leave(self, failure: tuple[Any, ...]) -> None:
        self._pending.append(self._unit(None, self._brought._replace(failure=failure)))
