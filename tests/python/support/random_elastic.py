"""Random loaders that go on with other numbers of workers and ranks, against one that was never stopped.

    python -m random_elastic --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m random_elastic --seed 17 --runs 1              # one of them again

A plan has a pipeline and a chain of shapes (ranks, workers). A model deals the items out that are left, in their global
order; in strict order each rank must give exactly those, in that order. Ranks are threads of this process.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from driving import drive, parser_of
from rank_threads import ThreadGroup, in_ranks
from torchdata._engine import snapshots
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

Shape = tuple[int, int]


def plain(item: Any) -> Any:
    return item, 1


def some(item: Any) -> bool:
    return sum(map(ord, repr(item))) % 5 != 0


def twice(item: Any) -> list[Any]:
    return [item, (item, "again")]


def fixed(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item


def unpinned(item: Any, device: Any) -> Any:
    return item


class Generated(IterDataPipe):
    """A user's pipe without a state."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        for number, item in enumerate(self.source):
            yield item, number


class Marked(IterDataPipe):
    """A user's pipe that says that it is one to one."""

    one_to_one = True

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        for item in self.source:
            yield "marked", item


class Plan:
    """What is done, drawn from a seed.

    Args:
        seed: the seed.
        moving: whether some of the loaders have no workers, if the pipeline allows that.
        methods: start methods to choose from.
    """

    def __init__(self, seed: int, moving: bool = False, methods: Sequence[str] = ("fork",)) -> None:
        dice = random.Random(seed)
        self.seed = seed
        self.moving = moving
        self.kind = dice.choice(["filter", "filter", "batch", "dispatch", "dispatch", "main"])
        self.items = dice.choice([9, 23, 47, 60])
        self.source = dice.choice(["iterable", "iterable", "map"])
        steps = ["shuffle", "plain", "filter", "flatmap", "generated", "cycle", "prefetch"]
        self.before = [dice.choice(steps) for _ in range(dice.randrange(4))]
        if self.kind == "main":
            # Later passes take their seeds from the generators of the process, and replays look whether these were
            # drawn from: ranks that are threads have them in common.
            self.before = [step for step in self.before if step not in ("cycle", "generated")]
        self.between = [dice.choice(["plain", "marked"]) for _ in range(dice.randrange(2))]
        self.behind = [dice.choice(["plain", "marked", "prefetch", "threads"]) for _ in range(dice.randrange(3))]
        self.batch, self.drop_last = dice.choice([2, 3]), dice.random() < 0.3
        self.pins = dice.random() < 0.2
        self.always_ranks = dice.random() < 0.5
        self.in_order = dice.random() < 0.8
        self.epoch = dice.choice([0, 0, 1])
        self.cadence = dice.choice([(0.0, 0.0), (0.0, 0.0), (0.001, 1.0), (0.02, 100.0)])
        ranks, workers = [1, 1, 1, 2, 3, 4], [1, 2, 3, 4, 8]
        self.shapes: list[Shape] = []
        while len(self.shapes) < dice.choice([2, 2, 3, 4]):
            shape = dice.choice(ranks), 0 if self.kind == "main" else dice.choice(workers)
            if shape[0] * shape[1] <= 8:
                self.shapes.append(shape)
        self.takes = [dice.random() for _ in self.shapes]
        self.ago = [dice.choice([0, 0, 1, 2]) for _ in self.shapes]
        dice = random.Random(f"skipping {seed}")
        #: Of each loader: before which of its items it skips how many; -1: none.
        self.skips = [
            (dice.choice([-1, 0, 0.5, dice.random()]), dice.choice([1, 2, 5, 20])) if self.in_order else (-1, 0)
            for _ in self.shapes
        ]
        dice = random.Random(f"moving {seed}")
        self.method = dice.choice(methods)
        self.in_main: Any = dice.choice([InProcessReadingService(), InProcessReadingService(prefetch_cnt=3), None])
        if moving and self.kind in ("filter", "batch"):
            self.shapes = [(ranks, dice.choice([0, workers])) for ranks, workers in self.shapes]
            if any(ranks > 1 and not workers for ranks, workers in self.shapes):
                self.before = [step for step in self.before if step != "generated"]  # as above

    def pipe(self) -> Any:
        if self.source == "map":
            pipe = SequenceWrapper(range(self.items)).shuffle()
        else:
            pipe = IterableWrapper(range(self.items)).shuffle()
        for step in self.before:
            pipe = self._add(pipe, step)
        pipe = pipe.sharding_filter()
        if self.kind == "dispatch":
            for step in self.between:
                pipe = self._add(pipe, step)
            pipe = pipe.sharding_round_robin_dispatch()
        elif self.kind == "batch":
            pipe = pipe.batch(self.batch, drop_last=self.drop_last).map(fixed)
        for step in self.behind:
            pipe = self._add(pipe, step)
        return pipe.pin_memory(pin_memory_fn=unpinned) if self.pins and self.kind != "main" else pipe

    @staticmethod
    def _add(pipe: Any, step: str) -> Any:
        return {
            "shuffle": lambda: pipe.shuffle(buffer_size=5),
            "plain": lambda: pipe.map(plain),
            "filter": lambda: pipe.filter(some),
            "flatmap": lambda: pipe.flatmap(twice),
            "generated": lambda: Generated(pipe),
            "marked": lambda: Marked(pipe),
            "cycle": lambda: pipe.cycle(2),
            "prefetch": lambda: pipe.prefetch(3),
            "threads": lambda: pipe.threadpool_map(plain, scheduled_tasks=2, max_workers=2),
        }[step]()

    def loader(self, shape: Shape, group: ThreadGroup | None, state: Any) -> DataLoader2[Any]:
        services: list[Any] = []
        if group is not None and (group.world_size > 1 or self.always_ranks):
            services.append(DistributedReadingService(30, process_group=group))
        if shape[1]:
            services.append(MultiProcessingReadingService(shape[1], self.method, in_order=self.in_order))
        elif not services:
            services.append(copy.copy(self.in_main) if self.moving else InProcessReadingService())
        service = services[0] if len(services) == 1 else SequentialReadingService(*services)
        adapters = [ShardingPolicy(self.batch)] if self.kind == "batch" else []
        loader = DataLoader2(self.pipe(), adapters, service)
        if state is None:
            loader.seed(self.seed)
        else:
            loader.load_state_dict(state)
        return loader

    def deal(self, left: list[int], shape: Shape) -> list[list[int]]:
        """What each rank gives of the units that are left."""
        ranks, workers = shape
        workers = 1 if self.kind in ("dispatch", "main") else max(1, workers)
        shares: list[list[int]] = [[] for _ in range(ranks)]
        for place, unit in enumerate(left):
            shares[place % (ranks * workers) // workers].append(unit)
        return shares

    def is_dealt_anew(self, old: Shape, new: Shape) -> bool:
        return old[0] != new[0] if self.kind == "dispatch" else old != new

    def __repr__(self) -> str:
        return f"seed {self.seed}: { {name: value for name, value in vars(self).items() if name != 'seed'} }"


class Differs(AssertionError):
    """A loader did not go on as the model."""


def never_stopped(plan: Plan, epochs: int) -> list[list[Any]]:
    """The units of each epoch in their global order."""
    shape = 1, int(plan.kind != "main")
    agreed = plan.always_ranks or plan.shapes[0][0] > 1
    before, plan.always_ranks = plan.always_ranks, agreed

    def body(group: ThreadGroup) -> list[list[Any]]:
        with plan.loader(shape, group, None) as loader:
            return [list(loader) for _ in range(epochs)]

    try:
        return in_ranks(1, body)[0]
    finally:
        plan.always_ranks = before


#: Stands for an item that was skipped.
SKIPPED = "skipped"


def run(
    plan: Plan, shape: Shape, state: Any, skip: int, take: int | None, ago: int, skipped: range
) -> tuple[list[Any], Any, Any]:
    """What each rank gives, the state after so many items, and the next epoch where the epoch is read to its end.

    Args:
        plan: the plan.
        shape: ranks and workers.
        state: from which it goes on.
        skip: how many epochs are read before.
        take: how many items are taken; None for all.
        ago: as of how many items ago the state is taken.
        skipped: which of the items are skipped; only there, in all of `take`.
    """

    def body(group: ThreadGroup) -> tuple[list[Any], Any, Any]:
        with plan.loader(shape, group, state) as loader:
            for _ in range(skip):
                list(loader)
            reading = iter(loader)
            got = [next(reading) for _ in range(skipped.start)]
            if skipped:
                passed = loader.skip(len(skipped))
                if passed != len(skipped):
                    raise Differs(f"{passed} items were skipped instead of {len(skipped)}")
                got += [SKIPPED] * passed
            if take is None:
                return got + list(reading), None, list(loader)
            got += [next(reading) for _ in range(take - len(got))]
            return got, pickle.loads(pickle.dumps(loader.state_dict(items_ago=ago))), None

    found = in_ranks(shape[0], body)
    states = {rank: each[1] for rank, each in enumerate(found)}
    return [each[0] for each in found], states if shape[0] > 1 else states[0], [each[2] for each in found]


def check(plan: Plan) -> int:
    """Runs a plan; returns the number of changes that were compared."""
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    epochs = never_stopped(plan, plan.epoch + 2)
    units = epochs[plan.epoch]
    left = list(range(len(units)))
    shares = plan.deal(left, plan.shapes[0])
    state: Any = None
    seen: list[Any] = []
    for number, shape in enumerate(plan.shapes):
        if number and plan.is_dealt_anew(plan.shapes[number - 1], shape):
            shares = plan.deal(left, shape)
        shortest = min(map(len, shares))
        last = number + 1 == len(plan.shapes)
        take = None if last else int(plan.takes[number] * (shortest + (1 if shape[0] == 1 else 0)))
        ago = 0 if take is None else min(plan.ago[number], take)
        share, count = plan.skips[number]
        most = shortest if take is None else take - ago
        start = int(share * most) if share >= 0 else 0
        skipped = range(start, min(start + count, most) if share >= 0 else start)
        got, state, following = run(plan, shape, state, plan.epoch if not number else 0, take, ago, skipped)
        expected = [share[: shortest if take is None else take] for share in shares]
        if plan.in_order:
            given = [
                [SKIPPED if place in skipped else units[unit] for place, unit in enumerate(share)] for share in expected
            ]
            compare(plan, number, got, given)
        else:
            seen += [item for each in got for item in each[: len(each) - ago]]
        if last:
            compare_end(plan, shape, units, seen, following, epochs)
            break
        if take is not None and not plan.in_order:
            # Which units were given shows by the items alone, so that the model ends here but for the whole.
            given = Counter(repr(item) for item in seen)
            left = [unit for unit in range(len(units)) if not _counted(given, repr(units[unit]))]
            shares = plan.deal(left, shape)
            if shape[0] > 1:
                shares = [share[: max(0, min(map(len, shares)) - shape[1] * 4)] for share in shares]
            continue
        kept = 0 if take is None else take - ago
        given_units = {unit for share in shares for unit in share[:kept]}
        shares = [share[kept:] for share in shares]
        left = [unit for unit in left if unit not in given_units]
    return len(plan.shapes) - 1


def _counted(given: Counter[str], item: str) -> bool:
    given[item] -= 1
    return given[item] >= 0


def compare_end(
    plan: Plan, shape: Shape, units: list[Any], seen: list[Any], following: Any, epochs: list[list[Any]]
) -> None:
    if not plan.in_order:
        if shape[0] == 1 and Counter(map(repr, seen)) != Counter(map(repr, units)):
            raise Differs(f"{len(seen)} items instead of {len(units)}: {seen} instead of {units}")
        surplus = Counter(map(repr, seen)) - Counter(map(repr, units))
        if surplus:
            raise Differs(f"too often: {surplus}")
        return
    agreed = {plan.always_ranks or ranks > 1 for ranks, _ in plan.shapes}
    if len(agreed) == 1:
        shares = plan.deal(list(range(len(epochs[plan.epoch + 1]))), shape)
        shortest = min(map(len, shares))
        compare(plan, "next", following, [[epochs[plan.epoch + 1][unit] for unit in s[:shortest]] for s in shares])


def compare(plan: Plan, where: Any, got: list[Any], expected: list[Any]) -> None:
    for rank, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one != other:
            pairs = enumerate(zip(one, other, strict=False))
            place = next((i for i, (mine, its) in pairs if mine != its), None)
            what = "" if place is None else f", item {place} is {one[place]!r:.80} instead of {other[place]!r:.80}"
            raise Differs(f"run {where}, rank {rank}: {len(one)} items instead of {len(other)}{what}")


def main(plan_of: Any = Plan, check: Callable[[Any], int] = check, description: str | None = __doc__) -> int:
    """Runs plans, of one seed after the other; 1 where one failed."""
    parser = parser_of(description)
    parser.add_argument("--moving", action="store_true", help="also from workers to none, and back")
    options = parser.parse_args()

    def made(seed: int) -> Any:
        return plan_of(seed) if plan_of is not Plan else Plan(seed, options.moving, options.start_methods.split(","))

    return drive(options, made, check, "changes")


if __name__ == "__main__":
    sys.exit(main())
