"""If samples are drawn from the global random generators, loading a state or leaving an epoch early does not change the
samples.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torch.utils.data import Dataset, IterableDataset, Sampler  # noqa: E402

from going_on import WORKERS, Shuffled, TakesOnce, Walk, check_goes_on, epochs_of, plain, seed_all  # noqa: E402
from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402


class DrawsOn(IterableDataset[Any]):
    """A stream of random numbers, which sleeps for a random time before each number."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(12):
            time.sleep(random.Random().random() * 0.004)  # the delay uses a separate generator
            yield float(torch.rand(()))


class DrawsByIndex(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        time.sleep(random.Random().random() * 0.004)  # the delay uses a separate generator
        return float(torch.rand(()))


@pytest.mark.parametrize("dataset", [DrawsOn, DrawsByIndex])
def test_the_draws_of_an_abandoned_epoch_do_not_depend_on_time(dataset: Any) -> None:
    found = []
    for _ in range(4):
        seed_all()
        loader = StatefulDataLoader(dataset(), batch_size=None, num_workers=2, persistent_workers=True)
        for _ in itertools.islice(loader, 3):
            pass
        found.append(list(loader))
    assert found == [found[0]] * len(found)


class Noisy(Dataset[Any]):
    kinds: tuple[str, ...] = ("torch", "random", "numpy")

    def __len__(self) -> int:
        return 16

    def drawn(self) -> list[float]:
        draw = {"torch": lambda: float(torch.rand(())), "random": random.random, "numpy": numpy.random.random}
        return [draw[kind]() for kind in self.kinds]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, *self.drawn()], dtype=torch.float64)


class NoisyStream(TakesOnce, Noisy):  # type: ignore[misc]
    """A stream with a state, and with samples that depend on the global random generators."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            yield torch.tensor([number, *self.drawn()], dtype=torch.float64)


class NoisyWithoutState(IterableDataset[Any]):
    """A stream that has no state. Its samples depend on the global random generators."""

    kinds = Noisy.kinds
    drawn = Noisy.drawn

    def __iter__(self) -> Iterator[Any]:
        for number in range(8):
            yield torch.tensor([number, *self.drawn()], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kinds", "options"),
    [*((Noisy.kinds, options) for options in WORKERS), *((("random",), options) for options in WORKERS[::2])],
    ids=str,
)
@pytest.mark.parametrize("dataset", [Noisy, NoisyStream, NoisyWithoutState])
def test_random_draws_continue(dataset: Any, options: dict[str, Any], kinds: tuple[str, ...]) -> None:
    def make() -> Any:
        data = dataset()
        data.kinds = kinds
        return StatefulDataLoader(data, batch_size=2, shuffle=dataset is Noisy or None, **options)

    if len(options) == 1:  # tests fewer positions, because each epoch starts new workers
        check_goes_on(make, [(0, None), (1, 3)], draws_before=False, count=3)
    else:
        check_goes_on(make, [(0, 1), (1, 3), (0, None)], draws_before=False)


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("validations", [0, 1])
def test_the_random_draws_of_two_loaders_continue(is_restored: bool, validations: int) -> None:
    """If two loaders are saved and resume, neither of the loaders repeats random draws."""

    def loaders() -> Any:
        seed_all()
        return [StatefulDataLoader(Noisy(), batch_size=4) for _ in range(2)]

    def rest_of(batches: Iterator[Any], training: Any, validation: Any) -> list[Any]:
        """Returns the batches that the program receives in the rest of its training.

        The program also runs a validation within the epoch and after the epoch.
        """
        rest = [plain(next(batches)), epochs_of(validation, 1), *map(plain, batches)]
        return [*rest, epochs_of(validation, 1), epochs_of(training, 1), random.random()]

    training, validation = loaders()
    epochs_of(validation, validations)
    batches = iter(training)
    next(batches)
    states = json.loads(json.dumps([training.state_dict(), validation.state_dict()]))
    program = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    whole = rest_of(batches, training, validation)

    training, validation = loaders()
    training.load_state_dict(states[0])
    validation.load_state_dict(states[1])
    if is_restored:
        random.setstate(program[0])
        numpy.random.set_state(program[1])
        torch.set_rng_state(program[2])
    assert rest_of(iter(training), training, validation) == whole


def test_a_program_that_restores_its_generators_and_draws_from_them_does_not_repeat_its_draws() -> None:

    def rest_of(validation: Any) -> list[Any]:
        steps = [random.random(), numpy.random.rand(), torch.rand(()).item()]
        return [*steps, epochs_of(validation, 2), random.random(), numpy.random.rand(), torch.rand(()).item()]

    seed_all()
    validation = StatefulDataLoader(Noisy(), batch_size=4)
    epochs_of(validation, 1)
    state = json.loads(json.dumps(validation.state_dict()))
    program = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    whole = rest_of(validation)

    seed_all()
    validation = StatefulDataLoader(Noisy(), batch_size=4)
    validation.load_state_dict(state)
    random.setstate(program[0])
    numpy.random.set_state(program[1])
    torch.set_rng_state(program[2])
    assert rest_of(validation) == whole


class ShuffledWhenBegun(TakesOnce):
    """A stream that draws its order in `iter()`, before its first item is requested."""

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
def test_random_draws_continue_before_the_first_batch_in_a_program_of_another_seed(name: str) -> None:
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
        for times in (1, 2):  # the state is loaded once, or loaded, saved and loaded again
            for _ in range(times):
                seed_all(43)
                later = make()
                later.load_state_dict(state)
                rest = iter(later)
                state = json.loads(json.dumps(later.state_dict()))
            assert [[plain(batch) for batch in rest], *epochs_of(later, 2)] == whole, (epoch, times)


@pytest.mark.parametrize("name", BEFORE_THE_FIRST)
def test_random_draws_continue_from_a_state_of_before_the_first_loop(name: str) -> None:
    """The program that resumes has another seed, and also draws random numbers before and after it loads the state."""

    def make() -> Any:
        return StatefulDataLoader(batch_size=2, **BEFORE_THE_FIRST[name]())

    seed_all()
    loader = make()
    state = json.loads(json.dumps(loader.state_dict()))
    whole = epochs_of(loader, 2)
    seed_all(43)
    later = make()
    seed_all(44)
    later.load_state_dict(state)
    torch.rand(3)
    assert epochs_of(later, 2) == whole


class SavesItsGenerator(Noisy):
    """A dataset with a `state_dict` method that returns the state of torch's global random generator."""

    kinds = ("torch",)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_in_the_state_of_an_unstarted_dataset_does_not_reach_the_workers(
    workers: int, persistent: bool
) -> None:
    def make() -> Any:
        return StatefulDataLoader(
            SavesItsGenerator(), num_workers=workers, persistent_workers=persistent and workers > 0
        )

    seed_all()
    loader = make()
    state = loader.state_dict()
    whole = epochs_of(loader, 2)
    later = make()
    later.load_state_dict(state)
    assert epochs_of(later, 2) == whole


