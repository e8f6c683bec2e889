"""Processes that hang at random items, in random ways, and are replaced. The loader's items must not be affected.

    python -m drivers hangs --seconds 600 --seed 1 --start-methods fork,spawn,forkserver     # in tests/python/support

A program is a graph, a `StatefulDataLoader` or a node. One loader reads up to some item, and another one resumes from
this position. In both loaders, processes hang at some items.
"""

from __future__ import annotations

import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from drivers.frame import Driver
from hanging import WAYS, Hanging
from leftovers import children, told
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from torchdata.nodes import IterableWrapper as Node
from torchdata.nodes import Loader, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader

#: Seconds after which a process counts as hung.
SOON = 0.3
#: Seconds for a busy process, so that a process without a processor on a busy machine does not count as hung. An
#: endless loop is also busy, and is detected after the second value.
PATIENCE, OF_LOOPS = 1e6, 5.0
#: Maximum number of seconds until all processes of a loader are gone after its shutdown, on a busy machine.
GONE = 60.0
#: Maximum number of hangs at one item; one more would be an error.
MOST_AT_ONE = 2


class Work:
    """Squares numbers, and hangs at some of them; both a function and a dataset.

    Args:
        hangs: the way to hang, by number.
        length: the length of the dataset.
    """

    def __init__(self, hangs: dict[int, Hanging], length: int) -> None:
        self.hangs, self.length = hangs, length

    def __call__(self, number: int) -> int:
        if number in self.hangs:
            self.hangs[number]()
        return number * number

    __getitem__ = __call__

    def __len__(self) -> int:
        return self.length


class Plan:
    """The random choices of a seed."""

    def __init__(self, seed: int, methods: tuple[str, ...]) -> None:
        dice = random.Random(f"hangs {seed}")
        self.seed, self.method = seed, dice.choice(methods)
        self.family = dice.choice(["graph", "graph", "graph", "map", "node"])
        self.workers, self.items = dice.randint(1, 4), dice.choice([12, 30, 80])
        self.dispatch = dice.choice(["", "before", "behind"]) if self.family == "graph" else ""
        self.in_order, self.stop_at = dice.random() < 0.8, dice.randrange(1, self.items)
        self.batch, self.ahead = dice.choice([1, 1, 3]), dice.choice([1, 2, 10])
        self.also_deaths = dice.random() < 0.5
        batches = dice.sample(range(self.items // self.batch), min(self.items // self.batch, dice.randint(1, 10)))
        #: By item, the way to hang and the number of processes. At most one item per batch, because the third hang is
        #: an error.
        self.places = {
            place * self.batch: (
                dice.choice([way for way in WAYS if way != "loop"]),
                dice.choice([1, 1, 1, MOST_AT_ONE]),
            )
            for place in sorted(batches)
        }
        self.patience = PATIENCE
        if dice.random() < 0.3:  # only one, because it takes long
            self.patience, self.places[dice.choice(list(self.places))] = OF_LOOPS, ("loop", 1)
        if any(way == "stop" for way, _ in self.places.values()):
            # The process continues to report its stack, and may reach the next position before it is killed.
            self.places = {place: (way, 1) for place, (way, _) in self.places.items()}
        self.cadence: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())

    def loader(self, folder: Path, first: int = 0) -> Any:
        """Returns a loader in which processes hang.

        Args:
            folder: the folder in which the processes record their hangs.
            first: the item from which it resumes. The resumed loader recomputes earlier items, and makes no progress if
                processes hang in them, so the third hang would be an error.
        """
        places = [at for at in self.places if at >= first]
        if first and not self.in_order:
            places = places[: MOST_AT_ONE - 1]
        hangs = {at: Hanging(self.places[at][0], folder, self.places[at][1], f"_{first}_{at}_") for at in places}
        work = Work(hangs, self.items)
        options: dict[str, Any] = {"on_worker_exit": "restart" if self.also_deaths else "error"}
        options |= {"timeout": SOON, "on_timeout": "restart", "in_order": self.in_order}
        options["patience"] = self.patience
        options["multiprocessing_context"] = self.method
        if self.family == "node":
            node = ParallelMapper(Node(range(self.items)), work, self.workers, method="process", **options)
            return Loader(node)
        if self.family == "map":
            return StatefulDataLoader(
                work, self.batch, num_workers=self.workers, collate_fn=list, prefetch_factor=self.ahead, **options
            )
        pipe: Any = IterableWrapper(range(self.items))
        pipe = pipe.map(work) if self.dispatch == "before" else pipe
        multi = SHARDING_PRIORITIES.MULTIPROCESSING
        pipe = pipe.sharding_round_robin_dispatch(multi) if self.dispatch else pipe.sharding_filter()
        pipe = pipe if self.dispatch == "before" else pipe.map(work)
        options |= {"worker_prefetch_cnt": self.ahead, "main_prefetch_cnt": self.ahead}
        return DataLoader2(pipe, reading_service=MultiProcessingReadingService(self.workers, **options))


def _end(loader: Any) -> None:
    if isinstance(loader, Loader):
        loader.root.shutdown()  # type: ignore[attr-defined]
    elif isinstance(loader, DataLoader2):
        loader.shutdown()


def check(plan: Plan) -> int:
    """Runs a program; returns how many processes hung.

    Raises:
        AssertionError: the items are affected.
    """
    before = set(children())
    with tempfile.TemporaryDirectory(prefix="random_hangs") as name:
        folder = Path(name)
        loader = plan.loader(folder)
        try:
            iterator = iter(loader)
            units = list(islice(iterator, plan.stop_at // (plan.batch if plan.family == "map" else 1)))
            state = loader.state_dict()
        finally:
            _end(loader)
            iterator = loader = None
        loader = plan.loader(folder, plan.stop_at)
        try:
            loader.load_state_dict(state)
            units += list(loader)
            again = list(loader)
        finally:
            _end(loader)
            loader = None
        hung = len(list(folder.glob("hung*")))
    expected = [number * number for number in range(plan.items)]
    for got in (units, again):
        flat = [number for unit in got for number in unit] if plan.family == "map" else got
        assert (flat if plan.in_order else sorted(flat)) == expected, f"{flat} in place of {expected}"
    deadline = time.monotonic() + GONE
    while (left := set(children()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"processes were left behind: {[told(pid) for pid in left]}"
    return hung


DRIVER = Driver(lambda seed, options: Plan(seed, tuple(options.start_methods.split(","))), check, "hangs")
