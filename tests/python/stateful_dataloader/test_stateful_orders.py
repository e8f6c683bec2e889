"""A resumed epoch and the epochs after it have the same order as in an uninterrupted run, with every sampler."""

import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DistributedSampler

from families import Mapped
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.orders import SAMPLERS
from resumed import WORKERS, Positions, advanced, check_resumes, epochs_of, loaded, plain, saved, seed_all
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

#: Samplers that restore the order of each epoch from their state, without a call of `set_epoch`.
NAMES = [name for name in SAMPLERS if not name.endswith(("set_epoch", "counts epochs"))]
#: With workers, only one sampler of each kind is tested, because samplers run in the main process in any case.
WITH_WORKERS = ["shuffle", "shuffle, generator", "BatchSampler", "user's, own NumPy generator", "user's, stateful"]


@pytest.mark.parametrize(
    ("options", "name", "size"),
    [*(({}, name, 4) for name in NAMES), ({}, "shuffle", None), *((WORKERS[1], name, 4) for name in WITH_WORKERS)],
    ids=str,
)
def test_later_epochs_have_the_order_of_the_run_that_was_not_stopped(
    options: dict[str, Any], name: str, size: int | None
) -> None:
    def make() -> Any:
        arguments = SAMPLERS[name](32, 4)
        batches = {} if "batch_sampler" in arguments else {"batch_size": size}
        return StatefulDataLoader(range(40), **arguments, **batches, **options)

    if options:  # Tests with workers use fewer positions, because each epoch starts new workers.
        check_resumes(make, [(0, 0), (0, None), (1, 1)] if name == "shuffle" else [(1, 1)], count=3)
    else:
        check_resumes(make)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_may_seed_each_epoch(workers: int) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(8), batch_size=4, shuffle=True, num_workers=workers)

    def run(loader: Any, epochs: Any) -> list[Any]:
        found = []
        for epoch in epochs:
            torch.manual_seed(epoch)
            found += epochs_of(loader, 1)
        return found

    whole = run(make(), range(1, 5))
    loader = make()
    run(loader, [1])
    later = make()
    torch.manual_seed(99)
    assert run(loaded(later, loader.state_dict()), [2, 3]) == whole[1:3]
    torch.manual_seed(2)
    advanced(loader, 1)
    assert run(loaded(later, loader.state_dict()), [2, 3, 4]) == [whole[1][1:], *whole[2:]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("own", "draws_between"), [(False, 0), (True, 0), (True, 9)])
def test_orders_resume_if_a_trainer_sets_the_generators_after_the_load(
    own: bool, draws_between: int, workers: int
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(5) if own else None
        return StatefulDataLoader(range(8), batch_size=4, shuffle=True, num_workers=workers, generator=generator)

    def run(loader: Any) -> Iterator[list[int]]:
        for _ in range(2):
            for batch in loader:
                torch.rand(100)
                yield batch.tolist()

    seed_all()
    loader = make()
    batches = run(loader)
    next(batches)
    state = saved(loader)
    torch.rand(draws_between)
    generator, rest = torch.get_rng_state(), list(batches)
    for seed in (42, 43):
        seed_all(seed)
        later = loaded(make(), state)
        torch.set_rng_state(generator)
        assert list(run(later)) == rest


@pytest.mark.parametrize("sets", ["never", "each epoch", "before the load"])
@pytest.mark.parametrize("sampler", [DistributedSampler, StatefulDistributedSampler])
def test_a_distributed_sampler_resumes_its_epoch(sampler: Any, sets: str) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=4, sampler=sampler(range(24), 2, 1))

    def run(loader: Any, epochs: Any) -> list[Any]:
        found = []
        for epoch in epochs:
            if sets == "each epoch":
                loader.sampler.set_epoch(epoch)
            found += epochs_of(loader, 1)
        return found

    first = make()
    first.sampler.set_epoch(3)
    iterator = advanced(first, 1)
    state = saved(first)
    rest = [[plain(batch) for batch in iterator], *run(first, [4, 5])]
    later = make()
    if sets == "before the load":
        later.sampler.set_epoch(3)
    assert run(loaded(later, state), [3, 4, 5]) == rest


def holder(loader: Any) -> Any:
    return next(one for one in (loader.batch_sampler, loader.sampler) if hasattr(one, "set_epoch"))


class ByEpoch:
    """Yields batches of `size` indices (or single indices if `size` is None), in an order that depends on the epoch."""

    def __init__(self, size: int | None = None) -> None:
        self.epoch, self.size = 0, size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = random.Random(self.epoch).sample(range(24), 24)
        yield from [order[n : n + self.size] for n in range(0, 24, self.size)] if self.size else order

    def __len__(self) -> int:
        return 24 // (self.size or 1)


BY_EPOCH: dict[str, Any] = {
    "DistributedSampler": lambda: {"sampler": DistributedSampler(range(24), 2, 1), "batch_size": 4},
    "one by one": lambda: {"sampler": DistributedSampler(range(24), 2, 1), "batch_size": None},
    "StatefulDistributedSampler": lambda: {"sampler": StatefulDistributedSampler(range(24), 2, 1), "batch_size": 4},
    "user's": lambda: {"sampler": ByEpoch(), "batch_size": 4},
    "user's batches": lambda: {"batch_sampler": ByEpoch(4)},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BY_EPOCH)
