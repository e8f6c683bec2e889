"""Random threads on one loader, which use it at random moments and must not be misled by each other.

`python -m drivers threads --seconds 60 --seed 1`.

There are two rules. An iterator returns each item at most once, in one of the threads. If a loop ends without an error,
all items of the epoch were delivered, unless the loader was paused. In addition, nothing hangs, no process is left, and
errors are RuntimeErrors.
"""

from __future__ import annotations

import collections
import copy
import faulthandler
import gc
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from drivers.frame import Driver
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.nodes import IterableWrapper as Items
from torchdata.nodes import Loader, Mapper, ParallelMapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

COUNT = 60
#: Maximum number of seconds for a whole run.
DEADLINE = 60


def slowly(item: int) -> int:
    if item % 3 == 0:
        time.sleep(0.0005)
    return item


class Numbers:
    """A dataset with a short delay for each item."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return slowly(index)


def _workers(**options: Any) -> DataLoader2[Any]:
    pipe = IterableWrapper(range(COUNT)).sharding_filter().map(slowly)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork", **options))


MAKERS: dict[str, Callable[[], Any]] = {
    "pipe": lambda: DataLoader2(IterableWrapper(range(COUNT)).map(slowly)),
    "prefetch": lambda: DataLoader2(IterableWrapper(range(COUNT)).map(slowly).prefetch(3)),
    "threadpool": lambda: DataLoader2(IterableWrapper(range(COUNT)).threadpool_map(slowly, max_workers=2)),
    "workers": _workers,
    "restart": lambda: _workers(on_worker_exit="restart"),
    "stateful": lambda: StatefulDataLoader(Numbers(), batch_size=None),
    "stateful workers": lambda: StatefulDataLoader(
        Numbers(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    ),
    "nodes": lambda: Loader(Mapper(Items(range(COUNT)), slowly)),
    "nodes threads": lambda: Loader(Prefetcher(ParallelMapper(Items(range(COUNT)), slowly, 2), 3)),
    "nodes processes": lambda: Loader(
        ParallelMapper(Items(range(COUNT)), slowly, 2, method="process", multiprocessing_context="fork")
    ),
}


class Handle:
    """An iterator and its received items."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.given: list[int] = []
        self.is_paused = self.is_over = False

    def read(self, most: int) -> None:
        """Reads `most` items, or to the end."""
        for _ in range(most):
            try:
                self.given.append(int(next(self.iterator)))
            except StopIteration:
                self.is_over = True
                return


class Run:
    """One loader, and the actions of threads on it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.kind = rng.choice(list(MAKERS))
        self.loader = MAKERS[self.kind]()
        self.handles = [Handle(iter(self.loader))]
        self.faults: list[str] = []
        self.is_down = False
        ends = rng.random() < 0.4
        self.plans = [
            [rng.choice(self._acts()) for _ in range(rng.randrange(2, 7))] for _ in range(rng.randrange(2, 5))
        ]
        if ends:
            rng.choice(self.plans).append("shutdown")
            rng.choice(self.plans).append("shutdown")
        self.rngs = [random.Random(f"{seed} {number}") for number in range(len(self.plans))]

    def _acts(self) -> list[str]:
        acts = ["next", "next", "next", "loop", "iter", "state", "copy", "fork"]
        if isinstance(self.loader, DataLoader2):
            acts += ["stats", "limit", "resume"]
        return acts

    def do(self, number: int) -> None:
        rng = self.rngs[number]
        for act in self.plans[number]:
            time.sleep(rng.random() * 0.004)
            try:
                getattr(self, "_" + act)(rng)
            except RuntimeError:
                pass
            except BaseException as error:
                self.faults.append(f"{act}: {type(error).__name__}: {error}")

    def _next(self, rng: random.Random) -> None:
        rng.choice(self.handles).read(rng.randrange(1, 20))

    def _loop(self, rng: random.Random) -> None:
        self.handles[-1].read(2 * COUNT)

    def _iter(self, rng: random.Random) -> None:
        self.handles.append(handle := Handle(iter(self.loader)))
        if rng.random() < 0.5:
            handle.read(2 * COUNT)

    def _state(self, rng: random.Random) -> None:
        self.loader.state_dict()

    def _stats(self, rng: random.Random) -> None:
        self.loader.stats()

    def _copy(self, rng: random.Random) -> None:
        other = rng.choice([copy.copy, copy.deepcopy])(self.loader)
        if rng.random() < 0.3 and len(list(other)) != COUNT:
            self.faults.append("an epoch of a copy is not whole")
        _end(other)
        del other
        gc.collect()

    def _limit(self, rng: random.Random) -> None:
        handle = rng.choice(self.handles)
        handle.is_paused = True
        handle.iterator.limit(rng.choice([None, 3, 10]))

    def _resume(self, rng: random.Random) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rng.choice(self.handles).iterator.resume()

    def _fork(self, rng: random.Random) -> None:
        iterator = self.handles[-1].iterator
        child = os.fork()
        if child == 0:
            signal.alarm(DEADLINE // 2)
            code = 0
            try:
                if sum(1 for _ in iterator) > COUNT:
                    code = 2
            except RuntimeError:
                pass
            except BaseException:
                code = 3
            os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            self.faults.append(f"a forked child ended with status {status}")

    def _shutdown(self, rng: random.Random) -> None:
        self.is_down = True
        _end(self.loader)

    def run(self) -> None:
        threads = [threading.Thread(target=self.do, args=(number,), daemon=True) for number in range(len(self.plans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback()
            self.faults.append("it hangs")
            return
        self._judge()
        _end(self.loader)
        self.handles.clear()
        del self.loader

    def _judge(self) -> None:
        paused = any(handle.is_paused for handle in self.handles)
        for handle in self.handles:
            twice = [item for item, times in collections.Counter(handle.given).items() if times > 1]
            if twice:
                self.faults.append(f"given twice: {twice}")
            if handle.is_over and not paused and len(handle.given) != COUNT:
                self.faults.append(f"a loop ended after {len(handle.given)} items")


def _end(loader: Any) -> None:
    if not isinstance(loader, StatefulDataLoader):
        loader.shutdown()
    elif (shutdown := getattr(loader._iterator, "_shutdown_workers", None)) is not None:
        shutdown()


def check(seed: int) -> int:
    """Runs threads on the loader of a seed; returns the number of actions."""
    run = Run(seed)
    run.run()
    assert not run.faults, f"{run.kind}, {run.plans}: {run.faults}"
    return sum(map(len, run.plans))


DRIVER = Driver(lambda seed, _: seed, check, "things done", more=lambda parser: parser.set_defaults(switch=1e-4))
