"""Defines pipes and functions as users write them, with and without a state, and with and without random draws."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from kept_state import KeptState
from torchdata.datapipes.iter import IterDataPipe
from torchdata.datapipes.state import state


class Passing(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


class InMain(Passing):
    def __len__(self) -> int:
        return len(self.source)

    def is_replicable(self) -> bool:
        return False


class Unstated(IterDataPipe):
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[int]:
        total = 0
        for item in self.source_datapipe:
            total = (total + item) % 21
            yield total


class UnstatedPairs(Unstated):
    def __iter__(self) -> Iterator[int]:
        before = None
        for item in self.source_datapipe:
            if before is not None:
                yield before
            before = item
        if before is not None:
            yield before


class UnstatedTwice(Unstated):
    def __iter__(self) -> Iterator[int]:
        for _ in range(2):
            yield from self.source_datapipe


class UnstatedRandom(IterDataPipe):
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe
        self.seed = 0

    def set_seed(self, seed: int) -> UnstatedRandom:
        self.seed = seed
        return self

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed)
        for item in self.source_datapipe:
            yield (item + rng.randrange(21)) % 21


class UnstatedSource(IterDataPipe):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        yield from range(self.size)


class OneToOne(Unstated):
    one_to_one = True

    def __iter__(self) -> Iterator[int]:
        for item in self.source_datapipe:
            yield (3 * item) % 21


class NoState(Unstated):
    iteration_state = ()

    def __iter__(self) -> Iterator[int]:
        for item in self.source_datapipe:
            if item % 3:
                yield item


class Declared(IterDataPipe):
    _last: int = state(0)
    _epoch: int = state(0, lasts=True, copied=True)

    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def reset(self) -> None:
        super().reset()
        self._epoch += 1

    def __iter__(self) -> Iterator[int]:
        for item in self.source_datapipe:
            self._last = (self._last + item + self._epoch) % 21
            yield self._last


class ByHand(KeptState, IterDataPipe):
    kept = ("epoch", "last")

    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe
        self.epoch, self.last = 0, 0

    def reset(self) -> None:
        self.epoch += 1
        self.last = 0

    def __iter__(self) -> Iterator[int]:
        for item in self.source_datapipe:
            self.last = (self.last + item + self.epoch) % 21
            yield self.last


class SourceByHand(IterDataPipe):
    def __init__(self, size: int) -> None:
        self.size, self.position, self.begin = size, 0, 0

    def __iter__(self) -> Iterator[int]:
        begin, self.begin = self.begin, 0  # `iter()` applies the position, before the first item is requested
        return self.resumed_from(begin)

    def resumed_from(self, begin: int) -> Iterator[int]:
        for index in range(begin, self.size):
            self.position = index + 1
            yield index
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.position = self.begin = state_dict["position"]


def small(item: Any) -> int:
    return item % 21 if type(item) is int else crc32(repr(item).encode()) % 21


def first_value(row: dict[str, int]) -> int:
    return next(iter(row.values()))


def drawn(item: int) -> int:
    return (item + random.randrange(21)) % 21


def drawn_by_numpy(item: int) -> int:
    import numpy

    return int((item + numpy.random.randint(21)) % 21)


def drawn_by_torch(item: int) -> int:
    import torch

    return (item + int(torch.randint(21, ()))) % 21


def some(item: int) -> list[int]:
    return [item] * random.randrange(4)


def kept(item: int) -> bool:
    return random.random() < 0.7


def array(item: int) -> Any:
    import numpy

    return numpy.full(2000, item)


def number(item: Any) -> int:
    (only,) = set(item.tolist())
    return int(only)


def unpinned(item: Any, device: Any) -> Any:
    return item


def is_odd(item: int) -> bool:
    return item % 2 == 1


def remainder(item: int) -> int:
    return item % 3


def up_to(item: int) -> Iterator[int]:
    yield from range(item % 4)
