"""Compares a resumed `StatefulDataLoader` with an uninterrupted run."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from kept_state import KeptState

#: Each pair contains an epoch and the number of batches after which a state is saved (None at the end of the epoch).
MOMENTS = [(0, 0), (0, 1), (1, 0), (1, 2), (1, 4), (1, None), (2, 1)]
WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def with_workers(cases: Sequence[Any]) -> list[tuple[Any, dict[str, Any]]]:
    return [*((case, {}) for case in cases), *zip(cases, itertools.cycle(WORKERS[1:]), strict=False)]


def seed_all(seed: int = 42) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs_of(loader: Any, count: int = 4) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


def advanced(loader: Any, batches: int) -> Any:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


def saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def loaded(loader: Any, state: Any, **options: Any) -> Any:
    loader.load_state_dict(state, **options)
    return loader


def saved_at(loader: Any, epoch: int, batches: int | None) -> Any:
    for _ in range(epoch + (batches is None)):
        list(loader)
    if batches is not None and (epoch, batches) != (0, 0):
        advanced(loader, batches)
    return saved(loader)


def check_resumes(make: Any, moments: Any = MOMENTS, draws_before: bool = True, count: int = 4) -> None:
    seed_all()
    whole = epochs_of(make(), count)
    for moment in moments:
        seed_all()
        state = saved_at(make(), *moment)
        seed_all()
        later = loaded(make(), state)
        if draws_before:
            torch.rand(11)
        epoch, batches = moment
        wanted = whole[epoch + 1 :] if batches is None else [whole[epoch][batches:], *whole[epoch + 1 :]]
        assert epochs_of(later, len(wanted)) == wanted, moment


class HasPosition:
    """A stream with a position. An iteration begins at the loaded position, or at 0 if no state was loaded."""

    position = start = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["position"]


class TakesOnce(HasPosition, IterableDataset[int]):
    length, pause = 9, 0.0

    def share(self) -> list[int]:
        info = get_worker_info()
        return [*range(self.length)] if info is None else [*range(info.id, self.length - 3 * info.id, info.num_workers)]

    def __iter__(self) -> Iterator[Any]:
        self.position, self.start = self.start, 0
        for number in self.share()[self.position :]:
            time.sleep(self.pause)
            self.position += 1
            yield number


class Walk(KeptState):
    kept = ("done",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers, self.done = numbers, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.done >= len(self.numbers):
            raise StopIteration
        self.done += 1
        return self.numbers[self.done - 1]


class Shuffled(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        order = [*range(16)]
        random.shuffle(order)
        return iter(order)


class Positions(HasPosition, Sampler[int]):
    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        self.position, self.start = self.start, 0
        for index in range(self.position, self.length):
            self.position += 1
            yield index
