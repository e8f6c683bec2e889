"""A loader detects workers that read their source in different orders, by comparing samples of the items."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pytest

from resuming import resumed, stopped
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper


@dataclass
class Case:
    key: str
    pixels: Any


def as_case(number: int) -> Case:
    import numpy

    return Case(f"case{number}", numpy.full((2, 2), number))


class Shuffled:
    def __init__(self, size: int, make: Callable[[int], Any] = int, seed: int | None = None) -> None:
        self.size, self.make, self.seed = size, make, seed

    def __iter__(self) -> Iterator[Any]:
        numbers = list(range(self.size))
        random.Random(self.seed).shuffle(numbers)
        return map(self.make, numbers)


class SizedSampler(Shuffled):
    def __len__(self) -> int:
        return self.size


class Augmented:
    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((number % 50, random.randrange(4)) for number in range(500))


def endless() -> Iterator[int]:
    rng, number, buffer = random.Random(), 0, list(range(1, 100))
    while True:
        index = rng.randrange(len(buffer))
        number, buffer[index] = buffer[index], buffer[index] + 100
        yield number


def hundreds() -> Iterator[int]:
    yield from (number % 100 for number in range(3000))


def is_drawn(item: int) -> bool:
    return random.random() < 0.8


def loading(pipe: IterDataPipe[Any], workers: int = 2, method: str = "fork", **options: Any) -> DataLoader2[Any]:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, method, **options))


def fails(pipe: IterDataPipe[Any], *args: Any, **options: Any) -> None:
    with loading(pipe, *args, **options) as loader:
        loader.seed(7)
        with pytest.raises(RuntimeError, match=r"over \w+ in different orders.*sharding_round_robin_dispatch"):
            until = time.monotonic() + 120
            list(takewhile(lambda _: time.monotonic() < until, loader))


@pytest.mark.parametrize(("size", "method"), [(20, "spawn"), (6, "fork"), (36, "fork"), (37, "fork"), (5000, "fork")])
def test_workers_that_read_different_orders_are_an_error(size: int, method: str) -> None:
    fails(IterableWrapper(Shuffled(size)).sharding_filter(), 3, method)


def test_shards_in_the_main_process_that_read_different_orders_are_an_error() -> None:
    for size in (20, 500):
        with DataLoader2(IterableWrapper(Shuffled(size)).sharding_filter().cycle(1), splits=3) as loader:
            loader.seed(7)
            with pytest.raises(RuntimeError, match="over Shuffled in different orders"):
                list(loader)


@pytest.mark.parametrize("make", [str, as_case, lambda number: {"id": number}], ids=["strings", "objects", "dicts"])
def test_items_of_many_kinds_are_compared(make: Callable[[int], Any]) -> None:
    fails(IterableWrapper(Shuffled(30, make)).sharding_filter())


def test_a_loader_of_a_data_set_compares_the_items_before_it_batches_them() -> None:
    error = pytest.raises(RuntimeError, match="IterableWrapper over Shuffled in different orders")
    with DataLoader2.from_dataset(Shuffled(200), batch_size=8, num_workers=2) as loader, error:
        list(loader)


@pytest.mark.parametrize(("make", "size"), [(SizedSampler, 6), (SizedSampler, 500), (Shuffled, 6), (Shuffled, 2000)])
def test_the_indices_of_a_sampler_are_compared(make: Any, size: int) -> None:
    pipe = SequenceWrapper(range(size)).sample_by(make(size)).map(str).sharding_filter()
    fails(pipe, 3)
    with loading(SequenceWrapper(range(size)).sample_by(make(size, seed=3)).sharding_filter(), 3) as loader:
        assert sorted(loader) == list(range(size))


def test_an_endless_epoch_is_compared_while_it_runs_and_a_random_filter_raises_an_error() -> None:
    fails(IterableWrapper(endless).sharding_filter())
    fails(IterableWrapper(range(2000)).filter(is_drawn).sharding_filter())


@pytest.mark.parametrize("in_order", [True, False])
def test_one_process_may_read_any_order(in_order: bool) -> None:
    pipe = IterableWrapper(Shuffled(100)).sharding_round_robin_dispatch()
    with loading(pipe, in_order=in_order) as loader:
        assert sorted(loader) == sorted(loader) == list(range(100))


def test_random_values_in_one_order_raise_no_error() -> None:
    with loading(IterableWrapper(Augmented()).sharding_filter(), 3) as loader:
        assert sorted(number for number, _ in loader) == sorted([*range(50)] * 10)


def test_epochs_that_resume_in_the_middle_raise_no_error() -> None:
    pipe = IterableWrapper(hundreds).sharding_filter()
    expected = list(hundreds())
    for index in (1, 1500):
        items, state = stopped(loading(pipe), index)
        rest, following = resumed(loading(pipe), state, 2)
        assert items + rest == following == expected


def is_sampled(_number: int) -> bool:
    return witnessing.current is not None


def test_a_worker_that_continues_from_a_snapshot_samples_nothing(often: None) -> None:
    pipe = IterableWrapper(Counting(40)).shuffle().sharding_filter().cycle(2).map(is_sampled)
    head, state = stopped(loading(pipe), 41)
    assert all(head)
    rest, following = resumed(loading(pipe), state, 2, strict=False)  # A strict loader would refuse the changed items.
    assert not any(rest)
    assert all(following)


@pytest.mark.parametrize("block", [1, 2, 7])
def test_an_iterator_that_starts_over_yields_each_item_once(block: int) -> None:
    for size in (1, 36, 37, 1000):
        with loading(IterableWrapper(Counting(size)).sharding_filter().set_sharding_block(block), 3) as loader:
            assert sorted(loader) == sorted(loader) == list(range(size))


class Counting:
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return Restarting(self.size)


class Restarting(Iterator[int]):
    def __init__(self, size: int) -> None:
        self.size, self.next = size, 0

    def __next__(self) -> int:
        if self.next == self.size:
            self.next = 0
            raise StopIteration
        self.next += 1
        return self.next - 1
