"""Loading a state does not change samples that are drawn from the global random generators."""

import itertools
import json
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Sampler

from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import Counting, Noisy, Plain, Taking
from resumed import (
    WORKERS,
    Shuffled,
    TakesOnce,
    Walk,
    advanced,
    check_resumes,
    epochs_of,
    loaded,
    plain,
    saved,
    seed_all,
)
from torchdata.stateful_dataloader import StatefulDataLoader


@pytest.mark.parametrize("dataset", [Plain, Noisy])
def test_the_draws_of_an_abandoned_epoch_do_not_depend_on_time(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "slow", True)  # reading some samples takes longer
    found = []
    for _ in range(3):
        seed_all()
        loader = StatefulDataLoader(dataset(12, "torch"), batch_size=None, num_workers=2, persistent_workers=True)
        advanced(loader, 3)
        found += epochs_of(loader, 1)
    assert found == [found[0]] * len(found)


NOISY = [Noisy, Taking, Plain]


@pytest.mark.parametrize(("draws", "options"), [*(("all", options) for options in WORKERS), ("random", {})], ids=str)
@pytest.mark.parametrize("dataset", NOISY)
def test_random_draws_continue_after_a_load(dataset: Any, options: dict[str, Any], draws: str) -> None:
    def make() -> Any:
        return StatefulDataLoader(dataset(10, draws), batch_size=2, shuffle=dataset is Noisy or None, **options)

    if len(options) == 1:  # Tests with workers use fewer positions, because each epoch starts new workers.
        check_resumes(make, [(0, None), (1, 3)], draws_before=dataset is Noisy, count=3)
    else:
        check_resumes(make, [(0, 1), (1, 3), (0, None)], draws_before=False, count=3)


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("validations", [0, 1])
def test_the_random_draws_of_two_loaders_continue(is_restored: bool, validations: int) -> None:
    def loaders() -> Any:
        seed_all()
        return [StatefulDataLoader(Noisy(16, "all"), batch_size=4) for _ in range(2)]

    def rest_of(batches: Iterator[Any], training: Any, validation: Any) -> list[Any]:
        drawn = [random.random(), numpy.random.rand(), torch.rand(()).item()] if is_restored else []
        rest = [drawn, plain(next(batches)), epochs_of(validation, 1), *map(plain, batches)]
        return [*rest, epochs_of(validation, 1), epochs_of(training, 1), random.random()]

    training, validation = loaders()
    epochs_of(validation, validations)
    batches = iter(training)
    next(batches)
    states = saved(training), saved(validation)
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


class ShuffledWhenBegun(TakesOnce):
    def __iter__(self) -> Iterator[Any]:
        order = self.share()
        random.shuffle(order)
        return Walk(order)


BEFORE_THE_FIRST: dict[str, Any] = {
    "by index": lambda: {"dataset": Noisy(16, "all")},
    "shuffled": lambda: {"dataset": Noisy(16, "all"), "shuffle": True},
    "Python's global": lambda: {"dataset": Noisy(16, "all"), "sampler": Shuffled()},
    "stream": lambda: {"dataset": Taking(9, "all")},
    "stream without a state": lambda: {"dataset": Plain(8, "all")},
    "stream that draws as it begins": lambda: {"dataset": ShuffledWhenBegun()},
}


@pytest.mark.parametrize("name", BEFORE_THE_FIRST)
def test_random_draws_continue_before_the_first_batch_in_a_program_of_another_seed(name: str) -> None:
    def make() -> Any:
        return StatefulDataLoader(batch_size=2, **BEFORE_THE_FIRST[name]())

    for epoch, is_begun in ((0, False), (0, True), (1, True)):
        seed_all()
        loader = make()
        for _ in range(epoch):
            list(loader)
        batches = iter(loader) if is_begun else loader
        state = saved(loader)
        whole = [[plain(batch) for batch in batches], *epochs_of(loader, 2)]
        for times in (1, 2):  # the state is loaded once, or loaded, saved and loaded again
            for _ in range(times):
                seed_all(43)
                later = make()
                seed_all(44)
                later.load_state_dict(state)
                rest = iter(later) if is_begun else later
                state = saved(later)
            torch.rand(0 if is_begun else 3)
            assert [[plain(batch) for batch in rest], *epochs_of(later, 2)] == whole, (epoch, times)


class SavesItsGenerator(Noisy):
    def __init__(self) -> None:
        super().__init__(16, "torch")

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
    assert epochs_of(loaded(make(), state), 2) == whole


@pytest.mark.parametrize("dataset", [Noisy, Taking])
def test_a_generator_that_has_drawn_once_is_in_the_state(dataset: Any) -> None:
    def make() -> Any:
        return StatefulDataLoader(
            dataset(12, "all"), batch_size=3, num_workers=2, persistent_workers=True, snapshot_every_n_steps=14
        )

    check_resumes(make, [(0, 2), (0, None), (1, 1)], draws_before=False, count=3)


def test_samples_that_draw_nothing_leave_no_generator_in_the_state() -> None:
    loader = StatefulDataLoader(range(64), batch_size=4, shuffle=True, num_workers=2)
    advanced(loader, 8)
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


@pytest.mark.parametrize(
    ("left_after", "dataset", "on_worker_exit"),
    [(None, Counting, "restart"), (1, Noisy, "restart"), (5, Counting, "error")],
)
def test_a_worker_that_has_nothing_to_read_in_an_epoch_stays_in_the_state(
    left_after: int | None, dataset: Any, on_worker_exit: Any
) -> None:
    counts = (16, 1, 0, 7)

    def make() -> Any:
        return StatefulDataLoader(
            dataset(16, "all"),
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
    for epoch, count in [(1, 0), (1, 2), (2, 1), (3, 0)]:
        seed_all()
        state = json.loads(states[epoch, count])
        is_over = state["_iterator_finished"]
        found = epochs(loaded(make(), state), epoch + is_over)
        wanted = whole[epoch + is_over :]
        assert found == (wanted if is_over else [wanted[0][count:], *wanted[1:]]), (epoch, count)


def test_a_stream_that_ends_after_its_epoch_was_abandoned_continues_its_random_draws() -> None:
    is_left = multiprocessing.get_context("fork").Event()

    def make(init: Any = None) -> Any:
        options = {"persistent_workers": True, "multiprocessing_context": "fork", "worker_init_fn": init}
        return StatefulDataLoader(Taking(9, "all"), batch_size=6, num_workers=2, **options)

    seed_all()
    loader = make(lambda worker: worker == 0 or is_left.wait(20))
    next(iter(loader))
    iterator = iter(loader)
    is_left.set()
    next(iterator)
    state = saved(loader)
    whole = [[plain(batch) for batch in iterator], *epochs_of(loader, 2)]
    assert epochs_of(loaded(make(), state), 3) == whole
