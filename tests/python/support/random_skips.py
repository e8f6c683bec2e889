"""Random pipelines of functions that raise at random items, followed by `on_error`, compared with plain Python.

    python -m drivers skips --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …

A seed represents a pipeline in one process or in workers. Some workers exit and are replaced, and parts of the pipeline
may run in the dispatching process or in the main process. The pipeline is read completely, and up to a random item and
from the state there on. The items, their order and the counts must equal those of the model.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from drivers.frame import Driver
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes._pipe.skipping import table_of
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from torchdata.datapipes.state import load_state, save_state

MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING

#: The exceptions that functions raise.
KINDS = (ValueError, KeyError, OSError)


class Broken:
    """Determines whether and what a step raises at an item."""

    def __init__(self, salt: int, each: int) -> None:
        self.salt, self.each = salt, each

    def check(self, item: int) -> None:
        """Raises at some items."""
        chance = (item * 2654435761 + self.salt * 40503) % 1000003
        if chance % self.each == 0:
            raise KINDS[chance // self.each % len(KINDS)](f"item {item}")


class Mapping(Broken):
    """A function of items that may raise."""

    def __call__(self, item: int) -> int:
        self.check(item)
        return 3 * item + self.salt


class Choosing(Broken):
    """A predicate that may raise."""

    def __call__(self, item: int) -> bool:
        self.check(item)
        return item % 5 != 2


class Unfolding(Broken):
    """A function that returns several items for one, all at once."""

    def __call__(self, item: int) -> list[int]:
        self.check(item)
        return [item + k for k in range(item % 4)]


class Making(Broken):
    """A generator function that may raise in the middle of its items."""

    def __call__(self, item: int) -> Iterator[int]:
        for k in range(1 + item % 3):
            self.check(item + k)
            yield item + k


STEPS = {"map": Mapping, "filter": Choosing, "flatmap": Unfolding, "generate": Making}
FORMS = {"map": "map", "filter": "filter", "flatmap": "flatmap", "generate": "flatmap"}
NAMES = {"map": "Mapper", "filter": "Filter", "flatmap": "FlatMapper"}


class Stay(IterDataPipe[Any]):
    """A pipe that passes items on in the main process, where its readers also stay."""

    one_to_one = True

    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source_datapipe)

    def is_replicable(self) -> bool:
        return False


class Plan:
    """The pipeline of a seed."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"skips {seed}")
        self.seed, self.dice = seed, dice
        self.items = dice.choice([0, 1, 7, 60, 60, 200])
        self.steps = [
            (kind, STEPS[kind](salt, dice.choice([2, 3, 5, 11, 10**9])))
            for salt in range(dice.randint(1, 4))
            for kind in [dice.choice([*STEPS])]
        ]
        self.workers = dice.choice([0, 0, 1, 2, 3])
        #: The step before which the items are distributed.
        self.shard = dice.randint(0, len(self.steps))
        self.shuffles = dice.random() < 0.3
        self.batch = dice.choice([0, 0, 3])
        self.inner = dice.choice([None, None, dice.randint(0, len(self.steps))])
        self.deaths = dice.random() < 0.5
        cuts = random.Random(f"cuts {seed}")
        #: Whether the pipes before the distribution run in the dispatching process.
        self.dispatches = self.workers > 0 and cuts.random() < 0.4
        #: The step from which on the pipes run in the main process.
        self.main = len(self.steps) + 1
        if self.workers and cuts.random() < 0.3:
            self.main = cuts.randint(self.shard, len(self.steps))

    def __repr__(self) -> str:
        return f"Plan({self.seed}): {[(kind, b.salt, b.each) for kind, b in self.steps]} {vars(self)}"

    def pipe(self) -> IterDataPipe[Any]:
        """Builds the pipeline, each time from scratch."""
        pipe: Any = IterableWrapper(range(self.items))
        for number, (kind, function) in enumerate([*self.steps, ("", None)]):
            if number == self.shard and self.workers:
                pipe = (
                    pipe.sharding_round_robin_dispatch(MULTIPROCESSING) if self.dispatches else pipe.sharding_filter()
                )
            if number == self.main:
                pipe = Stay(pipe)
            if number == self.inner:
                pipe = pipe.on_error("skip")
            if function is not None:
                pipe = getattr(pipe, FORMS[kind])(function)
        if self.shuffles and not self.workers:
            pipe = pipe.shuffle(buffer_size=7).set_seed(self.seed)
        if self.batch:
            pipe = pipe.batch(self.batch)
        return pipe.on_error("skip")  # type: ignore[no-any-return]

    def model(self) -> tuple[list[Any], Counter[tuple[str, str]]]:
        """Returns what all processes together yield and skip."""
        skipped: Counter[tuple[str, str]] = Counter()
        items = self._after(self.steps[: self.shard], range(self.items), skipped)
        if self.workers:
            for key in skipped if not self.dispatches else ():  # each worker computes them
                skipped[key] *= self.workers
        in_main = self.main <= len(self.steps)
        shares = []
        for worker in range(self.workers or 1):
            share = self._after(self.steps[self.shard : self.main], items[worker :: self.workers or 1], skipped)
            shares.append(share if in_main else self._batched(share))
        taken = [share[at] for at in range(max(map(len, shares))) for share in shares if at < len(share)]
        return self._batched(self._after(self.steps[self.main :], taken, skipped)) if in_main else taken, skipped

    @staticmethod
    def _after(steps: list[Any], items: Iterable[int], skipped: Counter[tuple[str, str]]) -> list[int]:
        """Returns the items after some steps."""
        for kind, function in steps:
            made: list[int] = []
            for item in items:
                try:
                    if kind == "map":
                        made.append(function(item))
                    elif kind == "filter":
                        made += [item] if function(item) else []
                    else:
                        for part in function(item):
                            made.append(part)
                except KINDS as error:
                    skipped[type(error).__name__, f"{NAMES[FORMS[kind]]}({type(function).__name__})"] += 1
            items = made
        return list(items)

    def _batched(self, items: list[int]) -> list[Any]:
        if not self.batch:
            return items
        return [items[at : at + self.batch] for at in range(0, len(items), self.batch)]


