"""States of StatefulDataLoader have the documented contents, and saving a state takes little time."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from process_checks import children, nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import Counting
from resumed import advanced, loaded
from torchdata.stateful_dataloader import Stateful, StatefulDataLoader, _cadence, _worker
from torchdata.stateful_dataloader._cadence import next_due
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler, StatefulDistributedSampler


class Counted(IterableDataset[int]):
    def __init__(self, length: int, weight: int = 0) -> None:
        self.length, self.done, self.weight = length, 0, weight
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        while self.done < self.length:
            self.done += 1
            yield torch.tensor([self.done - 1, self.asked])
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"done": self.done, "weight": [0] * self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class Packing:
    def __init__(self) -> None:
        self.kept: list[int] = []

    def __call__(self, samples: list[int]) -> list[int]:
        self.kept += samples
        cut = len(self.kept) // 2 * 2
        packed, self.kept = self.kept[:cut], self.kept[cut:]
        return packed

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = list(state["kept"])


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("iterable", [False, True])
def test_a_collate_function_resumes_with_its_state(workers: int, iterable: bool) -> None:
    def loader() -> Any:
        dataset: Any = Plain(24) if iterable else range(24)
        return StatefulDataLoader(dataset, batch_size=3, num_workers=workers, collate_fn=Packing())

    for count in (1, 4) if workers else (0, 1, 4, 7):
        whole = loader()
        iterator = advanced(whole, count)
        state = whole.state_dict()
        assert list(loaded(loader(), state)) == list(iterator)


class Plain(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def test_protocols_are_recognised_by_their_methods() -> None:
    assert isinstance(Counted(1), Stateful)
    assert isinstance(StatefulDataLoader([1]), Stateful)
    assert not isinstance([], Stateful)


def test_a_state_before_the_first_loop_starts_nothing_and_changes_no_order() -> None:
    def loader() -> Any:
        return StatefulDataLoader(range(20), batch_size=4, shuffle=True, num_workers=2)

    torch.manual_seed(2)
    whole = lists(loader())
    torch.manual_seed(2)
    one = loader()
    state = one.state_dict()
    assert children() == []
    assert lists(one) == whole
    torch.manual_seed(77)
    assert lists(loaded(loader(), state)) == whole
    after = torch.get_rng_state()
    torch.manual_seed(77)
    lists(loader())
    assert torch.equal(torch.get_rng_state(), after), "torch's loader advances the generator equally"


@pytest.mark.parametrize("every", [1, 10])
def test_a_worker_sends_its_state_after_each_nth_batch_however_often_the_main_process_is_asked(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cadence, "_COSTLY", 60.0)  # on a busy machine, saving a state may take long
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork"}  # the worker inherits the changed constant
    loader = StatefulDataLoader(Counted(400), batch_size=4, snapshot_every_n_steps=every, **options)
    last: Any = None
    for batch in loader:
        loader.state_dict()
        last = batch
    asked = int(last[-1][1])
    assert 100 // every <= asked + 2 <= 100 // every + 4


def test_a_state_is_expensive_if_each_of_three_took_long_for_a_batch() -> None:
    cadence = _cadence.SnapshotCadence(1)
    for cost in (0.03, 0.03, 1e-5):
        assert cadence.is_due(100.0, 0.001)
        cadence.took(100.0, cost)
    assert cadence.is_due(100.0, 0.001), "two slow snapshots are tolerated"
    for _ in range(3):
        cadence.took(100.0, 0.03)
    assert not cadence.is_due(100.1, 0.001)
    assert cadence.is_due(110.0, 0.001)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Expensive(Counted):
    def __init__(self, length: int, clock: Clock) -> None:
        super().__init__(length, weight=1000)
        self.clock = clock

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            self.clock.now += 1e-4
            yield sample

    def state_dict(self) -> dict[str, Any]:
        self.clock.now += 0.03
        return super().state_dict()


def test_an_expensive_state_is_sent_rarely_and_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(_worker, "time", clock)

    def loader() -> Any:
        dataset = Expensive(600, clock)
        return StatefulDataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork")

    first = loader()
    iterator = advanced(first, 149)
    assert int(next(iterator)[-1][1]) <= 6
    assert int(next(iter(loaded(loader(), first.state_dict())))[0][0]) == 300
    assert len(list(iterator)) == 150


def test_samplers_of_their_own_are_torch_s_and_can_be_saved() -> None:
    for options in ({}, {"replacement": True, "num_samples": 70}, {"num_samples": 25}):
        ours = RandomSampler(range(10), generator=torch.Generator().manual_seed(1), **options)
        theirs = torch.utils.data.RandomSampler(range(10), generator=torch.Generator().manual_seed(1), **options)
        for _ in range(2):
            assert list(ours) == list(theirs)
        iterator = iter(ours)
        head = list(itertools.islice(iterator, 7))
        state = iterator.state_dict()
        rest = list(iterator)
        assert (len(head), list(loaded(iter(RandomSampler(range(10), **options)), state))) == (7, rest)
    for drop_last in (False, True):
        batches = BatchSampler(range(10), 4, drop_last)
        assert list(batches) == list(torch.utils.data.BatchSampler(range(10), 4, drop_last))
        assert len(batches) == len(list(batches))
    with pytest.raises(ValueError, match="yielded"):
        StatefulDistributedSampler(range(4), num_replicas=1, rank=0).load_state_dict({"yielded": -1})
    with pytest.raises(ValueError, match="become shorter"):
        iter(RandomSampler(range(3))).load_state_dict({"yielded": 9, "generator": torch.Generator().get_state()})


def test_states_of_a_dataset_are_distributed_with_a_warning() -> None:
    loader = StatefulDataLoader(Counting(12), batch_size=2, num_workers=2)
    advanced(loader, 2)
    later = loaded(StatefulDataLoader(Counting(12), batch_size=2, num_workers=1), loader.state_dict())
    with pytest.warns(UserWarning, match="the states of 2 workers were saved"):
        assert [batch[:, 0].tolist() for batch in later] == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_dataset_that_has_become_shorter_raises_an_error() -> None:
    for workers in (0, 1):
        loader = StatefulDataLoader(Plain(10), num_workers=workers)
        advanced(loader, 5)
        later = loaded(StatefulDataLoader(Plain(3), num_workers=workers), loader.state_dict())
        with pytest.raises(ValueError, match="ended after 3 batches, but 5 were read"):
            list(later)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ([], TypeError, "is a dict"),
        ({"a": 1}, ValueError, r"not the state of a StatefulDataLoader, but a dict with the keys \['a'\]; pass what"),
        ({"a": 1, "data": {"_snapshot": {}}}, ValueError, r"pass state\['data'\] to load_state_dict"),
        ({"a": 1}, ValueError, "State doesn't contain key '_snapshot' expected for multiprocess dataloader"),
        ({"a": 1}, ValueError, "State doesn't contain key '_num_yielded' expected for single process dataloader"),
        ({"_num_yielded": 3}, ValueError, "damaged"),
        ({"_snapshot": 3}, ValueError, "damaged"),
    ],
)
def test_objects_that_are_not_states_are_refused(state: Any, error: type[Exception], words: str) -> None:
    loader = StatefulDataLoader(range(3))
    with pytest.raises(error, match=words):
        loader.load_state_dict(state)
    loader.load_state_dict({})
    assert lists(loader) == [[0], [1], [2]]


def test_the_iterator_cannot_be_pickled_and_knows_its_length_as_torch_s() -> None:
    iterator = iter(StatefulDataLoader(range(10), batch_size=4))
    assert len(iterator) == 3
    with pytest.raises(NotImplementedError):
        iterator.__getstate__()


@pytest.mark.parametrize("took", [1e-6, 1e-4, 0.003, 0.007, 0.5])
def test_workers_take_their_positions_together_and_for_less_than_a_hundredth_of_the_time(took: float) -> None:
    def dues(began: float, took: float) -> list[float]:
        found = [next_due(began, took)]
        for late in (0.0, took, 3 * took, 0.0, 2 * took):  # Workers first finish their current batch.
            found.append(next_due(found[-1] + late + took, took))
        return found

    ours, cheaper = dues(1000.0, took), dues(1000.3, 0.6 * took)
    for found in (ours, cheaper):
        steps = [later - earlier for earlier, later in itertools.pairwise(found)]
        assert steps == pytest.approx([steps[0]] * len(steps))
        assert steps[0] > 0.999 * max(0.004, 150 * took * (found is ours))
    for due in ours:  # At this time, workers with cheaper states also send their states.
        assert math.remainder(due - cheaper[0], cheaper[1] - cheaper[0]) == pytest.approx(0, abs=1e-6)
