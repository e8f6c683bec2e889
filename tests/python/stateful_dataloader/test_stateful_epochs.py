"""What comes behind a state: the rest of the epoch, and the epochs after it, as in the run that was not stopped."""

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
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

#: Behind how many batches of which epoch a state is taken: before the first loop, inside epochs, at and behind ends.
MOMENTS = [(0, 0), (0, 1), (1, 0), (1, 2), (1, 4), (1, None), (2, 1)]
WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def seed_all(seed: int = 42) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs_of(loader: Any, count: int = 4) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


def saved_at(loader: Any, epoch: int, batches: int | None) -> Any:
    """The state of a loader in its so manieth epoch, as JSON has kept it."""
    for _ in range(epoch):
        list(loader)
    if batches is None:
        list(loader)
    elif (epoch, batches) != (0, 0):
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def wanted_at(whole: list[list[Any]], epoch: int, batches: int | None) -> list[list[Any]]:
    return whole[epoch + 1 :] if batches is None else [whole[epoch][batches:], *whole[epoch + 1 :]]


def check_goes_on(make: Any, moments: Any = MOMENTS, draws_before: bool = True, count: int = 4) -> None:
    """Holds what comes behind states, each loaded by a program that begins anew, against the run without a stop.

    Args:
        make: makes the loader.
        moments: when a state is taken.
        draws_before: whether the program draws before it goes on.
        count: epochs of the run without a stop.
    """
    seed_all()
    whole = epochs_of(make(), count)
    for moment in moments:
        seed_all()
        state = saved_at(make(), *moment)
        seed_all()
        later = make()
        later.load_state_dict(state)
        if draws_before:
            torch.rand(11)
        wanted = wanted_at(whole, *moment)
        assert epochs_of(later, len(wanted)) == wanted, moment


# -- the order of later epochs -----------------------------------------------------------------------------


class OwnGenerator(Sampler[int]):
    """Draws from a generator of its own, an index at a time."""

    def __init__(self, kind: str) -> None:
        self.drawn = {"python": random.Random(3), "numpy": numpy.random.default_rng(3)}.get(kind)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(16):
            if self.drawn is None:
                yield int(torch.randint(16, (), generator=self.generator))
            else:
                yield int(self.drawn.random() * 16)


class Shuffled(Sampler[int]):
    """Shuffled by Python's global generator."""

    def __iter__(self) -> Iterator[int]:
        order = [*range(16)]
        random.shuffle(order)
        return iter(order)


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


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_later_epochs_have_the_order_of_the_run_that_was_not_stopped(name: str, options: dict[str, Any]) -> None:
    def make() -> Any:
        given = {"dataset": range(32), **SAMPLERS[name](), **options}
        return StatefulDataLoader(given.pop("dataset"), **given)

    if options:  # each of its epochs starts workers
        check_goes_on(make, [(0, 0), (0, None), (1, 1)] if name == "shuffle" else [(1, 1)], count=3)
    else:
        check_goes_on(make)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_that_the_program_draws_between_go_on_exactly(workers: int) -> None:
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
def test_a_program_that_seeds_each_epoch_is_obeyed(workers: int) -> None:
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
def test_orders_go_on_where_a_trainer_sets_the_generators_behind_the_load(
    own: bool, draws_between: int, workers: int
) -> None:
    """The trainer saves them with the state or, if the loader has a generator of its own, after some more draws."""

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
def test_a_distributed_sampler_goes_on_with_its_epoch(sets: str) -> None:
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


def test_seeds_of_workers_go_on() -> None:
    def make() -> Any:
        return StatefulDataLoader(Noisy(), batch_size=4, num_workers=2)

    check_goes_on(make, [(0, None)], count=3)


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 5])
def test_positions_of_generators_are_a_seed_and_a_count_and_come_back(seed: int) -> None:
    from torchdata.stateful_dataloader import _generators as generators

    for drawn in (0, 1, 623, 624, 625, 1248, 40_000):
        generator = torch.Generator().manual_seed(seed)
        if drawn:
            torch.empty(drawn, dtype=torch.int32).random_(generator=generator)
        saved = json.loads(json.dumps(generators.encoded(generator.get_state())))
        assert saved == [seed, drawn]
        again = torch.Generator()
        again.set_state(generators.decoded(again, saved))
        assert torch.rand(700, generator=again).tolist() == torch.rand(700, generator=generator).tolist()
    torch.randn(3, generator=generator)  # keeps one normal number for later
    again.set_state(generators.decoded(again, generators.encoded(generator.get_state())))
    assert torch.randn(5, generator=again).tolist() == torch.randn(5, generator=generator).tolist()
    for one in (random.Random(seed), numpy.random.RandomState(7), numpy.random.default_rng(seed)):
        one.gauss(0, 1) if isinstance(one, random.Random) else one.normal()
        saved = generators.decoded(one, json.loads(json.dumps(generators.encoded(generators.read(one)))))
        draw = one.random if isinstance(one, random.Random) else one.normal
        wanted = [draw() for _ in range(1300)]
        generators.write(one, saved)
        assert [draw() for _ in range(1300)] == wanted