def test_seeds_of_workers_continue() -> None:
    def make() -> Any:
        return StatefulDataLoader(Noisy(), batch_size=4, num_workers=2)

    check_goes_on(make, [(0, None)], count=3)


@pytest.mark.parametrize("dataset", [Noisy, NoisyStream])
def test_a_generator_that_has_drawn_once_is_in_the_state(dataset: Any) -> None:
    """Workers report their states rarely, but the loader's state must contain their random generators before the first
    report.
    """

    def make() -> Any:
        return StatefulDataLoader(
            dataset(), batch_size=3, num_workers=2, persistent_workers=True, snapshot_every_n_steps=14
        )

    check_goes_on(make, [(0, 2), (0, None), (1, 1)], draws_before=False, count=3)


def test_samples_that_draw_nothing_leave_no_generator_in_the_state() -> None:
    loader = StatefulDataLoader(range(64), batch_size=4, shuffle=True, num_workers=2)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    assert "workers" not in loader.state_dict()["_torchdata_rs"][0]


class ShortEpochs(Sampler[int]):
    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts, self.epoch = counts, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.counts[self.epoch % len(self.counts)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class CountsReads(Dataset[Any]):
    """A dataset that counts the samples that each worker has read. Each sample contains the count of its worker."""

    reads = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor([index, self.reads])

    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reads = state["reads"]


@pytest.mark.parametrize(
    ("left_after", "dataset", "on_worker_exit"),
    [
        *((None, Noisy, "error"), (1, Noisy, "restart"), (5, Noisy, "error")),
        *((None, CountsReads, "restart"), (1, CountsReads, "error"), (5, CountsReads, "restart")),
    ],
)
def test_a_worker_that_has_nothing_to_read_in_an_epoch_stays_in_the_state(
    left_after: int | None, dataset: Any, on_worker_exit: Any
) -> None:
    """Persistent workers keep their random generators and datasets after an epoch, even if the epoch was left early."""
    counts = (16, 1, 0, 7)

    def make() -> Any:
        return StatefulDataLoader(
            dataset(),
            batch_size=2,
            sampler=ShortEpochs(counts),
            num_workers=2,
            persistent_workers=True,
            on_worker_exit=on_worker_exit,
        )

    def epochs(loader: Any, first: int, save: Any = lambda *_: None) -> Any:
        found = []
        for epoch in range(first, len(counts)):
            loader.sampler.set_epoch(epoch)
            batches: list[Any] = []
            iterator = iter(loader)
            save(loader, epoch, 0)
            for batch in itertools.islice(iterator, left_after if epoch == 0 else None):
                batches.append(plain(batch))
                save(loader, epoch, len(batches))
            save(loader, epoch, len(batches) + 1)
            found.append(batches)
        return found

    seed_all()
    whole, states = epochs(make(), 0), {}
    seed_all()
    epochs(make(), 0, lambda loader, *moment: states.update({moment: json.dumps(loader.state_dict())}))
    for epoch, count in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)]:
        seed_all()
        state = json.loads(states[epoch, count])
        is_over = state["_iterator_finished"]
        later = make()
        later.load_state_dict(state)
        found = epochs(later, epoch + is_over)
        wanted = whole[epoch + is_over :]
        assert found == (wanted if is_over else [wanted[0][count:], *wanted[1:]]), (epoch, count)


def test_a_stream_that_ends_after_its_epoch_was_abandoned_continues_its_random_draws() -> None:
    """A worker that starts late still reads the samples of the epoch that the program has already left."""
    is_left = multiprocessing.get_context("fork").Event()

    def make(init: Any = None) -> Any:
        options = {"persistent_workers": True, "multiprocessing_context": "fork", "worker_init_fn": init}
        return StatefulDataLoader(NoisyStream(), batch_size=6, num_workers=2, **options)

    seed_all()
    loader = make(lambda worker: worker == 0 or is_left.wait(20))
    next(iter(loader))
    iterator = iter(loader)
    is_left.set()
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    whole = [[plain(batch) for batch in iterator], *epochs_of(loader, 2)]
    later = make()
    later.load_state_dict(state)
    assert epochs_of(later, 3) == whole
