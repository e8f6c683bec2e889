"""Random seeds that must be equal in all processes are equal. Seeds that must differ between workers differ."""

import copy
import pickle
import random
import sys
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2
from torchdata.dataloader2.random import SeedGenerator, dist_share_seed
from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes.iter import IterableWrapper


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**64, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)]
)
def test_a_wrong_seed_is_refused_with_its_value(seed: Any, error: type[Exception]) -> None:
    for take in (SeedGenerator, SeedGenerator(0).seed, DataLoader2(IterableWrapper([])).seed):
        with pytest.raises(error, match="seed"):
            take(seed)


def test_equal_seeds_give_equal_generators() -> None:
    for seed in (0, 2**64 - 1):
        one, two = SeedGenerator(seed), SeedGenerator(1)
        two.seed(seed)
        assert [one.generate_seed() for _ in range(9)] == [two.generate_seed() for _ in range(9)]
        assert [one.generate_shared_seed() for _ in range(9)] == [two.generate_shared_seed() for _ in range(9)]


def test_workers_of_ranks_share_shared_seeds_and_have_different_own_ones() -> None:
    main = SeedGenerator(3)
    workers = [main.spawn(rank).spawn(worker) for rank in range(4) for worker in range(4)]
    assert len({worker.generate_shared_seed() for worker in workers}) == 1
    assert len({worker.generate_seed() for worker in workers}) == 16


def test_spawning_in_place_turns_the_generator_into_its_own_child() -> None:
    generator = SeedGenerator(3)
    child = generator.spawn(2)
    assert generator.spawn(2, inplace=True) is generator
    assert generator.generate_seed() == child.generate_seed()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_continue_where_the_original_is_and_do_not_share_it(copied: Any) -> None:
    generator = SeedGenerator(8)
    generator.generate_seed()
    twin = copied(generator)
    first = [generator.generate_seed() for _ in range(5)]
    assert [twin.generate_seed() for _ in range(5)] == first


def test_without_torch_seeds_come_from_pythons_generator(no_torch: None) -> None:
    random.seed(4)
    first = [draw_seed(), draw_seed()]
    random.seed(4)
    assert [draw_seed(), draw_seed()] == first
    assert first[0] != first[1]


def test_sharing_a_seed_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="needs PyTorch"):
        dist_share_seed(1)


def test_a_shared_seed_keeps_all_of_its_bits() -> None:
    torch, seeds = pytest.importorskip("torch"), [0, 2**63 - 1, 2**63, 2**64 - 1]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert [dist_share_seed(seed) for seed in seeds] == seeds
    finally:
        torch.distributed.destroy_process_group()


def test_an_imported_generator_continues_where_it_was_exported():
    generator = SeedGenerator(3).spawn(1)
    generator.generate_seed()
    again = SeedGenerator.imported(generator.exported())
    assert again == generator
    assert again.generate_seed() == generator.generate_seed()
    with pytest.raises(ValueError, match="not a state of a seed generator"):
        SeedGenerator.imported(b"nonsense")
