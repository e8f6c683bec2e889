"""After a resume, the rest of the epoch and later epochs have the same order as without a stop, for all samplers."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from going_on import WORKERS, Shuffled, check_goes_on, epochs_of, plain, seed_all  # noqa: E402
from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402


class OwnGenerator(Sampler[int]):
    def __init__(self, kind: str) -> None:
        self.drawn = {"python": random.Random(3), "numpy": numpy.random.default_rng(3)}.get(kind)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(16):
            if self.drawn is None:
                yield int(torch.randint(16, (), generator=self.generator))
            else:
                yield int(self.drawn.random() * 16)


SAMPLERS: dict[str, Any] = {
    "shuffle": lambda: {"shuffle": True, "batch_size": 4},
    "shuffle, a generator": lambda: {
        "shuffle": True, "batch_size": 4, "generator": torch.Generator().manual_seed(7)
    },
    "single": lambda: {"shuffle": True, "batch_size": None, "dataset": range(4)},
    "torch's random": lambda: {"sampler": torch.utils.data.RandomSampler(range(16)), "batch_size": 4},
    "replacement": lambda: {
        "sampler": torch.utils.data.RandomSampler(range(16), replacement=True, num_samples=40), "batch_size": 10
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(16)), "batch_size": 4},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0 + i for i in range(16)], 16), "batch_size": 4},
    "batches": lambda: {"batch_sampler": BatchSampler(SubsetRandomSampler(range(16)), 4, False)},
    "of one's own, torch": lambda: {"sampler": OwnGenerator("torch"), "batch_size": 4},
    "of one's own, Python": lambda: {"sampler": OwnGenerator("python"), "batch_size": 4},
    "of one's own, NumPy": lambda: {"sampler": OwnGenerator("numpy"), "batch_size": 4},
    "Python's global": lambda: {"sampler": Shuffled(), "batch_size": 4},
    "distributed": lambda: {"sampler": StatefulDistributedSampler(range(32), 2, 0, seed=1), "batch_size": 4},
}  # fmt: skip


#: One sampler for each way to draw an order. The main process draws the order, even if the loader has workers.
WITH_WORKERS = [
    "shuffle",
    "shuffle, a generator",
    "single",
    "replacement",
    "batches",
    "of one's own, NumPy",
    "distributed",
]


@pytest.mark.parametrize(
    ("options", "name"),
    [*((WORKERS[0], name) for name in SAMPLERS), *((WORKERS[1], name) for name in WITH_WORKERS)],
    ids=str,
)
def test_later_epochs_have_the_order_of_the_run_that_was_not_stopped(options: dict[str, Any], name: str) -> None:
    def make() -> Any:
        given = {"dataset": range(32), **SAMPLERS[name](), **options}
        return StatefulDataLoader(given.pop("dataset"), **given)

    if options:  # tests fewer positions, because each epoch starts new workers
        check_goes_on(make, [(0, 0), (0, None), (1, 1)] if name == "shuffle" else [(1, 1)], count=3)
    else:
        check_goes_on(make)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_resume_exactly_if_the_program_draws_between_them(workers: int) -> None:
    def run(loader: Any, first: int, most: int) -> list[Any]:
        found = []
        for _ in range(first, most):
            found.append([])
            for batch in loader:
                found[-1].append(batch.tolist())
                torch.nn.functional.dropout(torch.ones(50))
        return found

    def make() -> Any:
        return StatefulDataLoader(range(8), batch_size=4, shuffle=True, num_workers=workers)

    seed_all()
    loader = make()
    before = run(loader, 0, 2)
    state = loader.state_dict()
    rest = run(loader, 2, 5)
    seed_all()
    later = make()
    later.load_state_dict(state)
    assert run(later, 2, 5) == rest
    assert len(before) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_may_seed_each_epoch(workers: int) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(8), batch_size=4, shuffle=True, num_workers=workers)

    def run(loader: Any, epochs: Any) -> list[Any]:
        found = []
        for epoch in epochs:
            torch.manual_seed(epoch)
            found.append([batch.tolist() for batch in loader])
        return found

    whole = run(make(), range(1, 6))
    loader = make()
    run(loader, [1, 2])
    state = loader.state_dict()
    later = make()
    torch.manual_seed(99)
    later.load_state_dict(state)
    assert run(later, [3, 4, 5]) == whole[2:]
    torch.manual_seed(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    later.load_state_dict(state)
    assert run(later, [2, 3, 4]) == [whole[1][1:], *whole[2:4]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("own", "draws_between"), [(False, 0), (True, 0), (True, 9)])
def test_orders_resume_if_a_trainer_sets_the_generators_after_the_load(
    own: bool, draws_between: int, workers: int
) -> None:
    """The test simulates a trainer that saves the global random generators together with the loader's state.

    If the loader has a separate random generator, the trainer may draw numbers between saving the loader and saving the
    global random generators.
    """

    def make() -> Any:
        generator = torch.Generator().manual_seed(5) if own else None
        return StatefulDataLoader(range(8), batch_size=4, shuffle=True, num_workers=workers, generator=generator)

    def run(loader: Any) -> Iterator[list[int]]:
        for _ in range(2):
            for batch in loader:
                torch.rand(100)
                yield batch.tolist()

    seed_all()
    loader = make()
    batches = run(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    torch.rand(draws_between)
    saved, rest = torch.get_rng_state(), list(batches)
    for seed in (42, 43):
        seed_all(seed)
        later = make()
        later.load_state_dict(state)
        torch.set_rng_state(saved)
        assert list(run(later)) == rest


@pytest.mark.parametrize("sets", ["never", "each epoch", "before the load"])
def test_a_distributed_sampler_resumes_its_epoch(sets: str) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=4, sampler=DistributedSampler(range(24), 2, 1))

    def run(loader: Any, epochs: Any) -> list[Any]:
        found = []
        for epoch in epochs:
            if sets == "each epoch":
                loader.sampler.set_epoch(epoch)
            found.append([batch.tolist() for batch in loader])
        return found

    first = make()
    first.sampler.set_epoch(3)
    iterator = iter(first)
    next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [batch.tolist() for batch in iterator]
    rest = [rest, *run(first, [4, 5])]
    later = make()
    if sets == "before the load":
        later.sampler.set_epoch(3)
    later.load_state_dict(state)
    assert run(later, [3, 4, 5]) == rest


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 5])
def test_positions_of_generators_are_a_seed_and_a_count_and_come_back(seed: int) -> None:
    from torchdata.stateful_dataloader import _generators as generators

    for drawn in (0, 1, 623, 624, 625, 1248, 40_000):
        generator = torch.Generator().manual_seed(seed)
        if drawn:
            torch.empty(drawn, dtype=torch.int32).random_(generator=generator)
        saved = json.loads(json.dumps(generators.encoded(generators.read(generator))))
        assert saved == [seed, drawn]
        again = torch.Generator()
        generators.write(again, generators.decoded(again, saved))
        assert torch.rand(700, generator=again).tolist() == torch.rand(700, generator=generator).tolist()
    torch.randn(3, generator=generator)  # `randn` stores a second normal number for its next call
    generators.write(again, generators.decoded(again, generators.encoded(generators.read(generator))))
    assert torch.randn(5, generator=again).tolist() == torch.randn(5, generator=generator).tolist()
    for one in (random.Random(seed), numpy.random.RandomState(7), numpy.random.default_rng(seed)):
        one.gauss(0, 1) if isinstance(one, random.Random) else one.normal()
        saved = generators.decoded(one, json.loads(json.dumps(generators.encoded(generators.read(one)))))
        draw = one.random if isinstance(one, random.Random) else one.normal
        wanted = [draw() for _ in range(1300)]
        generators.write(one, saved)
        assert [draw() for _ in range(1300)] == wanted


class Places(Sampler[int]):
    """A sampler with a state. Each new iterator starts at the beginning unless a state was loaded."""

    def __init__(self) -> None:
        self.place = self.start = 0

    def __iter__(self) -> Iterator[int]:
        self.place, self.start = self.start, 0
        for index in range(self.place, 12):
            self.place += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [Places, lambda: StatefulDistributedSampler(range(24), 2, 0, shuffle=False)])
def test_an_abandoned_epoch_of_a_stateful_sampler_is_not_repeated(workers: int, sampler: Any) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=3, sampler=sampler(), num_workers=workers)

    whole = epochs_of(make(), 1)[0]
    loader = make()
    for _ in itertools.islice(loader, 2):
        pass
    iterator = iter(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    later = make()
    later.load_state_dict(state)
    assert epochs_of(later, 2) == [whole, whole]
    assert [plain(batch) for batch in iterator] == whole


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [Places, lambda: StatefulDistributedSampler(range(24), 2, 0, shuffle=False)])
def test_an_epoch_abandoned_shortly_after_a_load_takes_nothing_from_the_next_one(workers: int, sampler: Any) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=3, sampler=sampler(), num_workers=workers)

    whole = epochs_of(make(), 1)[0]
    for saved, read in itertools.product([0, 1, len(whole)], [0, 1]):
        loader = make()
        iterator = iter(loader)
        list(itertools.islice(iterator, saved))
        later = make()
        later.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [plain(batch) for batch in itertools.islice(later, read)] == whole[saved : saved + read]
        assert epochs_of(later, 2) == [whole, whole], (saved, read)


def test_the_order_is_torch_s_whether_states_are_saved_or_not() -> None:
    for options in WORKERS:
        found = []
        for cls in (DataLoader, StatefulDataLoader):
            seed_all()
            loader = cls(range(20), batch_size=4, shuffle=True, **options)
            found.append([])
            for _ in range(3):
                for batch in loader:
                    found[-1].append(batch.tolist())
                    if cls is StatefulDataLoader:
                        loader.state_dict()
        assert found[0] == found[1]


@pytest.mark.parametrize("later", [0, 2])
def test_out_of_order_no_sample_is_lost_or_comes_twice(later: int) -> None:
    class Slow(Dataset[int]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            time.sleep(0.03 if index % 2 else 0.0)
            return index

    for sampler in (None, Places()):
        loader = StatefulDataLoader(Slow(), batch_size=None, sampler=sampler, num_workers=2, in_order=False)
        head = list(itertools.islice(loader, 7))
        state = json.loads(json.dumps(loader.state_dict()))
        again = StatefulDataLoader(
            Slow(), batch_size=None, sampler=sampler and Places(), num_workers=later, in_order=later == 0
        )
        again.load_state_dict(state)
        assert sorted(head + list(again)) == [*range(12 if sampler else 20)]
