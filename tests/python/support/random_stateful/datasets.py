"""Datasets for random programs: map-style and iterable, with and without states, with and without random draws."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

#: The global random generators that a dataset may draw from.
DRAWS = ("torch", "numpy", "random", "all")


def drawn(kind: str) -> float:
    """Returns a random number from one global random generator, or the sum of random numbers from all global random
    generators."""
    total = 0.0
    if kind in ("torch", "all"):
        total += float(torch.rand(()))
    if kind in ("numpy", "all"):
        total += float(numpy.random.random())
    if kind in ("random", "all"):
        total += random.random()
    return round(total, 6)


class Slow:
    """Delays some items for random times. The delays are random and differ between runs, but are not drawn from the
    program's random generators."""

    slow = False
    #: Whether some items are always late. In loaders without a fixed order, late items change the order of the items.
    uneven = False
    _chance: random.Random | None = None
    #: A sample number, and a function that is called before the sample with this number is read.
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


# -- by index ----------------------------------------------------------------------------------------------


class Broken(Exception):
    """Raised if a sample of a dataset cannot be read."""


class Indexed(Slow, Dataset[Any]):
    #: The indices at which the dataset raises.
    broken: frozenset[int] = frozenset()

    def __init__(self, length: int, draws: str = "") -> None:
        self.length, self.draws = length, draws

    def pause(self, number: float) -> None:
        super().pause(number)
        self.check(number)

    def check(self, number: float) -> None:
        """Raises if the sample is broken. Noisy datasets draw random numbers before they raise the error."""
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


class Counting(Indexed):
    """A dataset that counts its reads. Each sample contains the current count, which is the dataset's state.

    Each worker has a separate count of reads.
    """

    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        self.reads += 1
        return torch.tensor([index, self.reads])

    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reads = state["reads"]


class Noisy(Indexed):
    """A dataset that draws its samples from the global random generators (augmentation)."""

    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return torch.tensor([index, drawn(self.draws)], dtype=torch.float64)


class NoisyCounting(Counting):
    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        self.reads += 1
        return torch.tensor([index, self.reads, drawn(self.draws)], dtype=torch.float64)


class OwnNoise(Indexed):
    """A dataset that draws its samples from its own random generator, which is not part of its state."""

    def __init__(self, length: int, draws: str = "") -> None:
        super().__init__(length, draws)
        self.own = random.Random(5)

    def __getitem__(self, index: int) -> Any:
        self.pause(index)
        return torch.tensor([index, self.own.random()], dtype=torch.float64)