# -- streams -----------------------------------------------------------------------------------------------


class TakesOnce(IterableDataset[int]):
    """Its generator takes the place that was loaded, and counts on."""

    length, pause = 9, 0.0

    def __init__(self) -> None:
        self.place = self.start = 0

    def share(self) -> list[int]:
        info = get_worker_info()
        return [*range(self.length)] if info is None else [*range(info.id, self.length - 3 * info.id, info.num_workers)]

    def __iter__(self) -> Iterator[Any]:
        self.place, self.start = self.start, 0
        for number in self.share()[self.place :]:
            time.sleep(self.pause)
            self.place += 1
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


class CountsEpochs(TakesOnce):
    """Counts an epoch and shuffles by it, unless it was loaded."""

    def __init__(self) -> None:
        self.epoch, self.place, self.loaded = 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.epoch, self.place = self.epoch + 1, 0
        self.loaded = False
        order = self.share()
        random.Random(self.epoch).shuffle(order)
        for number in order[self.place :]:
            self.place += 1
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place, self.loaded = state["epoch"], state["place"], True


class BeginsAnew(TakesOnce):
    """Makes itself ready for the next epoch when one ends."""

    def __iter__(self) -> Iterator[Any]:
        for number in self.share()[self.start :]:
            self.start += 1
            yield number
        self.start = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.start}


class TakesAlways(TakesOnce):
    """Begins each epoch where the loaded state says, as the streams of Hugging Face do."""

    def __init__(self) -> None:
        self.loaded: Any = None
        self.place: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.place = {"place": 0} if self.loaded is None else dict(self.loaded)
        for number in self.share()[self.place["place"] :]:
            self.place["place"] += 1
            yield number

    def state_dict(self) -> Any:
        return None if self.place is None else dict(self.place)

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


class Walk:
    """An iterator that knows its place."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.done = numbers, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.done >= len(self.numbers):
            raise StopIteration
        self.done += 1
        return self.numbers[self.done - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class Walked(TakesOnce):
    """A stream whose iterator knows its place as well."""

    def __iter__(self) -> Iterator[Any]:
        return Walk(self.share())


STREAMS = [TakesOnce, CountsEpochs, BeginsAnew, TakesAlways, Walked]


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("stream", STREAMS)
def test_streams_give_the_rest_and_then_whole_epochs(stream: Any, options: dict[str, Any]) -> None:
    moments = {0: [*MOMENTS, (1, 3)], 1: [(0, 1), (0, 3), (1, None)], 2: [(0, 1), (1, 0), (1, 3), (1, None)]}
    for batch_size in (2, None)[: 1 if options else 2]:
        check_goes_on(
            lambda size=batch_size: StatefulDataLoader(stream(), batch_size=size, **options),
            moments[len(options)],
            count=3 if options else 4,
        )


@pytest.mark.parametrize("stream", STREAMS)
def test_a_state_that_is_loaded_twice_and_saved_in_between_goes_on(stream: Any) -> None:
    for options in WORKERS[::2]:
        whole = epochs_of(StatefulDataLoader(stream(), batch_size=2, **options), 4)
        state = saved_at(StatefulDataLoader(stream(), batch_size=2, **options), 1, 1)
        for taken in (0, 1, 2):
            later = StatefulDataLoader(stream(), batch_size=2, **options)
            later.load_state_dict(state)
            iterator = iter(later)
            for _ in range(taken):
                next(iterator)
            third = StatefulDataLoader(stream(), batch_size=2, **options)
            third.load_state_dict(json.loads(json.dumps(later.state_dict())))
            assert epochs_of(third, 3) == [whole[1][1 + taken :], *whole[2:]], (options, taken)


@pytest.mark.parametrize("stream", [TakesOnce, CountsEpochs, TakesAlways, Walked])
def test_behind_a_broken_epoch_streams_begin_anew_and_go_on(stream: Any) -> None:
    def make() -> Any:
        return StatefulDataLoader(stream(), batch_size=2, num_workers=2, persistent_workers=True)

    def broken() -> Any:
        loader = make()
        for _ in itertools.islice(loader, 2):
            pass
        return loader

    whole = epochs_of(broken(), 3)
    for batches in (0, 1, 3):
        loader = broken()
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        later = make()
        later.load_state_dict(state)
        assert epochs_of(later, 3) == [whole[0][batches:], *whole[1:]], batches


def test_a_worker_that_is_slow_to_begin_loses_none_of_its_items() -> None:
    class Slow(TakesOnce):
        pause = 0.01

    def make() -> Any:
        return StatefulDataLoader(Slow(), batch_size=None, num_workers=2, persistent_workers=True)

    whole = [*epochs_of(make(), 1)] * 3
    for batches in (1, 3):
        loader = make()
        for _ in itertools.islice(loader, 3):
            pass
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        later = make()
        later.load_state_dict(loader.state_dict())
        assert epochs_of(later, 3) == [whole[0][batches:], *whole[1:]]


class Places(Sampler[int]):
    """A sampler with a state that begins anew with each iterator."""

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
def test_a_stateful_sampler_s_broken_epoch_does_not_come_again(workers: int, sampler: Any) -> None:
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


class DrawsOn(IterableDataset[Any]):
    """A stream of random numbers, each of which takes a while."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(12):
            time.sleep(random.Random().random() * 0.004)  # a generator of its own
            yield float(torch.rand(()))


