"""Samplers that draw random numbers during an epoch resume exactly, even if they are endless or repeat indices."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from families import Mapped
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from resumed import advanced, epochs_of, loaded, plain, saved, seed_all
from torchdata.stateful_dataloader import StatefulDataLoader

GENERATORS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: torch.Generator().manual_seed(3),
    "Python's": lambda: random.Random(3),
    "NumPy's": lambda: numpy.random.default_rng(3),
    "NumPy's, of Mersenne's kind": lambda: numpy.random.RandomState(3),
}


def permuted(kind: str, generator: Any, count: int) -> list[int]:
    if kind.startswith("torch"):
        return torch.randperm(count, generator=generator).tolist()
    if kind.startswith("Python"):
        numbers = list(range(count))
        (generator or random).shuffle(numbers)
        return numbers
    return (generator or numpy.random).permutation(count).tolist()


class Drawing(Sampler[Any]):
    def __init__(self, kind: str, is_global: bool) -> None:
        self.kind, self.generator = kind, None if is_global else GENERATORS[kind]()

    def permuted(self, count: int) -> list[int]:
        return permuted(self.kind, self.generator, count)


class Endless(Drawing):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from self.permuted(6)


class Blocks(Drawing):
    def __iter__(self) -> Iterator[int]:
        for start in range(0, 30, 6):
            yield from (start + number for number in self.permuted(6))


class EachIndex(Drawing):
    def __iter__(self) -> Iterator[int]:
        for _ in range(30):
            yield self.permuted(24)[0]


class Buckets(Drawing):
    def __iter__(self) -> Iterator[list[int]]:
        pool: list[int] = []
        for start in range(0, 30, 6):
            pool += [start + number for number in self.permuted(6)]
            while len(pool) > 3:
                yield [pool.pop(self.permuted(len(pool))[0]), pool.pop()]
        yield pool


class Repeated:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class KeptBlocks(Blocks):
    def __init__(self, kind: str, is_global: bool) -> None:
        super().__init__(kind, is_global)
        self.start, self.left = 0, [*range(0)]

    def __iter__(self) -> Iterator[int]:
        while self.left or self.start < 30:
            if not self.left:
                self.left = [self.start + number for number in self.permuted(6)]
                self.start += 6
            yield self.left.pop()
        self.start = 0

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.left = state["start"], list(state["left"])


def augmented(index: int) -> int:
    torch.rand(3)
    numpy.random.random()
    return index + 0 * random.randrange(10)


def repeated(kind: str, is_global: bool) -> dict[str, Any]:
    generator = None if is_global else GENERATORS["torch's"]()
    return {"batch_sampler": Repeated(BatchSampler(RandomSampler(range(7), generator=generator), 2, False))}


SAMPLERS: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    "endless": lambda *drawn: {"sampler": Endless(*drawn), "batch_size": 2},
    "blocks": lambda *drawn: {"sampler": Blocks(*drawn), "batch_size": 2},
    "each index": lambda *drawn: {"sampler": EachIndex(*drawn), "batch_size": 2},
    "single": lambda *drawn: {"sampler": Blocks(*drawn), "batch_size": None},
    "buckets": lambda *drawn: {"batch_sampler": Buckets(*drawn)},
    "repeated": repeated,
    "with a state": lambda *drawn: {"sampler": KeptBlocks(*drawn), "batch_size": 2},
}


def read(batches: Iterator[Any], count: int, draws: bool) -> list[Any]:
    found = []
    for batch in itertools.islice(batches, count):
        found.append(plain(batch))
        if draws:
            torch.rand(5)
            numpy.random.random(3)
            random.random()
    return found


def check_each_position(make: Callable[[], Any], positions: Any, draws: bool) -> None:
    seed_all()
    whole = read(iter(make()), 13, draws)
    for position in positions:
        found: list[Any] = []
        state = None
        for count in (position, 2, 11 - position):
            seed_all()
            loader = make()
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            found += read(batches, count, draws)
            state = saved(loader)
            del batches, loader
        assert found == whole, position


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_draws_later_gives_the_same_order_from_each_position(name: str, kind: str) -> None:
    is_global = ([*SAMPLERS].index(name) + [*GENERATORS].index(kind)) % 2 == 1
    draws = is_global and name != "with a state"

    def make() -> Any:
        dataset: Any = Mapped(augmented, 30) if draws else range(30)
        return StatefulDataLoader(dataset, **SAMPLERS[name](kind, is_global))

    check_each_position(make, range(is_global, 10, 2), draws)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("name", "kind", "is_global", "workers"),
    [
        ("endless", "NumPy's", False, 3),
        ("blocks", "torch's", True, 2),
        ("buckets", "Python's", False, 2),
        ("repeated", "torch's", True, 2),
        ("with a state", "Python's", False, 1),
    ],
)
def test_workers_that_read_ahead_lose_no_index_of_a_sampler_that_draws_late(
    name: str, kind: str, is_global: bool, workers: int
) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(30), num_workers=workers, **SAMPLERS[name](kind, is_global))

    check_each_position(make, [0, 3] if is_global else [1, 6], draws=is_global and name != "with a state")


def test_epochs_after_a_resumed_one_equal_the_epochs_of_an_uninterrupted_run() -> None:
    for name, kind, workers in (("blocks", "torch's", 0), ("blocks", "NumPy's", 2), ("buckets", "Python's", 2)):

        def make(name: str = name, kind: str = kind, workers: int = workers) -> Any:
            return StatefulDataLoader(range(30), num_workers=workers, **SAMPLERS[name](kind, False))

        whole = epochs_of(make(), 2)
        # At the last two positions, the sampler has already ended when the state is saved.
        for position in (4, len(whole[0]) - 1, len(whole[0]))[workers // 2 :]:
            loader = make()
            advanced(loader, position)
            assert epochs_of(loaded(make(), saved(loader)), 2) == [whole[0][position:], whole[1]]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_another_number_of_workers_and_another_batch_size_keep_the_order() -> None:
    def make(workers: int, size: int) -> Any:
        sampler = Endless("torch's", False)
        return StatefulDataLoader(range(6), batch_size=size, num_workers=workers, sampler=sampler)

    for before, after in itertools.product([(0, 2), (2, 2)], [(2, 3), (0, 5)]):
        loader = make(*before)
        batches = iter(loader)
        head = [index for _ in range(4) for index in next(batches).tolist()]
        later = loaded(make(*after), loader.state_dict())
        rest = [index for batch in itertools.islice(later, 10) for index in batch.tolist()]
        wanted = itertools.islice(Endless("torch's", False), len(head) + len(rest))
        assert head + rest == list(wanted)


class Unseeded(Sampler[int]):
    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        order = [*range(30)]
        random.Random(self.seed).shuffle(order)
        yield from order


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        lambda sampler: {"sampler": sampler, "batch_size": 4},
        lambda sampler: {"sampler": sampler, "batch_size": None},
        lambda sampler: {"batch_sampler": BatchSampler(sampler, 4, False)},
    ],
    ids=["batches", "single", "batch sampler"],
)
def test_a_sampler_that_does_not_repeat_itself_is_refused(options: Any, workers: int) -> None:
    for batches, seed in ((3, None), (6, 5)) if workers else ((6, None), (3, 5)):

        def make(seed: int | None = seed) -> Any:
            return StatefulDataLoader(range(30), num_workers=workers, **options(Unseeded(seed)))

        loader = make()
        iterator = advanced(loader, batches)
        state = saved(loader)
        rest = [plain(batch) for batch in iterator]
        later = loaded(make(), state)
        if seed is None:
            with pytest.raises(ValueError, match="the sampler does not repeat itself"):
                iter(later)
            assert len(list(loaded(later, state, strict=False))) == len(rest)
        else:
            assert epochs_of(later, 1) == [rest]