def test_a_state_has_the_epoch_of_its_order_even_if_the_program_has_set_the_next_epoch(kind: str, workers: int) -> None:
    def make(epoch: int) -> Any:
        loader = StatefulDataLoader(range(24), num_workers=workers, **BY_EPOCH[kind]())
        holder(loader).set_epoch(epoch)
        return loader

    whole = {epoch: epochs_of(make(epoch), 1)[0] for epoch in (3, 4)}
    loader = make(3)
    assert epochs_of(loaded(make(0), saved(loader)), 1) == [whole[3]]  # before the first epoch
    iterator = advanced(loader, 1)
    holder(loader).set_epoch(4)
    state = saved(loader)
    assert [plain(batch) for batch in iterator] == whole[3][1:]
    assert epochs_of(loaded(make(0), state), 1) == [whole[3][1:]]  # inside the epoch
    assert epochs_of(loaded(make(0), saved(loader)), 1) == [whole[4]]  # after the epoch
    loader = make(3)
    list(loader)
    assert epochs_of(loaded(make(4), saved(loader)), 1) == [whole[4]]  # the program has set the epoch before loading


def test_another_epoch_after_loading_a_state_from_inside_an_epoch_is_warned_about() -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=4, sampler=DistributedSampler(range(24), 2, 1))

    loader = make()
    advanced(loader, 1)
    later = loaded(make(), saved(loader))
    later.sampler.set_epoch(1)
    with pytest.warns(RuntimeWarning, match=r"inside epoch 0 of the sampler, but set_epoch\(1\)"):
        list(later)


@pytest.mark.parametrize("seed", [1, 2**40 + 5])
def test_states_of_generators_are_plain_data_and_can_be_restored(seed: int) -> None:
    from torchdata.stateful_dataloader import _generators as generators

    for drawn in (0, 1, 623, 624, 625, 1248, 40_000):
        generator = torch.Generator().manual_seed(seed)
        if drawn:
            torch.empty(drawn, dtype=torch.int32).random_(generator=generator)
        position = json.loads(json.dumps(generators.encoded(generators.read(generator))))
        again = torch.Generator()
        generators.write(again, generators.decoded(again, position))
        assert torch.rand(700, generator=again).tolist() == torch.rand(700, generator=generator).tolist()
    torch.randn(3, generator=generator)  # `randn` stores a second normal number for its next call
    generators.write(again, generators.decoded(again, generators.encoded(generators.read(generator))))
    assert torch.randn(5, generator=again).tolist() == torch.randn(5, generator=generator).tolist()
    for one in (random.Random(seed), numpy.random.RandomState(7), numpy.random.default_rng(seed)):
        one.gauss(0, 1) if isinstance(one, random.Random) else one.normal()
        position = generators.decoded(one, json.loads(json.dumps(generators.encoded(generators.read(one)))))
        draw = one.random if isinstance(one, random.Random) else one.normal
        wanted = [draw() for _ in range(1300)]
        generators.write(one, position)
        assert [draw() for _ in range(1300)] == wanted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [Positions, lambda: StatefulDistributedSampler(range(24), 2, 0, shuffle=False)])
def test_an_abandoned_epoch_of_a_stateful_sampler_is_not_repeated_even_shortly_after_a_load(
    workers: int, sampler: Any
) -> None:
    def make() -> Any:
        return StatefulDataLoader(range(24), batch_size=3, sampler=sampler(), num_workers=workers)

    [whole] = epochs_of(make(), 1)
    loader = make()
    advanced(loader, 2)
    iterator = iter(loader)
    assert epochs_of(loaded(make(), saved(loader)), 2) == [whole, whole]
    assert [plain(batch) for batch in iterator] == whole
    for taken, read in [(1, 0), (len(whole), 1)] if workers else itertools.product([0, 1, len(whole)], [0, 1]):
        loader = make()
        advanced(loader, taken)
        later = loaded(make(), saved(loader))
        assert [plain(batch) for batch in itertools.islice(later, read)] == whole[taken : taken + read]
        assert epochs_of(later, 2) == [whole, whole], (taken, read)


@pytest.mark.parametrize("later", [0, 2])
def test_out_of_order_no_sample_is_lost_or_repeated(later: int) -> None:
    def slow(index: int) -> int:
        time.sleep(0.03 if index % 2 else 0.0)
        return index

    dataset = Mapped(slow, 20)
    for sampler in (None, Positions()):
        loader = StatefulDataLoader(dataset, batch_size=None, sampler=sampler, num_workers=2, in_order=False)
        head = list(itertools.islice(loader, 7))
        again = StatefulDataLoader(
            dataset, batch_size=None, sampler=sampler and Positions(), num_workers=later, in_order=later == 0
        )
        loaded(again, saved(loader))
        assert sorted(head + list(again)) == [*range(12 if sampler else 20)]
