"""Random loaders, saved and restored at random places, against themselves and against torch's loader; from a seed.

A case is a dataset, a sampler, options of the loader and a history: some epochs, some batches, the state, the rest, one
more epoch. The run that is restored must give what the run that went on gave. Where the dataset and the sampler are not
stateful, both must give what torch's own loader gives.

    random_stateful.py [SECONDS [SEED]]
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler, StatefulDistributedSampler
from upstream_states import Counted

# -- datasets ----------------------------------------------------------------------------------------------


class Indexed(Dataset[Any]):
    """Samples by index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class AtOnce(Indexed):
    """Samples by lists of indices."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [1000 + index for index in indices]


class Counting(Counted, Indexed):
    """Its samples tell how many were read before: a state of each worker's own."""


class Noisy(Indexed):
    """Its samples depend on a worker's generators."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, random.random(), float(torch.rand(())), numpy.random.random()])


def share(length: int) -> range:
    """The part of a worker: uneven, so that workers end at different times."""
    info = get_worker_info()
    if info is None:
        return range(length)
    return range(info.id * 100, info.id * 100 + length // (info.id + 1))


class Streamed(IterableDataset[Any]):
    """A stream without a state, whose values come of the worker's generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.length):
            yield torch.tensor([float(number), random.random() if get_worker_info() else 0.0])


class StreamedFrom(IterableDataset[Any]):
    """A stream that is a generator, over a dataset that knows its place and counts its epochs."""

    def __init__(self, length: int) -> None:
        self.length, self.done, self.epoch = length, 0, 0

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.length)[self.done :]:
            self.done += 1
            yield torch.tensor([number, self.epoch])
        self.done, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "epoch": self.epoch, "size": [0] * 40}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.epoch = state["done"], state["epoch"]


class Walk:
    """An iterator that knows its place."""

    def __init__(self, length: int) -> None:
        self.numbers, self.done, self.random = share(length), 0, random.Random(7)

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.done == len(self.numbers):
            raise StopIteration
        self.done += 1
        return torch.tensor([float(self.numbers[self.done - 1]), self.random.random()])

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "random": list(self.random.getstate()[1])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.random.setstate((3, tuple(state["random"]), None))


class Walked(IterableDataset[Any]):
    """A stream whose iterator alone knows its place."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return Walk(self.length)


class Own(IterableDataset[Any]):
    """A stream that is its own iterator."""

    def __init__(self, length: int) -> None:
        self.length, self.done = length, 0

    def __iter__(self) -> Own:
        self.done = 0
        return self

    def __next__(self) -> Any:
        numbers = share(self.length)
        if self.done >= len(numbers):
            raise StopIteration
        self.done += 1
        return numbers[self.done - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


MAP = [Indexed, AtOnce, Counting, Noisy]
ITERABLE = [Streamed, StreamedFrom, Walked, Own]
STATEFUL = (Counting, StreamedFrom, Walked, Own)

# -- samplers ----------------------------------------------------------------------------------------------


class PythonShuffled(Sampler[int]):
    """Shuffled by Python's global generator, as many programs do."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        random.shuffle(order)
        return iter(order)


