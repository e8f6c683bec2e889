"""Random pipelines and services for loaders, each drawn from a seed, and comparing what comes of them."""

from __future__ import annotations

import random
import sys
from zlib import crc32

import numpy as np

from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe


def drawing(item):
    """The item with numbers of the global generators."""
    return item, random.random(), int(np.random.randint(1000))


def plain(item):
    return item, 1


def some(item):
    """The same in each process: strings have other hashes there."""
    return crc32(repr(item).encode()) % 5 != 0 if not isinstance(item, (tuple, list)) else True


def twice(item):
    return [item, (item, "again")]


def large(item):
    """An array that goes through a block, and tells what it is of."""
    array = np.full(3000, len(repr(item)), dtype=np.int64)
    array[0] = sum(map(ord, repr(item)))
    return array


def unpinned(item, device):
    return item


class Generated(IterDataPipe):
    """A user's pipe without a state."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        for number, item in enumerate(self.source):
            yield item, number


class Summed(IterDataPipe):
    """A user's pipe whose state outlives its epochs."""

    def __init__(self, source):
        self.source = source
        self.seen = 0

    def reset(self):
        pass

    def __iter__(self):
        for item in self.source:
            self.seen += 1
            yield item, self.seen

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Plan:
    """A pipeline and a service, drawn from a seed."""

    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",)) -> None:
        dice = random.Random(seed)
        self.seed = seed
        self.kind = dice.choice(["none", "in process", "workers", "workers", "workers", "workers"])
        self.workers = dice.choice([1, 2, 2, 3, 4])
        self.method = dice.choice(methods)
        self.items = dice.choice([0, 1, 7, 23, 40, 60])
        self.threads = dice.random() < 0.25
        self.before = [self._step(dice) for _ in range(dice.randrange(3))]
        more = random.Random(f"lasting {seed}")
        if more.random() < 0.2:
            self.before.insert(more.randrange(len(self.before) + 1), more.choice(["summed", "cache"]))
        self.shard = dice.choice(["filter", "filter", "dispatch", "dispatch"])
        self.behind = [self._step(dice, behind=True) for _ in range(dice.randrange(4))]
        self.main = dice.choice([[], [], [], ["pin"], ["pin", "batch"], ["pin", "prefetch"]])
        self.options = {
            "worker_prefetch_cnt": dice.choice([0, 1, 3, 10]),
            "main_prefetch_cnt": dice.choice([0, 2, 10]),
            "memory_budget": dice.choice([None, None, 0, 1 << 20]),
        }
        self.cadence = dice.choice([(0.0, 0.0), (0.0, 0.0), (0.001, 1.0), (0.02, 100.0)])
        if self.lasting and (self.threads or self.shard == "dispatch"):
            # How far threads, and the dispatching process, run ahead of a header that leaves them is a matter of speed,
            # and with it what lasts.
            self.before, self.behind = (
                [step for step in steps if step != "header"] for steps in (self.before, self.behind)
            )

    def _step(self, dice, behind=False):
        steps = ["shuffle", "plain", "filter", "flatmap", "generated", "header", "cycle"]
        steps += ["prefetch"] if self.threads else ["drawing", "drawing"]
        if behind:
            steps += ["batch", "large", "summed", "cache"]
        return dice.choice(steps)

    @property
    def lasting(self):
        """The steps that remember something from epoch to epoch."""
        return {"summed", "cache"} & {*self.before, *self.behind}

    @property
    def lasts_dealt(self):
        """Whether the dispatching process remembers something from epoch to epoch."""
        return self.shard == "dispatch" and not {"summed", "cache"}.isdisjoint(self.before)

    def pipe(self):
        pipe = IterableWrapper(range(self.items)).shuffle()
        for step in self.before:
            pipe = self._add(pipe, step)
        if self.shard == "filter":
            pipe = pipe.sharding_filter()
        else:
            pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        for step in self.behind:
            pipe = self._add(pipe, step)
        if self.kind == "workers":
            for step in self.main:
                pipe = self._add(pipe, step)
        return pipe

    @staticmethod
    def _add(pipe, step):
        return {
            "shuffle": lambda: pipe.shuffle(buffer_size=5),
            "plain": lambda: pipe.map(plain),
            "drawing": lambda: pipe.map(drawing),
            "filter": lambda: pipe.filter(some),
            "flatmap": lambda: pipe.flatmap(twice),
            "generated": lambda: Generated(pipe),
            "summed": lambda: Summed(pipe),
            "header": lambda: pipe.header(17),
            "cycle": lambda: pipe.cycle(2),
            "prefetch": lambda: pipe.prefetch(3),
            "batch": lambda: pipe.batch(3),
            "large": lambda: pipe.map(large),
            "cache": lambda: pipe.in_memory_cache(),
            "pin": lambda: pipe.pin_memory(pin_memory_fn=unpinned),
        }[step]()

    def __repr__(self):
        shown = {name: value for name, value in vars(self).items() if name != "seed"}
        return f"seed {self.seed}: {shown}"


def key(item):
    """The item in a form that can be compared."""
    if isinstance(item, np.ndarray):
        return item[:1].tolist(), item.sum().item()
    return [key(one) for one in item] if isinstance(item, (list, tuple)) else item


def begin(seed=11):
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


class Differs(AssertionError):
    """A run that was stopped did not go on as the other one."""


def difference(got, expected):
    """Where two runs differ, in words."""
    what = f"{len(got)} items instead of {len(expected)}"
    pairs = zip(got, expected, strict=False)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if place is not None:
        what += f", item {place} is {got[place]!r:.150} instead of {expected[place]!r:.150}"
    return what
