"""The arithmetic of a `sharding_filter` held against lists."""

from __future__ import annotations

import random

import pytest

from torchdata.datapipes._pipe.division import Division, Given, given_from


def left_of(units: int, given: Given) -> list[int]:
    return [unit for unit in range(units) if unit >= given.first and unit not in given.beyond]


@pytest.mark.parametrize("seed", range(40))
def test_shares_of_what_is_left_are_dealt_in_turn_from_any_place_on_and_again(seed: int) -> None:
    dice = random.Random(seed)
    block, items = dice.choice([1, 1, 2, 3]), dice.randrange(60)
    units = -(-items // block)
    given = Given()
    for _ in range(dice.randrange(1, 4)):
        shards = dice.randrange(1, 6)
        left = left_of(units, given)
        taken = dice.randrange(given.first * block + 1) if given.first else 0
        counts = []
        for shard in range(shards):
            division = Division(shards, shard, block, given)
            own = [item for unit in left[shard::shards] for item in range(unit * block, min(items, (unit + 1) * block))]
            assert list(division.share_of(iter(range(taken, items)), taken)) == own
            for passed_on, item in enumerate(own, 1):
                after = division.after(taken, passed_on)
                assert after == item + 1
                assert list(division.share_of(iter(range(after, items)), after)) == own[passed_on:]
            counts.append(dice.randrange(len(left[shard::shards]) + 1))
        gone = {unit for shard, count in enumerate(counts) for unit in left[shard::shards][:count]}
        given = given.and_shares([Given(count) for count in counts])
        assert left_of(units, given) == [unit for unit in left if unit not in gone]


def test_what_a_share_gave_out_of_order_is_not_dealt_again() -> None:
    given = Given().and_shares([Given(1, (2,)), Given(2)])
    assert left_of(8, given) == [2, 5, 6, 7]
    assert list(given.left_of(iter(range(8)), 0)) == [2, 5, 6, 7]


@pytest.mark.parametrize(("first", "beyond"), [(-1, []), (True, []), (2, [1]), (0, [3, 2]), (0, ["a"])])
def test_what_cannot_have_been_given_is_refused(first: object, beyond: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        given_from(first, beyond)
