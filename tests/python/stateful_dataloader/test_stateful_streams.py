"""After a state is loaded, the rest of the epoch and later epochs are the same as in an uninterrupted run."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torch.utils.data import IterableDataset  # noqa: E402

from going_on import MOMENTS, WORKERS, TakesOnce, Walk, check_goes_on, epochs_of, plain, with_workers  # noqa: E402
from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence  # noqa: E402


class CountsEpochs(TakesOnce):
    """A stream that counts an epoch unless a state was loaded, and shuffles by the epoch's number."""

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
    """A stream that prepares the next epoch when an epoch ends."""

    def __iter__(self) -> Iterator[Any]:
        for number in self.share()[self.start :]:
            self.start += 1
            yield number
        self.start = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.start}


class TakesAlways(TakesOnce):
    """A stream that begins not only one epoch but every later epoch at the loaded position, like Hugging Face's
    streams."""

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


class Walked(TakesOnce):
    """A stream with a state and with iterators that also have a state."""

    def __iter__(self) -> Iterator[Any]:
        return Walk(self.share())


class ItsOwnIterator(TakesOnce):
    """A stream that is its own iterator. If an epoch is left early, the stream continues at the same position
    afterwards."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        numbers = self.share()
        if self.place == len(numbers):
            self.place = 0
            raise StopIteration
        self.place += 1
        return numbers[self.place - 1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class CountsWhenBegun(CountsEpochs):
    """A stream that counts an epoch in `iter()`, before its first item is requested."""

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.epoch, self.place = self.epoch + 1, 0
        self.loaded = True
        return super().__iter__()


STREAMS = [TakesOnce, CountsEpochs, CountsWhenBegun, BeginsAnew, ItsOwnIterator, TakesAlways, Walked]


@pytest.mark.parametrize(("stream", "options"), with_workers(STREAMS))
def test_streams_give_the_rest_and_then_whole_epochs(stream: Any, options: dict[str, Any]) -> None:
    moments = {0: [*MOMENTS, (1, 3)], 1: [(0, 3), (1, None)], 2: [(1, 0), (1, 3), (1, None)]}
    for batch_size in (2, None)[: 1 if options else 2]:
        check_goes_on(
            lambda size=batch_size: StatefulDataLoader(stream(), batch_size=size, **options),
            moments[len(options)],
            count=3 if options else 4,
        )


#: Plans for the epochs before the saved state. Each number is the number of batches after which an epoch is left early,
#: and None stands for a complete epoch.
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
        return StatefulDataLoader(stream(), batch_size=2, snapshot_every_n_steps=every, **options)

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
            iterator = iter(loader)
            for _ in range(batches):
                next(iterator)
            state = json.loads(json.dumps(loader.state_dict()))
            later = make()
            later.load_state_dict(state)
            iter(later)
            third = make()
            third.load_state_dict(json.loads(json.dumps(later.state_dict())))
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
    iterator = iter(loader)
    for _ in whole:
        next(iterator)
    for _ in range(2):  # loads the state once in the first pass, and loads, saves and loads it in the second pass
        state = json.loads(json.dumps(loader.state_dict()))
        loader = make()
        loader.load_state_dict(state)
        iterator = iter(loader)
    assert list(iterator) == []
    assert epochs_of(loader, 2) == [whole, whole]


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_an_error_of_an_ended_stream_that_loads_its_state_is_raised(options: Any) -> None:
    class Refuses(TakesOnce):
        def load_state_dict(self, state: Any) -> None:
            raise LookupError("it takes no state")

    loader = StatefulDataLoader(TakesOnce(), batch_size=None, timeout=60 * bool(options), **options)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    state = loader.state_dict()
    later = StatefulDataLoader(Refuses(), batch_size=None, timeout=60 * bool(options), **options)
    later.load_state_dict(state)
    with pytest.raises(LookupError, match="it takes no state"):
        list(later)


def test_a_long_abandoned_epoch_is_not_read_again_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cadence, "_DEAR", math.inf)  # otherwise, a busy machine would send states less often

    class Counted(BeginsAnew):
        length, read = 500, 0

        def __iter__(self) -> Iterator[Any]:
            for number in super().__iter__():
                self.read += 1
                yield number

    loader = StatefulDataLoader(Counted(), batch_size=None)
    for _ in itertools.islice(loader, 400):
        pass
    iterator = iter(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    dataset = Counted()
    later = StatefulDataLoader(dataset, batch_size=None)
    later.load_state_dict(state)
    assert next(iter(later)) == next(iterator) == 400
    assert dataset.read <= 129  # the position in the state is at most 128 batches old


def test_abandoned_epochs_do_not_make_states_grow() -> None:
    loader = StatefulDataLoader(TakesOnce(), batch_size=2)
    sizes = []
    for _ in range(700):
        iterator = iter(loader)
        sizes.append(len(json.dumps(loader.state_dict()["_torchdata_rs"][0]["reading"]["later"])))
        next(iterator)
    assert max(sizes[:300]) == max(sizes)
    later = StatefulDataLoader(TakesOnce(), batch_size=2)
    iterator = iter(loader)
    later.load_state_dict(loader.state_dict())
    assert epochs_of(later, 1) == [[plain(batch) for batch in iterator]]


def test_a_changed_dataset_state_applies_to_the_current_epoch() -> None:
    loader = StatefulDataLoader(TakesOnce(), batch_size=None)
    for _ in itertools.islice(loader, 2):
        pass
    iterator = iter(loader)
    state = loader.state_dict()
    assert state["dataset_state"] == {"place": 2}
    state["dataset_state"] = {"place": 5}
    later = StatefulDataLoader(TakesOnce(), batch_size=None)
    later.load_state_dict(state)
    assert list(later) == [5, 6, 7, 8]
    assert next(iterator) == 0


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
