"""If Ctrl-C interrupts a graph of nodes at any call, no item is lost or repeated, and states stay exact."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

import torchdata.nodes as tn
from pressing import check_each_call
from resumed import TakesOnce

# Python cannot raise a KeyboardInterrupt while it deletes a generator, so a warning is emitted and ignored.
pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


class Yielding:
    def __iter__(self) -> Iterator[int]:
        yield from map(abs, range(7))


def numbers(count: int = 7) -> tn.BaseNode[int]:
    return tn.IterableWrapper([*range(count)])


def two() -> dict[str, tn.BaseNode[int]]:
    return {"a": numbers(4), "b": numbers(2)}


def half(number: int) -> float:
    return number / 2


def is_kept(number: int) -> bool:
    return number % 3 > 0


BATCHES = [[1, 2], [], [3, 4, 5]]
ALL = tn.StopCriteria.ALL_DATASETS_EXHAUSTED
GRAPHS: dict[str, Callable[[], tn.BaseNode[Any]]] = {
    "list": numbers,
    "generator": lambda: tn.IterableWrapper(Yielding()),
    "stateful": lambda: tn.IterableWrapper(TakesOnce()),
    "sampler": lambda: tn.SamplerWrapper(DistributedSampler(range(14), 2, 0)),
    "map-style": lambda: tn.MapStyleWrapper([*range(7)], [*range(6, -1, -1)]),
    "Mapper": lambda: tn.Mapper(numbers(), half),
    "Mapper of C": lambda: tn.Mapper(numbers(), str),
    "prebatch": lambda: tn.ParallelMapper(numbers(), half, 0, prebatch=2),
    "Filter": lambda: tn.Filter(numbers(), is_kept),
    "Batcher": lambda: tn.Batcher(numbers(), 2, False),
    "Collator": lambda: tn.Collator(numbers(), 2, collate_fn=sum, drop_last=False),
    "Unbatcher": lambda: tn.Unbatcher(tn.Batcher(numbers(), 3, False)),
    "Unbatcher of a list": lambda: tn.Unbatcher(tn.IterableWrapper(BATCHES)),
    "Header": lambda: tn.Header(numbers(), 4),
    "Cycler": lambda: tn.Cycler(numbers(3), 2),
    "Cycler of a sampler": lambda: tn.Cycler(tn.SamplerWrapper(DistributedSampler(range(6), 2, 0)), 2),
    "Shuffler": lambda: tn.Shuffler(numbers(), 3, seed=1),
    "Shuffler without its buffer": lambda: tn.Shuffler(numbers(), 3, seed=1, store_buffer=False),
    "round robin": lambda: tn.MultiNodeRoundRobinSampler(two()),
    "round robin, all": lambda: tn.MultiNodeRoundRobinSampler(two(), ALL, tag_output=True),
    "weighted": lambda: tn.MultiNodeWeightedSampler(two(), {"a": 0.5, "b": 0.5}, ALL, tag_output=True),
    "Prefetcher": lambda: tn.Prefetcher(numbers(), 2),
    "threads": lambda: tn.ParallelMapper(numbers(), half, 2),
    "Prefetcher, batches": lambda: tn.Batcher(tn.Prefetcher(numbers(), 2), 2, False),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_ctrl_c_at_each_call_neither_loses_nor_repeats_an_item(kind: str) -> None:
    assert check_each_call(lambda: tn.Loader(GRAPHS[kind]())) > 12


def test_with_full_statistics_ctrl_c_at_each_call_neither_loses_nor_repeats_an_item() -> None:
    assert check_each_call(lambda: tn.Loader(tn.Mapper(numbers(), half), stats="full")) > 12
