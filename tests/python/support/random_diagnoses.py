"""Random pipelines, each slow for one known reason, to measure how often `diagnose` names it.

    python -m drivers diagnoses --runs 30 --load 2     # in tests/python/support; next to two processes that only
    compute

A diagnosis is correct if it has the expected kind, and names the expected pipe and process. The slow part of each
pipeline takes several times as long as everything else, so that a busy machine does not change the expected diagnosis.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from drivers.frame import Driver
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

#: Tiny items: enough to take longer than the time slices of other programs on a busy machine. Only some items are
#: timed. If the process has no core at such a moment, one of them would represent a whole short epoch.
TINY = 400_000


@dataclass
class Case:
    """A pipeline, how to run it, and the expected diagnosis.

    Args:
        kind: the kind of the diagnosis.
        pipe: the pipeline.
        workers: the number of workers; 0 for none.
        culprit: the responsible pipe; None if there is none, or if it is unknown.
        process: the responsible process; None if any may be named.
        step: the seconds that the program needs for each item.
        keeps: whether the program keeps all items.
        block: the number of items per block that the filter distributes.
        cores: the number of cores for the processes; None for all.
        level: the level of statistics.
        epochs: the number of epochs.
        goes_on: whether the last epoch is still running at the diagnosis.
        options: further options of the reading service.
        stateful: the arguments of a `StatefulDataLoader` that reads `pipe` as a dataset; None for a `DataLoader2`.
    """

    kind: str
    pipe: Any
    workers: int
    culprit: str | None = None
    process: str | None = None
    step: float = 0.0
    keeps: bool = False
    block: int | None = None
    cores: int | None = None
    level: str = "full"
    epochs: int = 1
    goes_on: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    stateful: dict[str, Any] | None = None


# -- parts of pipelines ------------------------------------------------------------------------------------


def cheap(item: Any) -> Any:
    return item


def slow(item: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return item


def brief(item: Any) -> Any:
    hashlib.sha256(bytes(100_000)).digest()
    return item


def also(item: Any, seconds: float) -> Any:
    return slow(item, seconds)


def computing(item: Any, blocks: int) -> Any:
    """Computes for some processor time."""
    for _ in range(blocks):
        hashlib.sha256(bytes(1 << 20)).digest()
    return item


def lines_of(shard: int, counts: tuple[int, ...]) -> range:
    return range(counts[shard])


def slow_lines(shard: int, count: int, seconds: float) -> Iterator[int]:
    for line in range(count):
        time.sleep(seconds)
        yield line


def one_in_all(item: int, workers: int, worker: int, seconds: float) -> int:
    """Takes long for the items of one worker."""
    time.sleep(seconds if item % workers == worker else seconds / 10)
    return item


def connecting(item: int, seconds: float) -> int:
    if item == 0:
        time.sleep(seconds)
    return item


def image(item: int, size: int) -> Any:
    return np.full(size, item % 256, np.uint8)


def nothing(item: Any) -> bool:
    return False


_pool: list[ThreadPoolExecutor] = []


def in_threads(item: Any, threads: int) -> Any:
    """Computes in threads that do not hold the interpreter's lock."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(threads))
    for _ in _pool[0].map(lambda block: hashlib.sha256(block).digest(), [bytes(1_000_000)] * threads):
        pass
    return item


