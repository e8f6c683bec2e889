"""A sharding filter divides the items of a pipeline among processes."""

from __future__ import annotations

from itertools import chain, product
from typing import Any

import pytest

from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper


@pytest.mark.parametrize(("shards", "block"), [(1, None), (2, None), (3, 2), (4, 5), (5, 1)])
def test_the_lengths_of_shards_are_the_numbers_of_their_items(shards: int, block: int | None) -> None:
    for shard in range(shards):
        pipe = IterableWrapper(range(23)).sharding_filter().set_sharding_block(block)
        pipe.apply_sharding(shards, shard)
        assert len(pipe) == len(list(pipe))
        assert list(pipe.set_sharding_enabled(False)) == list(range(23))
        assert len(pipe) == 23


def test_sharding_cannot_mix_the_default_group_with_others() -> None:
    for first, second in ((1, 2), (3, 1)):
        pipe = IterableWrapper(range(3)).sharding_filter()
        pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(first))
        with pytest.raises(RuntimeError, match="cannot mix DEFAULT"):
            pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(second))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2, 2), ValueError),
        ((0, 0), ValueError),
        ((2, -1), ValueError),
        (("2", 0), TypeError),
        ((2, 0, "ranks"), TypeError),
    ],
)
def test_impossible_shards_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        IterableWrapper(range(3)).sharding_filter().apply_sharding(*arguments)


@pytest.mark.parametrize("is_chain", [True, False])
def test_a_level_of_sharding_can_have_a_number_of_the_user_s_own(is_chain: bool) -> None:
    levels = {SHARDING_PRIORITIES.DISTRIBUTED: 2, SHARDING_PRIORITIES.MULTIPROCESSING: 3, 40: 2}
    shares = []
    for numbers in product(*map(range, levels.values())):
        filters = [IterableWrapper(range(30)).sharding_filter(None if not is_chain else 40)]
        if is_chain:
            filters.append(filters[0].sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING))
            filters.append(filters[1].sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED))
        for (level, shards), number in zip(levels.items(), numbers, strict=True):
            for pipe in filters:
                pipe.apply_sharding(shards, number, level)
        shares.append(list(filters[-1]))
        assert len(filters[-1]) == len(shares[-1])
    assert sorted(chain.from_iterable(shares)) == list(range(30))
    assert shares[-1] == [11, 23]


def test_torch_s_sharding_priorities_are_accepted() -> None:
    torch_sharding = pytest.importorskip("torch.utils.data.datapipes.iter.sharding")
    priorities = torch_sharding.SHARDING_PRIORITIES
    pipe = IterableWrapper(range(10)).sharding_filter(priorities.MULTIPROCESSING)
    pipe.apply_sharding(2, 1, priorities.MULTIPROCESSING)
    pipe.apply_sharding(5, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    assert list(pipe) == [1, 3, 5, 7, 9]
    assert not IterableWrapper([]).sharding_round_robin_dispatch(priorities.MULTIPROCESSING).is_replicable()
