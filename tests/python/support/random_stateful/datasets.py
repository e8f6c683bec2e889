"""Provides map-style and iterable datasets. Some of them have states, and some draw random numbers."""

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

import streams_of_users as streams
from upstream_states import Counted

DRAWS = ("torch", "numpy", "random", "all")


def drawn(kind: str) -> float:
    total = 0.0
    if kind in ("torch", "all"):
        total += float(torch.rand(()))
    if kind in ("numpy", "all"):
        total += float(numpy.random.random())
    if kind in ("random", "all"):
        total += random.random()
    return round(total, 6)


class Slow:
    slow = False
    #: Whether every third item takes longer than other items.
    uneven = False
    _chance: random.Random | None = None
    hanging: tuple[int, Callable[[], None]] | None = None

    def pause(self, number: float) -> None:
        if self.hanging is not None and number == self.hanging[0]:
            self.hanging[1]()
        if self.uneven and number % 3 == 0:
            time.sleep(0.02)
        if not self.slow:
            return
        if Slow._chance is None:
            Slow._chance = random.Random(os.urandom(8))
        if Slow._chance.random() < 0.4:
            time.sleep(Slow._chance.random() * 0.004)


class Broken(Exception):
    """Raised if a sample of a dataset cannot be read."""


class Indexed(Slow, Dataset[Any]):
    broken: frozenset[int] = frozenset()

    def __init__(self, length: int, draws: str = "") -> None:
        self.length, self.draws = length, draws

    def pause(self, number: float) -> None:
        super().pause(number)
        self.check(number)

    def check(self, number: float) -> None:
        if number in self.broken:
            if "Noisy" in type(self).__name__:
                drawn(self.draws)
            raise (Broken if number % 2 else LookupError)(number)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return index


class AtOnce(Indexed):
    def __getitems__(self, indices: list[int]) -> Any:
        self.pause(indices[0])
        for index in indices[1:]:
            self.check(index)
        return [1000 + index for index in indices]


class Counting(Counted, Indexed):
    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return super().__getitem__(index)


class Noisy(Indexed):
    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return torch.tensor([index, drawn(self.draws)], dtype=torch.float64)


class NoisyCounting(Counting):
    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        self.reads += 1
        return torch.tensor([index, self.reads, drawn(self.draws)], dtype=torch.float64)


class OwnNoise(Indexed):
    def __init__(self, length: int, draws: str = "") -> None:
        super().__init__(length, draws)
        self.own = random.Random(5)

    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return torch.tensor([index, self.own.random()], dtype=torch.float64)


class OwnNoiseKept(OwnNoise):
    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.own.getstate()
        return {"own": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["own"]
        self.own.setstate((version, tuple(words), gauss))


class Shared(Slow):
    """A dataset with shards of different sizes for the workers, so that workers end at different times."""

    size: int
    broken: frozenset[int] = frozenset()

    def __init__(self, length: int, draws: str = "") -> None:
        super().__init__(length)  # type: ignore[call-arg]
        self.draws = draws

    def shard(self) -> Any:
        info = get_worker_info()
        first, parts = (0, 1) if info is None else (100 * info.id, info.id + 1)
        return range(first, first + self.size // parts)

    def item(self, *values: float) -> Any:
        number = values[0] % 1000  # without the epoch
        self.pause(number)
        if number % 100 in self.broken:
            raise (Broken if number % 2 else LookupError)(number)
        drawing = (drawn(self.draws),) if self.draws else ()
        return torch.tensor([*values, *drawing], dtype=torch.float64)


class Plain(Shared, streams.Plain):
    pass


class PlainEpochs(Shared, streams.Plain):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        yield from super().__iter__()

    def numbers(self) -> Any:
        return streams.shuffled(self.shard(), self.epoch)


class Taking(Shared, streams.TakesOnce):
    pass


class EpochInGenerator(Shared, streams.CountsEpochs):
    pass


class EpochInIter(Shared, streams.CountsAtOnce):
    pass


class EpochAtEnd(Shared, streams.Resumes):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "size": [0] * 40}


class StateStays(Shared, streams.TakesAgain):
    pass


class ItsOwnIterator(Shared, streams.ItsOwnIterator):
    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        return self


class PlainSteps(Shared, streams.Plain):
    def __iter__(self) -> Iterator[Any]:
        return map(self.item, self.shard())


class IteratorAlone(Shared, streams.Walked):
    pass


class IteratorAndEpochs(Shared, streams.WalkedInOrder):
    pass


MAPS: list[Callable[[int, str], Any]] = [Indexed, AtOnce, Counting, Noisy, NoisyCounting, OwnNoise, OwnNoiseKept]
STATELESS_STREAMS: list[Callable[[int, str], Any]] = [Plain, PlainEpochs]
STREAMS: list[Callable[[int, str], Any]] = [
    Taking,
    EpochInGenerator,
    EpochInIter,
    EpochAtEnd,
    StateStays,
    ItsOwnIterator,
    IteratorAlone,
    IteratorAndEpochs,
]
LASTING_STREAMS: list[Callable[[int, str], Any]] = [PlainSteps, ItsOwnIterator, IteratorAlone, IteratorAndEpochs]
BY_NAME: dict[str, Any] = {cls.__name__: cls for cls in [*MAPS, *STATELESS_STREAMS, *STREAMS, PlainSteps]}
