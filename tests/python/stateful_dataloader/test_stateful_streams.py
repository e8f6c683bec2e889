"""A loader that resumes from a state yields the items of an uninterrupted run, also in the epochs after the first."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from kept_state import KeptState
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import STREAMS, EpochAtEnd, PlainSteps
from resumed import MOMENTS, WORKERS, TakesOnce, advanced, check_resumes, epochs_of, loaded, plain, saved, with_workers
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence


@pytest.mark.parametrize(("stream", "options"), with_workers(STREAMS))
def test_streams_yield_the_rest_of_the_epoch_and_then_whole_epochs(stream: Any, options: dict[str, Any]) -> None:
    moments = {0: [*MOMENTS, (1, 3)], 1: [(0, 3), (1, None)], 2: [(1, 0), (1, 3), (1, None)]}
    for batch_size in (2, None)[: 1 if options else 2]:
        check_resumes(
            lambda size=batch_size: StatefulDataLoader(stream(9), batch_size=size, **options),
            moments[len(options)],
            count=3 if options else 4,
        )


#: For each of the first epochs: the number of batches that are read, or None for all batches.
BREAKS = [(2,), (1,), (1, 1), (3, 0, 1), (None, 1)]


@pytest.mark.parametrize(
    ("stream", "options", "every"),
    [
        *itertools.product(STREAMS, WORKERS[:1], [1, 2, 7]),
        *zip(STREAMS, itertools.repeat(WORKERS[2]), itertools.cycle([1, 2, 7]), strict=False),
    ],
)
def test_after_abandoned_epochs_streams_continue_as_without_a_stop(stream: Any, options: Any, every: int) -> None:
    def make() -> Any:
        return StatefulDataLoader(stream(9), batch_size=2, snapshot_every_n_steps=every, **options)

    def broken(breaks: Any) -> Any:
        loader = make()
        for count in breaks:
            for _ in itertools.islice(iter(loader), count):
                pass
        return loader

    with_workers = {1: BREAKS[4:], 2: BREAKS[2:3], 7: BREAKS[3:4]}
    for breaks in with_workers[every] if options else BREAKS:
        whole = epochs_of(broken(breaks), 3)
        for batches in (0, 1, 2) if not options else (0, 1):
            if batches > len(whole[0]):
                continue
            loader = broken(breaks)
            advanced(loader, batches)
            later = loaded(make(), saved(loader))
            iter(later)
            third = loaded(make(), saved(later))
            wanted = [whole[0][batches:], *whole[1:]]
            assert epochs_of(third, 3) == wanted, (breaks, batches)


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_after_the_last_batch_a_stream_without_a_state_ends_and_then_yields_whole_epochs(options: Any) -> None:
    class Plain(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from TakesOnce().share()

    def make() -> Any:
        return StatefulDataLoader(Plain(), batch_size=2, **options)

    [whole] = epochs_of(make(), 1)
    loader = make()
    advanced(loader, len(whole))
    for _ in range(2):  # loads the state once in the first pass, and loads, saves and loads it in the second pass
        loader = loaded(make(), saved(loader))
        iterator = iter(loader)
    assert list(iterator) == []
    assert epochs_of(loader, 2) == [whole, whole]


class Numbers(KeptState):
    kept = ("batches",)
    batches = 0

    def __call__(self, samples: list[int]) -> list[int]:
        self.batches += 1
        return [self.batches, *samples]


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_a_collate_function_resumes_with_its_state_over_a_stream_without_a_state(options: Any) -> None:
    check_resumes(lambda: StatefulDataLoader(PlainSteps(9), batch_size=2, collate_fn=Numbers(), **options))


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_an_error_of_an_ended_stream_that_loads_its_state_is_raised(options: Any) -> None:
    class Refuses(TakesOnce):
        def load_state_dict(self, state: Any) -> None:
            raise LookupError("the stream cannot load a state")

    loader = StatefulDataLoader(TakesOnce(), batch_size=None, timeout=60 * bool(options), **options)
    advanced(loader, 8)
    later = StatefulDataLoader(Refuses(), batch_size=None, timeout=60 * bool(options), **options)
    loaded(later, loader.state_dict())
    with pytest.raises(LookupError, match="the stream cannot load a state"):
        list(later)


def test_a_long_abandoned_epoch_is_not_read_again_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cadence, "_COSTLY", math.inf)  # busy machines send states less often

    class Counted(EpochAtEnd):
        read = 0

        def item(self, *values: float) -> Any:
            self.read += 1
            return int(values[0])

    loader = StatefulDataLoader(Counted(500), batch_size=None)
    for _ in itertools.islice(loader, 400):
        pass
    iterator = iter(loader)
    dataset = Counted(500)
    later = loaded(StatefulDataLoader(dataset, batch_size=None), saved(loader))
    assert next(iter(later)) == next(iterator) == 400
    assert dataset.read <= 129  # the position in the state is at most 128 batches old


def test_abandoned_epochs_do_not_make_states_grow() -> None:
    loader = StatefulDataLoader(TakesOnce(), batch_size=2)
    sizes = []
    for _ in range(400):
        iterator = iter(loader)
        sizes.append(len(json.dumps(loader.state_dict()["_torchdata_rs"][0]["reading"])))
        next(iterator)
    assert max(sizes[:300]) == max(sizes)
    iterator = iter(loader)
    later = loaded(StatefulDataLoader(TakesOnce(), batch_size=2), loader.state_dict())
    assert epochs_of(later, 1) == [[plain(batch) for batch in iterator]]


def test_a_worker_that_is_slow_to_begin_loses_none_of_its_items() -> None:
    class Slow(TakesOnce):
        pause = 0.01

    def make() -> Any:
        return StatefulDataLoader(Slow(), batch_size=None, num_workers=2, persistent_workers=True)

    whole = [*epochs_of(make(), 1)] * 3
    for batches in (1, 3):
        loader = make()
        advanced(loader, 3)
        advanced(loader, batches)
        assert epochs_of(loaded(make(), loader.state_dict()), 3) == [whole[0][batches:], *whole[1:]]


class Steps:
    passes, left = 1, 4

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return 10 * self.passes + self.left


class OwnSteps(Steps, IterableDataset[int]):
    def __iter__(self) -> Any:
        self.passes, self.left = self.passes + 1, 4
        return self


class WithSteps(IterableDataset[int]):
    def __iter__(self) -> Any:
        return Steps()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stream", [OwnSteps, WithSteps])
def test_iter_of_a_dataset_without_a_state_is_called_once_per_epoch_as_in_torch(stream: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "persistent_workers": workers > 0}
    theirs, ours = DataLoader(stream(), **options), StatefulDataLoader(stream(), **options)
    assert epochs_of(ours, 2) == epochs_of(theirs, 2)


class LateState(IterableDataset[int]):
    """A stream without a state before its first item. Raises KeyboardInterrupt at the sixth item, but only once."""

    def __iter__(self) -> Iterator[int]:
        self.at = getattr(self, "start", 0)
        while self.at < 8:
            if self.at == 5 and not hasattr(self, "start"):
                raise KeyboardInterrupt
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


def test_ctrl_c_loses_no_sample_of_a_dataset_that_has_no_state_before_its_first_item() -> None:
    reading = iter(StatefulDataLoader(LateState(), batch_size=2))
    found = [next(reading), next(reading)]
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    assert [*map(plain, [*found, *reading])] == [[0, 1], [2, 3], [4, 5], [6, 7]]