class Places(Sampler[Any]):
    """A sampler that saves its place by itself, and begins anew when it has ended."""

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

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.epoch = state["done"], state["epoch"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


#: By name: (options of the loader, whether torch's own loader gives the same order).
SAMPLERS: dict[str, Any] = {
    "none": lambda n, b: {},
    "shuffle": lambda n, b: {"shuffle": True},
    "shuffle, generator": lambda n, b: {"shuffle": True, "generator": seeded(3)},
    "torch's random": lambda n, b: {"sampler": torch.utils.data.RandomSampler(range(n))},
    "torch's random, generator": lambda n, b: {
        "sampler": torch.utils.data.RandomSampler(range(n), generator=seeded(4))
    },
    "replacement": lambda n, b: {
        "sampler": RandomSampler(range(n), replacement=True, num_samples=2 * n + 1, generator=seeded(5))
    },
    "twice": lambda n, b: {"sampler": RandomSampler(range(n), num_samples=2 * n + 1)},
    "weighted": lambda n, b: {"sampler": torch.utils.data.WeightedRandomSampler([1.0 + i for i in range(n)], n)},
    "subset": lambda n, b: {"sampler": torch.utils.data.SubsetRandomSampler(range(n // 2 + 1))},
    "Python's": lambda n, b: {"sampler": PythonShuffled(n)},
    "places": lambda n, b: {"sampler": Places(n)},
    "distributed": lambda n, b: {"sampler": StatefulDistributedSampler(range(n), 2, 1)},
    "batches": lambda n, b: {
        "batch_sampler": torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(n)), b, False)
    },
    "own batches": lambda n, b: {"batch_sampler": BatchSampler(RandomSampler(range(n), generator=seeded(6)), b, False)},
    "placed batches": lambda n, b: {"batch_sampler": Places(n, b)},
}

# -- cases -------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """What is tried."""

    dataset: Any
    length: int
    sampler: str
    batch_size: int | None
    workers: int
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 0
    batches: int = 0
    #: Before which of the later batches the state is taken, and thrown away, too.
    peeks: tuple[int, ...] = ()
    #: Workers of the loader that goes on.
    later_workers: int = 0

    def loader(self, cls: Any = StatefulDataLoader, workers: int | None = None) -> Any:
        options = dict(self.options)
        count = self.workers if workers is None else workers
        if count == 0:
            for name in ("persistent_workers", "prefetch_factor", "in_order", "multiprocessing_context"):
                options.pop(name, None)
        chosen = SAMPLERS[self.sampler](self.length, self.batch_size or 1)
        if "batch_sampler" not in chosen:
            options["batch_size"] = self.batch_size
        else:
            options.pop("drop_last", None)
        return cls(self.dataset(self.length), num_workers=count, **chosen, **options)


def case_of(seed: int) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    dataset = draw.choice(MAP + ITERABLE)
    indexed = dataset in MAP
    workers = draw.choice([0, 0, 1, 2, 3])
    batch_size = draw.choice([None, 1, 2, 3, 5])
    case = Case(
        dataset=dataset,
        length=draw.randrange(1, 30),
        sampler=draw.choice(list(SAMPLERS)) if indexed else "none",
        batch_size=batch_size,
        workers=workers,
        epochs=draw.choice([0, 0, 1, 2]),
        batches=draw.choice([0, 1, 2, 3, 5, 8, 1000]),
        peeks=tuple(draw.sample(range(10), draw.choice([0, 0, 2, 5]))),
        later_workers=workers,
    )
    if batch_size is not None and draw.random() < 0.3:
        case.options["drop_last"] = True
    if workers:
        case.options["prefetch_factor"] = draw.choice([1, 2, 3])
        case.options["persistent_workers"] = draw.random() < 0.5
        case.options["multiprocessing_context"] = "fork"
        if draw.random() < 0.15 and dataset not in (Counting, Noisy):
            case.options["in_order"] = False
    if dataset in (Indexed, AtOnce) and draw.random() < 0.4:
        case.later_workers = draw.choice([0, 1, 2, 3])
    return case


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def saved_and_read(state: Any) -> Any:
    """The state, as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def generators() -> Any:
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_generators(state: Any) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy.random.set_state(state[2])


def run(case: Case, loader: Any, peeks: bool, save: bool) -> tuple[Any, ...]:
    """(before, state, generators, rest, next epoch) of a run without a stop."""
    seed_all(1)
    before = [[plain(batch) for batch in loader] for _ in range(case.epochs)]
    state = random_state = None
    head: list[Any] = []
    if case.batches == 0 and case.epochs == 0 and save:
        state, random_state = saved_and_read(loader.state_dict()), generators()
    iterator = iter(loader)
    for number in range(case.batches):
        if peeks and number in case.peeks:
            loader.state_dict()
        batch = next(iterator, None)
        if batch is None:
            break
        head.append(plain(batch))
    if save and state is None:
        state, random_state = saved_and_read(loader.state_dict()), generators()
    rest = [plain(batch) for batch in iterator]
    following = [plain(batch) for batch in loader]
    return before, head, state, random_state, rest, following


def check(case: Case) -> None:
    """Runs a case.

    Raises:
        AssertionError: what came differs from what must come.
    """
    loader = case.loader()
    ordered = loader.in_order or case.workers == 0
    before, head, state, random_state, rest, following = run(case, loader, True, True)
    plainly = run(case, case.loader(), False, False)
    over = len(head) < case.batches
    if ordered:
        assert plainly[:2] == (before, head), "looking at the state changed the order"
        assert plainly[4:] == (rest, following), "looking at the state changed what came later"
    if ordered and case.sampler not in ("places", "placed batches") and case.dataset not in STATEFUL:
        theirs = run(case, case.loader(DataLoader), False, False)
        assert theirs == plainly, f"torch's loader: {theirs}"
    del loader, plainly
    loader = case.loader(workers=case.later_workers)
    loader.load_state_dict(state)
    again = saved_and_read(loader.state_dict())
    assert again.keys() == state.keys()
    set_generators(random_state)
    if case.dataset is Noisy and case.workers:  # what a worker drew by index is not part of the state
        rest, following = indices_of(rest), indices_of(following)
    restored = [plain(batch) for batch in loader]
    if case.dataset is Noisy and case.workers:
        restored = indices_of(restored)
    if not over:
        if ordered:
            assert restored == rest, f"{restored} instead of {rest}"
        else:
            assert sorted(map(str, restored)) == sorted(map(str, rest))
        restored = [plain(batch) for batch in loader]
        if case.dataset is Noisy and case.workers:
            restored = indices_of(restored)
    # Workers that live on are seeded once; a loader without them draws a seed for each epoch, and so another order.
    seeded_alike = case.later_workers > 0 or not case.options.get("persistent_workers")
    if ordered and seeded_alike:
        assert restored == following, f"next epoch: {restored} instead of {following}"


def indices_of(batches: Any) -> list[int]:
    """The indices in batches of `Noisy`."""
    return [int(row[0]) for batch in batches for row in (batch if isinstance(batch[0], list) else [batch])]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        case = case_of(seed + count)
        try:
            check(case)
        except BaseException:
            print(f"seed {seed + count}: {case}", flush=True)
            raise
        count += 1
    print(f"{count} cases from seed {seed}")


if __name__ == "__main__":
    main()
