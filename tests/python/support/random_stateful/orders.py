"""Provides the samplers of random programs, from torch, torchdata or users."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from kept_state import KeptState
from resumed import Walk


class PythonShuffled(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        random.shuffle(order)
        return iter(order)


class OwnTorch(PythonShuffled):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.generator = seeded(12)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.length, generator=self.generator).tolist()


class OwnNumpy(PythonShuffled):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.rng = numpy.random.default_rng(13)

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.permutation(self.length).tolist()


class OwnPython(PythonShuffled):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.rng = random.Random(14)

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        self.rng.shuffle(order)
        yield from order


class Epochs(PythonShuffled):
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Positions(KeptState, Sampler[Any]):
    kept = ("done", "epoch")

    def __init__(self, length: int, batch: int | None = None) -> None:
        self.length, self.batch, self.done, self.epoch = length, batch, 0, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        while self.done < self.length:
            taken = order[self.done : self.done + (self.batch or 1)]
            self.done += len(taken)
            yield taken[0] if self.batch is None else taken
        self.done, self.epoch = 0, self.epoch + 1


class StartsAgain(Positions):
    """Each iteration begins at the loaded position, or at the start if no state was loaded."""

    loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.epoch, self.done = self.epoch + 1, 0
        self.loaded = False
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        for index in order[self.done :]:
            self.done += 1
            yield index

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True


class IteratorKnows(PythonShuffled):
    def __iter__(self) -> Iterator[int]:
        return Walk(range(self.length)[::-1])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributed(length: int, batch: int, shuffle: bool = True) -> dict[str, Any]:
    return {"sampler": DistributedSampler(range(length), 2, 1, shuffle=shuffle, seed=5)}  # type: ignore[arg-type]


def stateful_distributed(length: int, batch: int) -> dict[str, Any]:
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    return {"sampler": StatefulDistributedSampler(range(length), 2, 1, seed=5)}  # type: ignore[arg-type]


def torchdata_batches(length: int, batch: int) -> dict[str, Any]:
    from torchdata.stateful_dataloader import sampler

    inner = sampler.RandomSampler(range(length), generator=seeded(6))
    return {"batch_sampler": sampler.BatchSampler(inner, batch, False)}


SAMPLERS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "in order": lambda n, b: {},
    "shuffle": lambda n, b: {"shuffle": True},
    "shuffle, generator": lambda n, b: {"shuffle": True, "generator": seeded(3)},
    "RandomSampler": lambda n, b: {"sampler": RandomSampler(range(n))},
    "RandomSampler, generator": lambda n, b: {"sampler": RandomSampler(range(n), generator=seeded(4))},
    "RandomSampler, replacement": lambda n, b: {"sampler": RandomSampler(range(n), replacement=True)},
    "RandomSampler, replacement, generator": lambda n, b: {
        "sampler": RandomSampler(range(n), replacement=True, num_samples=2 * n + 1, generator=seeded(5))
    },
    "RandomSampler, twice": lambda n, b: {"sampler": RandomSampler(range(n), num_samples=2 * n + 1)},
    "WeightedRandomSampler": lambda n, b: {"sampler": WeightedRandomSampler([1.0 + i for i in range(n)], n)},
    "WeightedRandomSampler, generator": lambda n, b: {
        "sampler": WeightedRandomSampler([1.0 + i for i in range(n)], n, generator=seeded(8))
    },
    "SubsetRandomSampler": lambda n, b: {"sampler": SubsetRandomSampler(range(n // 2 + 1))},
    "SubsetRandomSampler, generator": lambda n, b: {
        "sampler": SubsetRandomSampler(range(n // 2 + 1), generator=seeded(9))
    },
    "DistributedSampler": distributed,
    "DistributedSampler, set_epoch": distributed,
    "StatefulDistributedSampler, set_epoch": stateful_distributed,
    "StatefulDistributedSampler": stateful_distributed,
    "BatchSampler": lambda n, b: {"batch_sampler": BatchSampler(RandomSampler(range(n)), b, False)},
    "BatchSampler, generator": lambda n, b: {
        "batch_sampler": BatchSampler(RandomSampler(range(n), generator=seeded(10)), b, True)
    },
    "BatchSampler of torchdata": torchdata_batches,
    "user's, Python's generator": lambda n, b: {"sampler": PythonShuffled(n)},
    "user's, own torch generator": lambda n, b: {"sampler": OwnTorch(n)},
    "user's, own NumPy generator": lambda n, b: {"sampler": OwnNumpy(n)},
    "user's, own Python generator": lambda n, b: {"sampler": OwnPython(n)},
    "user's, counts epochs": lambda n, b: {"sampler": Epochs(n)},
    "user's, stateful": lambda n, b: {"sampler": Positions(n)},
    "user's, stateful, starts anew": lambda n, b: {"sampler": StartsAgain(n)},
    "user's, stateful iterator": lambda n, b: {"sampler": IteratorKnows(n)},
    "user's batches, stateful": lambda n, b: {"batch_sampler": Positions(n, b)},
}

#: Samplers that use a global random generator unless the loader has its own generator.
FREE = {
    "shuffle",
    "RandomSampler",
    "RandomSampler, replacement",
    "RandomSampler, twice",
    "WeightedRandomSampler",
    "SubsetRandomSampler",
    "BatchSampler",
    "user's, Python's generator",
}

STATEFUL = {
    "StatefulDistributedSampler",
    "StatefulDistributedSampler, set_epoch",
    "BatchSampler of torchdata",
    "user's, stateful",
    "user's, stateful, starts anew",
    "user's, stateful iterator",
    "user's batches, stateful",
}

#: Samplers that continue at their position in the next epoch, instead of starting over, if an epoch was left early.
RESUMING = {"RandomSampler, replacement, generator", "user's, stateful", "user's batches, stateful"}
