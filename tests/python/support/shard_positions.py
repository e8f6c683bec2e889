"""Resumes from every position of short epochs in new processes, with every number of workers or ranks.

For each plan, which consists of a pipeline and a number of workers, a loader saves a state at each position. A new
interpreter loads each state with each number of workers, and reads three epochs."""

import argparse
import copy
import itertools
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from drivers.frame import Driver
from random_graphs.elsewhere import elsewhere
from rank_threads import in_ranks

FOLDER = Path(__file__).resolve().parents[1]
sys.path += [str(FOLDER / "dataloader2"), str(FOLDER / "stateful_dataloader")]

ITEMS, SPLIT_ITEMS, SPLITS = 11, 24, 12
WORKERS = (0, 1, 2, 3, 5, 8)
#: Numbers of ranks and workers. If several ranks run as threads of one process, their loaders must have workers.
RANKS = ((1, 0), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2))
STATEFUL = ("Plain", "WithState", "WithIterator", "shuffled_pipe")


class Different(AssertionError):
    """Raised if a resumed epoch differs from the uninterrupted epoch."""


@dataclass(frozen=True)
class Plan:
    kind: str
    form: str
    old: Any

    @property
    def numbers(self) -> tuple[Any, ...]:
        return RANKS if self.kind == "splits" else WORKERS


def plans(kinds: list[str]) -> Iterator[Plan]:
    import test_shards

    forms = {"workers": [*test_shards.FORMS], "splits": [*test_shards.FORMS], "stateful": [*STATEFUL]}
    for kind in kinds:
        for form in forms[kind]:
            yield from (Plan(kind, form, old) for old in Plan(kind, form, None).numbers)


def workers(plan: Plan, number: int, state: Any, read: Callable[[Any], Any]) -> list[Any]:
    import test_shards

    test_shards.ITEMS = ITEMS
    with test_shards.loader(plan.form, number, state) as loader:
        return [read(loader)]


def splits(plan: Plan, number: tuple[int, int], state: Any, read: Callable[[Any], Any]) -> list[Any]:
    import test_shards

    from torchdata.dataloader2 import DataLoader2, DistributedReadingService, SequentialReadingService

    ranks, count = number
    test_shards.ITEMS = SPLIT_ITEMS

    def body(group: Any) -> Any:
        inner = test_shards.service(count)
        if ranks > 1:
            inner = SequentialReadingService(DistributedReadingService(60, process_group=group), inner)
        with DataLoader2(test_shards.FORMS[plan.form](), reading_service=inner, splits=SPLITS) as loader:
            loader.seed(3) if state is None else loader.load_state_dict(state if len(state) > 1 else state[0])
            return read(loader)

    return in_ranks(ranks, body)


def stateful(plan: Plan, number: int, state: Any, read: Callable[[Any], Any]) -> list[Any]:
    import test_stateful_shards

    loader = test_stateful_shards.loader(getattr(test_stateful_shards, plan.form), number)
    if state is not None:
        loader.load_state_dict(state)
    return [read(loader)]


KINDS = {"workers": workers, "splits": splits, "stateful": stateful}


def epochs(plan: Plan, number: Any, state: Any = None) -> list[list[Any]]:
    count = 1 if plan.kind == "stateful" else 3
    return KINDS[plan.kind](plan, number, state, lambda loader: [epoch(loader) for _ in range(count)])


def epoch(loader: Any) -> list[Any]:
    seed_generators()
    return list(loader)


def seed_generators() -> None:
    random.seed(5)
    numpy.random.seed(5)


def states(plan: Plan) -> list[Any]:
    def read(loader: Any) -> list[Any]:
        seed_generators()
        reading, found = iter(loader), []
        while True:
            found.append(pickle.loads(pickle.dumps(loader.state_dict())))
            if next(reading, reading) is reading:
                return found[:-1]

    by_rank = KINDS[plan.kind](plan, plan.old, None, read)
    return [dict(enumerate(each)) if plan.kind == "splits" else each[0] for each in zip(*by_rank, strict=True)]


