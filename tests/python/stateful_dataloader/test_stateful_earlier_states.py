"""Within the program that saved its state, a stream resumes exactly, even if it counts its completed epochs."""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from kept_state import KeptState
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from resumed import WORKERS, TakesOnce, Walk, advanced, epochs_of, loaded, plain, saved, with_workers
from torchdata.nodes import IterableWrapper, Loader, Prefetcher, SamplerWrapper
from torchdata.stateful_dataloader import StatefulDataLoader


class Resumes(KeptState, TakesOnce):
    kept = ("position",)

    def __iter__(self) -> Iterator[int]:
        while self.position < len(self.share()):
            self.position += 1
            yield self.share()[self.position - 1]


class Itself(Resumes):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.position == len(self.share()):
            raise StopIteration
        self.position += 1
        return self.share()[self.position - 1]


class StartsOver(Itself):
    def __iter__(self) -> Iterator[int]:
        self.position, self.is_loaded = self.position if self.is_loaded else 0, False
        return self


@pytest.mark.parametrize(("stream", "options"), with_workers([Resumes, Itself, StartsOver, TakesOnce]))
def test_a_program_that_loads_an_earlier_state_reads_the_later_items_again(
    stream: Any, options: dict[str, Any]
) -> None:
    for batches in (None, 0, 2):
        loader = StatefulDataLoader(stream(), 2, **options)
        iterator = loader if batches is None else advanced(loader, batches)
        state = saved(loader)
        rest = [plain(batch) for batch in iterator]
        assert rest
        assert epochs_of(loaded(loader, state), 1) == [rest], batches


@pytest.mark.parametrize(("stream", "options"), with_workers([Resumes, Itself, StartsOver, TakesOnce]))
def test_loading_the_start_forgets_a_state_that_the_stream_has_not_loaded_yet(
    stream: Any, options: dict[str, Any]
) -> None:
    loader = StatefulDataLoader(stream(), 2, **options)
    iterator = iter(loader)
    first = loader.state_dict()
    whole = [plain(next(iterator)) for _ in range(2)]
    second = loader.state_dict()
    whole += [plain(batch) for batch in iterator]
    loader = loaded(StatefulDataLoader(stream(), 2, **options), second)
    iter(loader)  # `iter` only creates the stream's generator, which applies the state at the first request.
    assert epochs_of(loaded(loader, first), 1) == [whole]


class Counting(Walk):
    def __init__(self, dataset: CountsAtTheEnd) -> None:
        super().__init__([*range(7)])
        self.dataset, self.has_counted = dataset, False

    def __next__(self) -> int:
        if self.done == len(self.numbers) and not self.has_counted:
            self.dataset.epoch, self.has_counted = self.dataset.epoch + 1, True
        return super().__next__() + 100 * self.dataset.epoch


class CountsAtTheEnd(KeptState, IterableDataset[int]):
    kept = ("epoch",)
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        return Counting(self)


@pytest.mark.parametrize("options", WORKERS[::2], ids=str)
def test_a_stream_that_counts_epochs_at_the_end_of_its_iterator_continues_its_count(options: dict[str, Any]) -> None:
    options = {**options, **({"num_workers": 1} if options else {})}
    whole = epochs_of(StatefulDataLoader(CountsAtTheEnd(), 3, **options), 3)
    assert [epoch[0] for epoch in whole] == [[0, 1, 2], [100, 101, 102], [200, 201, 202]]
    for batches in range(4):
        loader = StatefulDataLoader(CountsAtTheEnd(), 3, **options)
        advanced(loader, batches)
        later = loaded(StatefulDataLoader(CountsAtTheEnd(), 3, **options), loader.state_dict())
        assert epochs_of(later, 3) == [whole[0][batches:], *whole[1:]], batches