class OwnNoiseKept(OwnNoise):
    """A dataset like `OwnNoise`, with the generator in its state."""

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.own.getstate()
        return {"own": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["own"]
        self.own.setstate((version, tuple(words), gauss))


# -- iterable ----------------------------------------------------------------------------------------------


class Iterable(Slow, IterableDataset[Any]):
    """The base class of iterable datasets. Workers have shards of different sizes, so they end at different times."""

    #: The positions in each worker's shard at which the stream raises.
    broken: frozenset[int] = frozenset()

    def __init__(self, length: int, draws: str = "") -> None:
        self.length, self.draws = length, draws

    def share(self) -> list[int]:
        info = get_worker_info()
        if info is None:
            return list(range(self.length))
        return list(range(info.id * 100, info.id * 100 + self.length // (info.id + 1)))

    def shuffled(self, epoch: int) -> list[int]:
        numbers = self.share()
        random.Random(epoch).shuffle(numbers)
        return numbers

    def item(self, *values: float) -> Any:
        self.pause(values[0])
        if values[0] % 100 in self.broken:
            raise (Broken if values[0] % 2 else LookupError)(values[0])
        drawing = (drawn(self.draws),) if self.draws else ()
        return torch.tensor([*values, *drawing], dtype=torch.float64)


class Plain(Iterable):
    def __iter__(self) -> Iterator[Any]:
        for number in self.share():
            yield self.item(number)


class PlainEpochs(Iterable):
    """A stream without a state that counts its epochs, and shuffles by the epoch's number."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        for number in self.shuffled(self.epoch):
            yield self.item(number)


class Taking(Iterable):
    """A stream that begins at the loaded position, and counts the position from there. Its `__iter__` is a generator
    function."""

    place = start = 0

    def __iter__(self) -> Iterator[Any]:
        self.place, self.start = self.start, 0
        for number in self.share()[self.place :]:
            self.place += 1
            yield self.item(number)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


class EpochInGenerator(Iterable):
    """A stream with a generator function as `__iter__`. Unless a state was loaded, the function's first line counts the
    epoch, which determines the order.
    """

    epoch, place, loaded = 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        yield from self.rest()

    def begin(self) -> None:
        if not self.loaded:
            self.epoch += 1
            self.place = 0
        self.loaded = False

    def rest(self) -> Iterator[Any]:
        for number in self.shuffled(self.epoch)[self.place :]:
            self.place += 1
            yield self.item(number, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place, self.loaded = state["epoch"], state["place"], True


class EpochInIter(EpochInGenerator):
    """A stream like `EpochInGenerator` that counts in `__iter__`, before the first item is requested."""

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        return self.rest()


class EpochAtEnd(Iterable):
    """A stream that counts an epoch and resets its position at the end of the epoch."""

    place = epoch = 0

    def __iter__(self) -> Iterator[Any]:
        for number in self.share()[self.place :]:
            self.place += 1
            yield self.item(number, self.epoch)
        self.place, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch, "size": [0] * 40}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.epoch = state["place"], state["epoch"]


class StateStays(Iterable):
    """A stream that applies the loaded state in every later call of `__iter__`, like Hugging Face's streams."""

    def __init__(self, length: int, draws: str = "") -> None:
        super().__init__(length, draws)
        self.starting: dict[str, Any] | None = None
        self.place: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self.place = {"index": 0}
        if self.starting is not None:
            self.place = dict(self.starting)
        for number in self.share()[self.place["index"] :]:
            self.place["index"] += 1
            yield self.item(number)

    def state_dict(self) -> dict[str, Any] | None:
        return None if self.place is None else dict(self.place)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self.starting = state


class ItsOwnIterator(Iterable):
    place = 0

    def __iter__(self) -> ItsOwnIterator:
        self.place = 0
        return self

    def __next__(self) -> Any:
        numbers = self.share()
        if self.place >= len(numbers):
            raise StopIteration
        self.place += 1
        return self.item(numbers[self.place - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class _Steps:
    def __init__(self, stream: Iterable) -> None:
        self.stream, self.place = stream, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        numbers = self.stream.share()
        if self.place == len(numbers):
            raise StopIteration
        self.place += 1
        return self.stream.item(numbers[self.place - 1], *self.more())

    def more(self) -> tuple[int, ...]:
        return ()


class PlainSteps(Iterable):
    def __iter__(self) -> Iterator[Any]:
        return _Steps(self)


class Walk(_Steps):
    def __init__(self, stream: Iterable, epoch: int = 7) -> None:
        super().__init__(stream)
        self.own = random.Random(epoch)

    def more(self) -> tuple[int, ...]:
        return (self.own.randrange(1000),)

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.own.getstate()
        return {"place": self.place, "own": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        version, words, gauss = state["own"]
        self.own.setstate((version, tuple(words), gauss))


class IteratorAlone(Iterable):
    def __iter__(self) -> Iterator[Any]:
        return Walk(self)


class IteratorAndEpochs(Iterable):
    """A stream that counts epochs, with an iterator that has a state."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return Walk(self, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # `__iter__`, which is called after this method, increases the number of the epoch again.
        self.epoch = state["epoch"] - 1


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
#: Streams that continue after raising at an item.
LASTING_STREAMS: list[Callable[[int, str], Any]] = [PlainSteps, ItsOwnIterator, IteratorAlone, IteratorAndEpochs]
BY_NAME: dict[str, Any] = {cls.__name__: cls for cls in [*MAPS, *STATELESS_STREAMS, *STREAMS, PlainSteps]}