def check(plan: Plan) -> int:
    os.environ["DRAWS"] = "1"  # makes the pipeline's functions draw random numbers
    whole = {number: epochs(plan, number) for number in plan.numbers}
    if plan.kind == "splits":  # several ranks agree on another seed than a single rank
        for number, found in whole.items():
            if found != whole[next(one for one in plan.numbers if one[0] == number[0])]:
                raise Different(f"the epochs with {number} differ from the epochs with other workers")
    saved = states(plan)
    elsewhere("shard_positions", "judge", plan, saved, whole)
    return len(saved) * len(plan.numbers)


def judge(*arguments: Any) -> None:
    if found := [*differences(*arguments)]:
        raise Different("\n".join(found)[:3000])


def differences(plan: Plan, saved: list[Any], whole: dict[Any, list[Any]]) -> Iterator[str]:
    import test_shards

    from torchdata.dataloader2.state.worker_positions import lasts

    keeps = plan.kind == "workers" and lasts(test_shards.FORMS[plan.form]())
    for position, state in enumerate(saved):
        for new in plan.numbers:
            if plan.kind == "stateful" and plan.old == 0 and position == 0 and new:
                continue  # before the first item, an epoch uses the new loader's workers
            try:
                found = epochs(plan, new, copy.deepcopy(state))
            except Exception as error:
                yield f"{plan} at {position} with {new}: {type(error).__name__}: {error}"
                continue
            if plan.kind == "splits" and new[0] != plan.old[0]:
                each = _left_by_shard(saved, 0), _left_by_shard(saved, position)
                wrong = _in_other_ranks(whole[plan.old], position, found, *each)
                if wrong:
                    yield f"{plan} at {position} with {new}: {wrong}"
                continue
            # If a state was saved after an epoch had begun, the resumed epoch keeps its number of workers.
            has_begun = position or plan.kind == "stateful" or keeps
            first, later = whole[plan.old if has_begun else new], whole[plan.old if keeps else new]
            for rank, (rest, *more) in enumerate(found):
                if rest != first[rank][0][position:]:
                    yield f"{plan} at {position} with {new}: {rest} instead of {first[rank][0][position:]}"
                elif more != later[rank][1:]:
                    yield f"{plan} at {position} with {new}, later: {more} instead of {later[rank][1:]}"


def _left_by_shard(saved: list[Any], position: int) -> list[int]:
    from torchdata.dataloader2.state.layout import parse

    left, ranks = [0] * SPLITS, len(saved[0])
    for rank in range(ranks):
        positions = [parse(state[rank]).position for state in saved[position:]]
        received = [[shard.received[0] for shard in (each.without_held or each.workers).shards] for each in positions]
        for before, after in itertools.pairwise(received):
            left[
                rank + ranks * next(i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
            ] += 1
    return left


def _in_other_ranks(whole: list[Any], position: int, found: list[Any], sizes: list[int], left: list[int]) -> str:
    expected = [item for step in zip(*(each[0] for each in whole), strict=True) for item in step][
        position * len(whole) :
    ]
    got = [item for step in zip(*(each[0] for each in found), strict=True) for item in step]
    is_even = max(sizes) - min(sizes) <= 1  # the last item is not counted
    if is_even and len(whole) * position % len(found) == 0 and len(expected) == len(got):
        return "" if got == expected else f"{got} instead of {expected}"
    missing = [item for item in expected if item not in got]
    least = min(sum(left[rank :: len(found)]) for rank in range(len(found))) * len(found)
    if len(got) < least or len(missing) > len(expected) - least:
        return f"{missing} are missing in {got}, of at least {least}"
    return ""


def plan_of(seed: int, options: argparse.Namespace) -> Plan | None:
    every = [*plans(options.kinds.split(","))]
    number = (options.seed - 1) % len(every) + seed - options.seed
    return every[number] if number < len(every) else None


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", default="workers,splits,stateful", help="to choose from")


DRIVER = Driver(plan_of, check, "loads", limit=900.0, more=more)