class DrawsByIndex(Dataset[Any]):
    """The same by index."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        time.sleep(random.Random().random() * 0.004)  # a generator of its own
        return float(torch.rand(()))


@pytest.mark.parametrize("dataset", [DrawsOn, DrawsByIndex])
def test_what_a_broken_epoch_has_drawn_ahead_does_not_depend_on_time(dataset: Any) -> None:
    found = []
    for _ in range(4):
        seed_all()
        loader = StatefulDataLoader(dataset(), batch_size=None, num_workers=2, persistent_workers=True)
        for _ in itertools.islice(loader, 3):
            pass
        found.append(list(loader))
    assert found == [found[0]] * len(found)


# -- random draws ------------------------------------------------------------------------------------------


class Noisy(Dataset[Any]):
    """Samples that depend on all three global generators."""

    kinds: tuple[str, ...] = ("torch", "random", "numpy")

    def __len__(self) -> int:
        return 16

    def drawn(self) -> list[float]:
        draw = {"torch": lambda: float(torch.rand(())), "random": random.random, "numpy": numpy.random.random}
        return [draw[kind]() for kind in self.kinds]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, *self.drawn()], dtype=torch.float64)


class NoisyStream(TakesOnce, Noisy):  # type: ignore[misc]
    """A stream of such samples, with a state."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            yield torch.tensor([number, *self.drawn()], dtype=torch.float64)


class NoisyWithoutState(IterableDataset[Any]):
    """A stream of such samples, without a state."""

    kinds = Noisy.kinds
    drawn = Noisy.drawn

    def __iter__(self) -> Iterator[Any]:
        for number in range(8):
            yield torch.tensor([number, *self.drawn()], dtype=torch.float64)


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("dataset", [Noisy, NoisyStream, NoisyWithoutState])
@pytest.mark.parametrize("kinds", [("random",), ("torch", "random", "numpy")], ids=["one", "all"])
def test_random_draws_go_on(dataset: Any, options: dict[str, Any], kinds: tuple[str, ...]) -> None:
    def make() -> Any:
        data = dataset()
        data.kinds = kinds
        return StatefulDataLoader(data, batch_size=2, shuffle=dataset is Noisy or None, **options)

    if len(options) == 1:  # each of its epochs starts workers
        check_goes_on(make, [(0, None), (1, 3)] if len(kinds) > 1 else [(0, 1)], draws_before=False, count=3)
    else:
        check_goes_on(make, [(0, 1), (1, 3), (0, None)], draws_before=False)


class ShuffledWhenBegun(TakesOnce):
    """Draws its order as `iter` is called, and not with its first item."""

    def __iter__(self) -> Iterator[Any]:
        order = self.share()
        random.shuffle(order)
        return Walk(order)


BEFORE_THE_FIRST: dict[str, Any] = {
    "by index": lambda: {"dataset": Noisy()},
    "shuffled": lambda: {"dataset": Noisy(), "shuffle": True},
    "Python's global": lambda: {"dataset": Noisy(), "sampler": Shuffled()},
    "stream": lambda: {"dataset": NoisyStream()},
    "stream without a state": lambda: {"dataset": NoisyWithoutState()},
    "stream that draws as it begins": lambda: {"dataset": ShuffledWhenBegun()},
}


@pytest.mark.parametrize("name", BEFORE_THE_FIRST)
def test_random_draws_go_on_before_the_first_batch_in_a_program_of_another_seed(name: str) -> None:
    def make() -> Any:
        return StatefulDataLoader(batch_size=2, **BEFORE_THE_FIRST[name]())

    for epoch in (0, 1):
        seed_all()
        loader = make()
        for _ in range(epoch):
            list(loader)
        iterator = iter(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        whole = [[plain(batch) for batch in iterator], *epochs_of(loader, 2)]
        for times in (1, 2):  # loaded, or loaded, saved and loaded
            for _ in range(times):
                seed_all(43)
                later = make()
                later.load_state_dict(state)
                rest = iter(later)
                state = json.loads(json.dumps(later.state_dict()))
            assert [[plain(batch) for batch in rest], *epochs_of(later, 2)] == whole, (epoch, times)


def test_samples_that_draw_nothing_leave_no_generator_in_the_state() -> None:
    loader = StatefulDataLoader(range(64), batch_size=4, shuffle=True, num_workers=2)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    assert "workers" not in loader.state_dict()["_torchdata_rs"]


def test_the_order_without_a_stop_is_torch_s_whether_states_are_taken_or_not() -> None:
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
