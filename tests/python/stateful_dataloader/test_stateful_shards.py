"""A state within an epoch over an iterable dataset can be loaded with any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from kept_state import KeptState
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from resumed import loaded
from torchdata.stateful_dataloader import StatefulDataLoader

NUMBERS = (0, 1, 2, 3, 5, 8)
SAMPLES, SIZE = 17, 2


@pytest.fixture(autouse=True)
def _many_workers_for_few_cores() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


def worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Plain(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(worker()[0], SAMPLES, worker()[1]):
            assert get_worker_info() is None or get_worker_info().dataset is self  # type: ignore[union-attr]
            drawn = random.random(), float(numpy.random.standard_normal()), float(torch.randn(()))
            yield [index, *worker(), *drawn]


class WithState(IterableDataset[Any]):
    def __init__(self) -> None:
        self.counts, self.draw = numpy.zeros(3000), random.Random(5)
        self.index: int | None = None

    def __iter__(self) -> Iterator[Any]:
        self.index = worker()[0] if self.index is None else self.index
        while self.index < SAMPLES:
            index, self.index = self.index, self.index + worker()[1]
            self.counts[-1] += 1
            yield [index, *worker(), float(self.counts[-1]), self.draw.random(), random.random()]
        self.index = None

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index, "count": float(self.counts[-1]), "draw": self.draw.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index, self.counts[-1] = state["index"], state["count"]
        self.draw.setstate(state["draw"])


class _Steps(KeptState):
    kept = ("index",)

    def __init__(self) -> None:
        self.index, self.step = worker()

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        if self.index >= SAMPLES:
            raise StopIteration
        self.index += self.step
        return [self.index - self.step, *worker(), float(torch.rand(()))]


class WithIterator(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return _Steps()


def shuffled_pipe() -> Any:
    return IterableWrapper(range(SAMPLES)).shuffle().sharding_filter()


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def loader(form: Callable[[], Any], workers: int, **options: Any) -> StatefulDataLoader[Any]:
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    return StatefulDataLoader(form(), SIZE, num_workers=workers, **{"collate_fn": as_it_is, **options})


def resumed(state: Any, form: Callable[[], Any], workers: int, **options: Any) -> StatefulDataLoader[Any]:
    return loaded(loader(form, workers, **options), state)


def epoch_of(form: Callable[[], Any], workers: int, **options: Any) -> tuple[list[Any], list[Any]]:
    first = loader(form, workers, **options)
    iterator = iter(first)
    batches, states = [], [first.state_dict()]
    for batch in iterator:
        batches.append(batch)
        states.append(first.state_dict())
    return batches, states[:-1]


def workers_in(batches: list[Any]) -> set[tuple[int, int]]:
    return {(sample[1], sample[2]) for batch in batches for sample in batch}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_pipe_keeps_its_order_in_a_program_with_another_seed(workers: int) -> None:
    whole, states = epoch_of(shuffled_pipe, workers)
    for position in (0, 4) if workers else range(len(whole)):
        later = loader(shuffled_pipe, workers)
        torch.manual_seed(99)
        assert list(loaded(later, states[position])) == whole[position:]


FORMS = [Plain, WithState, WithIterator, shuffled_pipe]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", NUMBERS)
def test_a_state_of_each_number_of_workers_resumes_with_each_other_number(form: Any, before: int) -> None:
    batches, states = epoch_of(form, before)
    assert len(batches) >= SAMPLES // SIZE
    # Each pair of an old and a new worker count is tested with only one form of dataset.
    for after in {0, *NUMBERS[(FORMS.index(form) + NUMBERS.index(before)) % 4 :: 4]}:
        # To save time, a loader with workers resumes from only one of the positions.
        for cut in range(before == 0, len(states)) if after == 0 else [(before + after) % len(states)]:
            assert list(resumed(states[cut], form, after)) == batches[cut:], (after, cut)


@pytest.mark.parametrize(("form", "before", "after"), [(Plain, 3, 2), (WithState, 3, 0), (WithIterator, 0, 2)])
def test_later_epochs_have_the_number_of_workers_of_the_loader(form: Any, before: int, after: int) -> None:
    batches, states = epoch_of(form, before)
    later = resumed(states[3], form, after)
    assert list(later) == batches[3:]
    expected = {(number, after) for number in range(after)} or {(0, 1)}
    for _ in range(2):
        epoch = list(later)
        assert workers_in(epoch) == expected
        assert sorted(sample[0] for batch in epoch for sample in batch) == [*range(SAMPLES)]


@pytest.mark.parametrize(
    ("form", "before", "between"), [(Plain, 3, 0), (WithState, 3, 2), (WithState, 0, 2), (WithIterator, 1, 0)]
)
def test_a_state_of_the_resumed_epoch_loads_with_a_third_number(form: Any, before: int, between: int) -> None:
    batches, states = epoch_of(form, before)
    second = resumed(states[1], form, between)
    iterator = iter(second)
    taken = [(2 + count, next(iterator), second.state_dict()) for count in range(3)]
    assert [batch for _, batch, _ in taken] + list(iterator) == batches[1:]
    for received, _, state in taken:
        for after in {0, before} if received % 2 else {0}:
            assert list(resumed(state, form, after)) == batches[received:], (received, after)


@pytest.mark.parametrize(("form", "before", "after"), [(Plain, 3, 2), (WithState, 2, 3), (WithState, 0, 2)])
def test_persistent_workers_continue_as_after_a_state_of_the_end(form: Any, before: int, after: int) -> None:
    batches, states = epoch_of(form, before, **({"persistent_workers": True} if before else {}))
    later = resumed(states[3], form, after, persistent_workers=True)
    assert list(later) == batches[3:]
    state = later.state_dict()
    epochs = [list(later), list(later)]
    assert workers_in(epochs[0]) == {(number, after) for number in range(after)}
    again = resumed(state, form, after, persistent_workers=True)
    assert [list(again), list(again)] == epochs


def test_the_epoch_after_an_abandoned_one_has_the_loader_s_number_of_workers() -> None:
    _, states = epoch_of(Plain, 3)
    later = resumed(states[2], Plain, 2, persistent_workers=True)
    next(iter(later))
    assert workers_in(list(later)) == {(0, 2), (1, 2)}


@pytest.mark.parametrize("form", [Plain, WithState])
def test_workers_that_are_killed_in_the_resumed_epoch_are_replaced_with_all_of_their_shards(form: Any) -> None:
    batches, states = epoch_of(form, 5)
    later = resumed(states[2], form, 2, on_worker_exit="restart")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        iterator = iter(later)
        got = [next(iterator)]
        for batch in iterator:
            got.append(batch)
            if len(got) in (2, 4):
                os.kill(iterator._pool.pids[len(got) // 2 - 1], signal.SIGKILL)
                state = later.state_dict()
                assert list(resumed(state, form, 0)) == batches[2 + len(got) :]
    assert got == batches[2:]


@pytest.mark.parametrize("after", [0, 2])
def test_out_of_order_each_sample_is_yielded_once(after: int) -> None:
    first = loader(WithState, 3, in_order=False)
    iterator = iter(first)
    received = [next(iterator) for _ in range(3)]
    rest = list(resumed(first.state_dict(), WithState, after, in_order=False))
    assert sorted(sample[0] for batch in received + rest for sample in batch) == [*range(SAMPLES)]


class Failing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(_FailsAtSome())


class _FailsAtSome(_Steps):
    def __next__(self) -> Any:
        sample = super().__next__()
        if sample[0] % 5 == 3:
            raise ValueError(sample[0])
        return sample


@pytest.mark.parametrize("after", [0, 2])
def test_skipped_samples_are_counted_as_before(after: int) -> None:
    with pytest.warns(RuntimeWarning, match="has skipped 3 of the 17 samples"):
        batches, states = epoch_of(Failing, 3, on_error="skip")
    for cut in (1, 3):
        later = resumed(states[cut], Failing, after, on_error="skip")
        with pytest.warns(RuntimeWarning, match="has skipped 3 of the 17 samples"):
            assert list(later) == batches[cut:]


class FailingLate(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(worker()[0], SAMPLES, worker()[1]):
            if index == 13:
                raise ValueError("number 13")
            yield index


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_of_a_shard_is_raised_in_its_turn(after: int) -> None:
    states = []
    first = loader(FailingLate, 3)
    iterator = iter(first)
    with pytest.raises(ValueError, match="number 13"):
        while True:
            next(iterator)
            states.append(first.state_dict())
    later = iter(resumed(states[0], FailingLate, after))
    for _ in states[1:]:
        next(later)
    with pytest.raises(ValueError, match="number 13"):
        next(later)
    later.shutdown()
    iterator.shutdown()


def note_shard(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == number
    info.dataset.noted = (info.id, info.num_workers, info.seed, torch.initial_seed())


class Noting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(worker()[0], SAMPLES, worker()[1]):
            info = get_worker_info()
            assert info is not None
            yield (index, self.noted, info.id, info.num_workers, info.seed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [0, 2])
def test_worker_init_fn_and_worker_info_show_the_shard(after: int) -> None:
    batches, states = epoch_of(Noting, 3, worker_init_fn=note_shard)
    assert {sample[1][:2] for batch in batches for sample in batch} == {(0, 3), (1, 3), (2, 3)}
    assert list(resumed(states[2], Noting, after, worker_init_fn=note_shard)) == batches[2:]


def test_a_loader_without_workers_keeps_the_generators_and_the_dataset_of_the_program_and_no_worker_info() -> None:
    _, states = epoch_of(WithState, 3)
    dataset = WithState()
    later = resumed(states[2], lambda: dataset, 0)
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for _ in later:
        assert get_worker_info() is None
        assert before == (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert dataset.counts.sum() == 0
    assert dataset.index is None


def test_tensors_are_collated_without_shared_memory_in_the_program_s_process() -> None:
    _, states = epoch_of(Plain, 3, collate_fn=None)
    for columns in resumed(states[2], Plain, 0, collate_fn=None):
        assert not any(column.is_shared() for column in columns)


class Large(IterableDataset[Any]):
    def __init__(self) -> None:
        self.array = numpy.arange(1 << 20)
        self.fixed = numpy.arange(1 << 20)
        self.fixed.setflags(write=False)
        self.tensor = torch.zeros(1 << 18)
        self.total = multiprocessing.Value("i", 0)
        self.scaled = lambda index: 10 * index

    def __iter__(self) -> Iterator[Any]:
        for index in range(worker()[0], SAMPLES, worker()[1]):
            self.array[0] += 1
            self.tensor[0] += 1
            with self.total.get_lock():
                self.total.value += 1
            yield [self.scaled(index), int(self.array[0]), float(self.tensor[0]), int(self.fixed[index])]


@pytest.mark.parametrize("after", [0, 2])
def test_copies_of_a_dataset_share_only_constants_and_memory_that_processes_share(after: int) -> None:
    batches, states = epoch_of(Large, 3, multiprocessing_context="fork")
    dataset = Large()
    options = {"multiprocessing_context": "fork"} if after else {}
    assert list(resumed(states[3], lambda: dataset, after, **options)) == batches[3:]
    assert dataset.total.value >= SAMPLES
    assert dataset.array[0] == 0


class WithGenerator(Plain):
    def __init__(self) -> None:
        self.rows = (row for row in range(3))


def test_a_dataset_that_cannot_be_copied_is_refused_by_name() -> None:
    fork = {"multiprocessing_context": "fork"}
    _, states = epoch_of(WithGenerator, 2, **fork)
    for after, options in ((0, {}), (1, fork)):
        with pytest.raises(TypeError, match=r"cannot be pickled.*num_workers=2"):
            iter(resumed(states[1], WithGenerator, after, **options))
    # With three workers, no worker runs several shards, so the dataset need not be pickled.
    assert len(list(resumed(states[1], WithGenerator, 3, **fork))) == len(states) - 1


def test_a_state_resumes_under_another_start_method() -> None:
    batches, states = epoch_of(WithState, 3)
    assert list(resumed(states[2], WithState, 1, multiprocessing_context="spawn")) == batches[2:]


@pytest.mark.parametrize("after", [0, 2, 5])
def test_the_statistics_count_the_reads_of_all_shards(after: int) -> None:
    batches, states = epoch_of(Plain, 3)
    rest = resumed(states[0], Plain, after, stats="full")
    begun = iter(rest)
    found = [next(begun)]
    assert len(rest.worker_pids()) == min(after, 3)
    assert found + list(begun) == batches
    counts = {pipe.name: pipe.items_out for pipe in rest.stats().merged_pipes()}
    assert counts == {"Plain.__iter__": SAMPLES, "as_it_is": len(batches), "StatefulDataLoader": len(batches)}


def test_the_statistics_name_torch_s_function_of_batches() -> None:
    rest = resumed(epoch_of(Plain, 2, collate_fn=None)[1][0], Plain, 0, collate_fn=None)
    list(rest)
    assert "default_collate" in [pipe.name for pipe in rest.stats().merged_pipes()]