class SlowReader(IterDataPipe[int]):
    """A source that takes long for every item."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __iter__(self) -> Iterator[int]:
        return slow_lines(0, self.count, self.seconds)


# -- pipelines, one kind each ------------------------------------------------------------------------------


class Maker:
    """Creates pipelines from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def seconds(self) -> float:
        """Returns the seconds per item of a slow part."""
        return self.random.choice([0.008, 0.012, 0.02])

    def workers(self, least: int = 2) -> int:
        return self.random.randint(least, 4)

    def some(self, pipe: Any, *changes: Callable[[Any], Any]) -> Any:
        """Appends some pipes that take practically no time."""
        for change in changes:
            if self.random.random() < 0.5:
                pipe = change(pipe)
        return pipe

    def source(self, count: int) -> Any:
        pipe = self.some(IterableWrapper(range(count)), lambda pipe: pipe.map(cheap))
        return self.some(pipe, lambda pipe: pipe.shuffle(buffer_size=self.random.choice([4, 1000])))

    def behind(self, pipe: Any) -> Any:
        return self.some(pipe, lambda pipe: pipe.map(cheap), lambda pipe: pipe.enumerate(), lambda pipe: pipe.batch(2))

    def count(self, workers: int) -> int:
        return 40 * max(1, workers)

    def times(self, case: Case, *, ends: bool = False) -> Case:
        """Chooses when to diagnose, and the level of statistics. Without times of pipes, no pipe can be named."""
        if self.random.random() < 0.3:
            case.level, case.culprit = "counts", None
        if self.random.random() < 0.3:
            case.epochs = 2
        case.goes_on = not ends and self.random.random() < 0.3
        if case.workers and not ends and self.random.random() < 0.3:
            case.options |= {"worker_prefetch_cnt": 2, "main_prefetch_cnt": 2}
        return case

    def slow_behind_the_filter(self) -> Case:
        workers = self.workers(0)
        pipe = self.some(self.source(self.count(workers)).sharding_filter(), lambda pipe: pipe.map(cheap))
        seconds = self.seconds()
        work: Any = partial(slow, seconds=seconds)
        if workers < 2:  # more would compete for the cores of a small machine
            work = self.random.choice([work, partial(computing, blocks=self.random.randint(8, 16))])
        step = self.random.choice([0.0, seconds / 10 / max(1, workers)])
        case = Case("loading", self.behind(pipe.map(work)), workers, f"Mapper({work.func.__name__})", step=step)
        if self.random.random() < 0.2:
            case.options["in_order"] = False
        return self.times(case)

    def slow_on_both_sides(self) -> Case:
        """Each worker does the first work for all items, and the second work only for its own."""
        workers, seconds = self.workers(), self.seconds()
        if self.random.random() < 0.5:
            pipe = self.source(40).map(partial(slow, seconds=seconds)).sharding_filter()
            pipe = self.behind(pipe.map(partial(also, seconds=seconds / 4)))
            return Case("work before sharding", pipe, workers, "Mapper(slow)")
        # A short wait could become long on a busy machine, because it ends only when a core is free.
        pipe = self.source(40).map(brief).sharding_filter().map(partial(slow, seconds=seconds))
        return Case("loading", self.behind(pipe), workers, "Mapper(slow)")

    def slow_before_the_filter(self) -> Case:
        workers, knows = self.workers(), self.random.random() < 0.7
        pipe = self.some(IterableWrapper(range(40)), lambda pipe: pipe.shuffle())
        if knows:
            pipe = self.some(pipe, cheaply)
        pipe = pipe.map(partial(slow, seconds=self.seconds()))
        pipe = self.some(pipe, cheaply, lambda pipe: pipe.shuffle(buffer_size=4)).sharding_filter()
        pipe = self.some(pipe, cheaply) if knows else self.some(pipe, lambda pipe: pipe.batch(2))
        level = "full" if knows else "counts"
        return Case("work before sharding", pipe, workers, "Mapper(slow)", level=level)

    def slow_reader(self) -> Case:
        workers, seconds = self.workers(0), self.seconds()
        reader = self.some(SlowReader(60, seconds), cheaply)
        match self.random.randrange(3):
            case 0:
                shards = IterableWrapper(range(2 * max(1, workers))).sharding_filter()
                lines = shards.flatmap(partial(slow_lines, count=20, seconds=seconds))
                return self.times(Case("loading", self.behind(lines), workers, "FlatMapper(slow_lines)"))
            case 1 if workers:
                pipe = self.some(reader.sharding_round_robin_dispatch(), cheaply)
                return self.times(Case("dispatching", pipe, workers, "SlowReader", "the dispatching process"))
        case = Case("loading", self.some(reader.sharding_filter(), cheaply), workers, "SlowReader")
        case = self.times(case)
        if workers > 1 and case.level == "full":
            case.kind = "slow source"
        return case

    def slow_consumer(self) -> Case:
        workers = self.workers(0)
        pipe = self.source(60).sharding_filter()
        if workers:
            pipe = self.some(pipe, lambda pipe: pipe.map(partial(slow, seconds=0.001)))
        step = self.random.choice([0.02, 0.03])
        return self.times(Case("training", self.some(pipe, cheaply), workers, process="main", step=step))

    def skewed_shards(self) -> Case:
        workers = self.workers()
        large = self.random.randrange(workers)
        counts = tuple(200 if shard % workers == large else 20 for shard in range(workers * self.random.randint(1, 2)))
        shards = IterableWrapper(range(len(counts))).sharding_filter()
        lines = shards.flatmap(partial(lines_of, counts=counts)).map(partial(slow, seconds=0.004))
        case = Case("skewed shard", self.behind(lines), workers, process=f"worker process {large}")
        return self.times(case, ends=True)

    def threads(self) -> Case:
        workers, seconds = self.workers(0), self.seconds()
        pipe = self.source(self.count(workers)).sharding_filter()
        match self.random.randrange(3):
            case 0:
                pipe = pipe.threadpool_map(partial(slow, seconds=2 * seconds), max_workers=2)
                return self.times(Case("loading", self.behind(pipe), workers, "ThreadPoolMapper(slow)"))
            case 1:
                pipe = pipe.map(partial(slow, seconds=seconds)).prefetch(self.random.choice([1, 5]))
                return self.times(Case("loading", self.behind(pipe), workers, "Mapper(slow)"))
        pipe = self.source(160).sharding_filter().map(partial(in_threads, threads=4))
        return Case("cores", pipe, self.workers(), cores=1)

    def memory(self) -> Case:
        size = self.random.choice([150_000, 300_000])
        pipe = self.source(80).sharding_filter().map(partial(image, size=size))
        case = Case("memory", pipe, self.workers(1), process="main", keeps=True, options={"memory_budget": 2 << 20})
        return self.times(case, ends=True)

    def one_slow_worker(self) -> Case:
        workers = self.workers()
        worker = self.random.randrange(workers)
        pipe = IterableWrapper(range(40 * workers)).sharding_filter()
        work = partial(one_in_all, workers=workers, worker=worker, seconds=self.seconds())
        pipe = self.some(pipe.map(work), cheaply)
        return self.times(Case("slow worker", pipe, workers, "Mapper(one_in_all)", f"worker process {worker}"))

    def slow_before_the_dispatch(self) -> Case:
        pipe = self.source(50).map(partial(slow, seconds=self.seconds()))
        pipe = self.some(pipe.sharding_round_robin_dispatch(), cheaply)
        return self.times(Case("dispatching", pipe, self.workers(), "Mapper(slow)", "the dispatching process"))

    def slow_first_item(self) -> Case:
        pipe = IterableWrapper(range(60)).map(partial(connecting, seconds=self.random.choice([1.2, 1.6])))
        case = Case("first item", self.some(pipe, cheaply).sharding_filter(), self.workers(0), "Mapper(connecting)")
        return self.times(case)

    def tiny_items(self) -> Case:
        pipe = self.some(IterableWrapper(range(TINY)), lambda pipe: pipe.shuffle()).sharding_filter()
        workers = self.random.randint(1, 2)  # more would compete for the cores of a small machine
        return self.times(Case("sending", self.some(pipe, cheaply), workers, process="main"), ends=True)

    def no_items(self) -> Case:
        if self.random.random() < 0.5:
            pipe = self.some(IterableWrapper([]), cheaply).sharding_filter()
            return Case("empty", self.some(pipe, cheaply), self.workers(0), "IterableWrapper")
        pipe = self.some(self.source(20).filter(nothing), cheaply).sharding_filter()
        return Case("empty", pipe, self.workers(0), "Filter(nothing)")

    def large_blocks(self) -> Case:
        pipe = IterableWrapper(range(6)).sharding_filter().map(partial(slow, seconds=0.01))
        pipe = self.some(pipe, lambda pipe: pipe.flatmap(partial(slow_lines, count=4, seconds=0.004)))
        return self.times(Case("idle workers", pipe, self.workers(), block=8), ends=True)

    def stateful(self) -> Case:
        """Uses a `StatefulDataLoader`, which times a dataset and its collate function."""
        workers, seconds = self.workers(0), self.seconds()
        reads = Samples(160, 0.0), "Samples.__getitem__"
        match self.random.randrange(3):
            case 0:
                case = Case("loading", Samples(160, seconds), workers, reads[1])
                case.stateful = {"batch_size": 2}
            case 1:
                case = Case("loading", reads[0], workers, "slow")
                case.stateful = {"batch_size": 2, "collate_fn": partial(slow, seconds=2 * seconds)}
            case _:
                case = Case("training", reads[0], workers, process="main", step=self.random.choice([0.02, 0.03]))
                case.stateful = {"batch_size": 4}
        case.level = self.random.choice(["counts", "full"])
        return case


