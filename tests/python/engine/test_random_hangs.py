"""Processes that hang at random items (see `random_hangs`): some of those that it runs by hand for minutes."""

from __future__ import annotations

import warnings

import pytest

import random_hangs

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("first", range(1, 7, 3))
def test_however_processes_hang_nothing_is_lost_and_nothing_comes_twice(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hung = sum(random_hangs.check(random_hangs.Plan(seed, ("fork",))) for seed in range(first, first + 3))
    assert hung > 0