def members(items: list[Any]) -> list[int]:
    """Returns the items, or the members of batches."""
    return [member for item in items for member in (item if isinstance(item, list) else [item])]


def counts_of(told: list[Any]) -> list[int]:
    """Returns how many items each report counts as skipped."""
    words = [str(warning.message) for warning in told]
    return [int(one.split()[3]) for one in words if one.startswith("on_error has skipped")]


def check_alone(plan: Plan) -> None:
    """Checks items and counts without a loader, completely and from a state on."""
    expected, skipped = plan.model()
    if plan.shuffles:  # only for the order of a complete run
        whole = list(plan.pipe())
        assert sorted(members(whole)) == sorted(members(expected))
        expected = whole
    cut = plan.dice.randint(0, len(expected))
    pipe = plan.pipe()
    iterator = iter(pipe)
    with warnings.catch_warnings(record=True) as told_before:
        warnings.simplefilter("always")
        before = [next(iterator) for _ in range(cut)]
    state = save_state(pipe)
    for one in (None, state):
        other = plan.pipe()
        if one is not None:
            load_state(other, one)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = list(other)
        assert (got if one is None else before + got) == expected
        words = "\n".join(str(warning.message) for warning in told)
        if plan.inner is None:
            assert (table_of(skipped) in words) if skipped else not told, words
        else:  # each reports its part, the inner one possibly before the state was saved
            told = told if one is None else [*told_before, *told]
            assert sum(counts_of(told)) == sum(skipped.values())


def check_in_workers(plan: Plan) -> None:
    """Checks with workers, some of which may exit; from a state on; and with another number of workers."""
    expected, skipped = plan.model()
    how = "restart" if plan.deaths else "error"

    def loader(workers: int) -> DataLoader2[Any]:
        service = MultiProcessingReadingService(workers, "fork", on_worker_exit=how)
        return DataLoader2(plan.pipe(), reading_service=service)

    cut = plan.dice.randint(0, len(expected))
    state: Any = None
    with loader(plan.workers) as whole:
        for _ in range(2):
            got, blow = [], plan.dice.randint(0, len(expected)) if plan.deaths else None
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for item in whole:
                    got.append(item)
                    if len(got) == cut and state is None:
                        state = whole.state_dict()
                    if len(got) == blow:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(plan.dice.choice(whole.reading_service._children.pids), signal.SIGKILL)  # type: ignore
            assert got == expected
            # the loader reports once for all workers, and each pipe in the main process for its part
            if not plan.deaths:
                assert sum(counts_of(told)) == sum(skipped.values())
        if not plan.deaths:
            assert sum(pipe.skipped for pipe in whole.stats().pipes) == 2 * sum(skipped.values())
    if state is None:
        return
    with loader(plan.workers) as other:
        other.load_state_dict(state)
        assert list(other) == expected[cut:]
    with loader(plan.workers + 1) as other:
        other.load_state_dict(state)
        assert list(other) == expected[cut:]


def check(plan: Plan) -> int:
    """Runs the pipeline of a seed; returns the number of items."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if plan.workers:
            check_in_workers(plan)
        else:
            check_alone(plan)
    return len(plan.model()[0])


DRIVER = Driver(lambda seed, _: Plan(seed), check, "items")