class Samples:
    """A map-style dataset with slow samples."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return slow(index, self.seconds) if self.seconds else index


def cheaply(pipe: Any) -> Any:
    return pipe.map(cheap)


KINDS: tuple[Callable[[Maker], Case], ...] = (
    Maker.slow_behind_the_filter,
    Maker.slow_before_the_filter,
    Maker.slow_on_both_sides,
    Maker.slow_reader,
    Maker.slow_consumer,
    Maker.skewed_shards,
    Maker.threads,
    Maker.memory,
    Maker.one_slow_worker,
    Maker.slow_before_the_dispatch,
    Maker.slow_first_item,
    Maker.tiny_items,
    Maker.no_items,
    Maker.large_blocks,
    Maker.stateful,
)


def case_of(seed: int) -> Case:
    """Returns the pipeline for a seed, of each kind in turn."""
    return KINDS[(seed + 9) % len(KINDS)](Maker(seed))


# -- running them ------------------------------------------------------------------------------------------


def verdict_on(case: Case) -> Any:
    """Returns the diagnosis after an epoch."""
    if case.stateful is not None:
        return verdict_on_batches(case, case.stateful)
    service = None
    if case.workers:
        service = MultiProcessingReadingService(case.workers, multiprocessing_context="fork", **case.options)
    with (
        warnings.catch_warnings(),
        on_cores(case.cores),
        DataLoader2(case.pipe, ShardingPolicy(case.block), service, stats=case.level) as loader,
    ):
        warnings.simplefilter("ignore")  # about idle workers
        kept = []
        for epoch in range(case.epochs):
            for number, item in enumerate(loader):
                if case.step:
                    time.sleep(case.step)
                if case.keeps:
                    kept.append(item)
                if case.goes_on and epoch == case.epochs - 1 and number == 24:
                    return loader.diagnose()
        return loader.diagnose()


def verdict_on_batches(case: Case, options: dict[str, Any]) -> Any:
    """Returns the diagnosis of a `StatefulDataLoader` after an epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    context = {"multiprocessing_context": "fork"} if case.workers else {}
    level: Any = case.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning about more workers than cores
        loader = StatefulDataLoader(case.pipe, num_workers=case.workers, stats=level, **context, **options)
        for _ in loader:
            time.sleep(case.step)
    return loader.diagnose()