class Keeps(IterableDataset[int]):
    def __init__(self) -> None:
        self.seen = [0]

    def __iter__(self) -> Iterator[int]:
        while self.seen[0] < 14:
            self.seen[0] += 1
            yield self.seen[0]

    def __len__(self) -> int:
        return 14

    def state_dict(self) -> dict[str, Any]:
        return {"seen": [*self.seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


LOADERS: dict[str, Any] = {
    "no workers": lambda: StatefulDataLoader(Keeps(), 2),
    "a worker": lambda: StatefulDataLoader(Keeps(), 2, num_workers=1, snapshot_every_n_steps=7),
    "a sampler": lambda: StatefulDataLoader([*range(20)], None, sampler=Keeps(), snapshot_every_n_steps=3),
    "a sampler of batches": lambda: StatefulDataLoader([*range(20)], 2, sampler=Keeps(), num_workers=1),
    "nodes": lambda: Loader(IterableWrapper(Keeps())),
    "a sampler in nodes": lambda: Loader(SamplerWrapper(Keeps())),
    "nodes that read ahead": lambda: Loader(Prefetcher(IterableWrapper(Keeps()), 2, snapshot_frequency=3)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_an_object_that_keeps_and_changes_its_loaded_state_does_not_change_other_states(kind: str) -> None:
    make = LOADERS[kind]
    whole = [plain(batch) for batch in make()]
    loader = make()
    iterator = advanced(loader, 2)
    state = loader.state_dict()
    before = json.dumps(state)
    list(iterator)
    for taken in (0, 1, 3):
        later = loaded(make(), state)
        advanced(later, taken)
        assert [plain(batch) for batch in loaded(make(), later.state_dict())] == whole[2 + taken :], taken
        assert json.dumps(state) == before


class Streamed(IterableDataset[int]):
    def __init__(self, seed: int | None, length: int = 40) -> None:
        self.seed, self.length = seed, length

    def __iter__(self) -> Iterator[int]:
        order = [*range(self.length)]
        random.Random(self.seed).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return self.length

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        raise AssertionError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize(("epoch", "options"), with_workers([0, 1]))
def test_a_stream_without_a_state_that_does_not_repeat_itself_is_refused(epoch: int, options: dict[str, Any]) -> None:
    for batches in (1, 8):
        loader = StatefulDataLoader(Streamed(None), 4, **options)
        epochs_of(loader, epoch)
        iterator = advanced(loader, batches)
        state = saved(loader)
        later = loaded(StatefulDataLoader(Streamed(None), 4, **options), state)
        with pytest.raises(ValueError, match="does not repeat itself"):
            list(later)
        assert len(list(loaded(later, state, strict=False))) == len(list(iterator))


class Noisy(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        for number in range(20):
            yield number + random.random()


def test_a_stream_with_noise_resumes_with_a_warning_if_the_program_draws_from_the_same_generator() -> None:
    loader = StatefulDataLoader(Noisy(), 2)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        random.random()
    loader = loaded(StatefulDataLoader(Noisy(), 2), loader.state_dict())
    with pytest.warns(RuntimeWarning, match="the samples of the first 4 batches contain other numbers"):
        rest = [int(sample) for batch in loader for sample in batch]
    assert rest == list(range(8, 20))


class PrivatelyNoisy(IterableDataset[Any]):
    def __init__(self, makes: Any) -> None:
        self.makes = makes

    def __iter__(self) -> Iterator[Any]:
        source = random.SystemRandom()
        for number in range(20):
            yield self.makes(number, source)


def labelled(number: int, source: random.Random) -> tuple[int, float]:
    return number, source.random()


def image(number: int, source: random.Random) -> dict[str, Any]:
    return {"key": str(number), "image": torch.tensor([source.random(), 1.0])}


@pytest.mark.parametrize(("makes", "num_workers"), [(labelled, 0), (image, 2)])
def test_a_stream_that_augments_by_unseeded_numbers_resumes_with_a_warning(
    makes: Any, num_workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    # A fork server that an earlier test has started would print the warning to that test's standard error.
    options: Any = {"multiprocessing_context": "fork" if num_workers else None, "num_workers": num_workers}
    loader = StatefulDataLoader(PrivatelyNoisy(makes), None, **options)
    advanced(loader, 6)
    loader = loaded(StatefulDataLoader(PrivatelyNoisy(makes), None, **options), loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # Workers must print their warnings to standard error.
        warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)
        rest = [int(sample["key"] if makes is image else sample[0]) for sample in loader]
    assert "contain other numbers than before the state was saved" in capfd.readouterr().err
    copies = max(num_workers, 1)
    assert rest == [number for number in range(6 // copies, 20) for _ in range(copies)]


def shuffled(number: int, source: random.Random) -> tuple[int, float]:
    return source.randrange(1 << 40), float(number)


def test_a_stream_whose_discrete_parts_differ_is_refused() -> None:
    loader = StatefulDataLoader(PrivatelyNoisy(shuffled), None)
    advanced(loader, 1)
    loader = loaded(StatefulDataLoader(PrivatelyNoisy(shuffled), None), loader.state_dict())
    with pytest.raises(ValueError, match="the dataset does not repeat itself"):
        next(iter(loader))