def wrong_in(case: Case, verdict: Any) -> list[str]:
    """Returns descriptions of the errors in a diagnosis."""
    wanted = {"kind": case.kind, "pipe": case.culprit, "process": case.process}
    found = {name: getattr(verdict, name) for name in wanted}
    return [f"{name} {found[name]!r}, not {what!r}" for name, what in wanted.items() if what not in (None, found[name])]


def judged(case: Case) -> int:
    """Runs a pipeline, and checks the diagnosis."""
    verdict = verdict_on(case)
    wrong = wrong_in(case, verdict)
    assert not wrong, f"{'; '.join(wrong)}\n{case.pipe}\n{verdict}"
    return 1


@contextlib.contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Restricts this process, and its children, to `count` cores."""
    before = os.sched_getaffinity(0)
    if count is not None:
        os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


#: A program that computes until its parent exits.
COMPUTING = "import hashlib, os\nwhile os.getppid() != 1: hashlib.sha256(bytes(1 << 20)).digest()"


@contextlib.contextmanager
def load_of(processes: int) -> Iterator[None]:
    """Runs this many computing processes concurrently."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", COMPUTING]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


DRIVER = Driver(
    lambda seed, _: case_of(seed),
    lambda case: judged(case),
    "verdicts",
    around=lambda options: load_of(options.load),
    more=lambda parser: parser.add_argument("--load", type=int, default=0, help="processes that compute beside it"),
)
