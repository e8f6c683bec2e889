"""Whole lives of random loaders (see `random_lives`): some of those that it runs by hand for minutes."""

from __future__ import annotations

import warnings

import pytest

import graph_lives
import random_lives
from torchdata._engine import snapshots

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives set the cadence for good, and loaders warn of what is as it is to be. Ctrl-C has tests of its own."""
    monkeypatch.setattr(random_lives.Life, "presses", False)
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    warnings.simplefilter("ignore")


@pytest.mark.parametrize("first", range(1, 11, 5))
def test_whatever_is_done_to_a_loader_in_its_life_it_gives_what_one_gives_that_is_only_read(first: int) -> None:
    done = sum(random_lives.check(random_lives.Life(seed)) for seed in range(first, first + 5))
    assert done > 20


def test_so_it_does_whatever_pipes_it_is_made_of() -> None:
    done = [graph_lives.check_if_comparable(graph_lives.GraphLife(seed)) for seed in range(1, 7)]
    assert sum(map(bool, done)) >= 3


@pytest.mark.parametrize(("seed", "method"), [(4, "spawn"), (1, "forkserver")])
def test_so_it_does_whatever_its_processes_start_with(seed: int, method: str) -> None:
    life = random_lives.Life(seed, (method,))
    assert life.kind == "workers"
    assert random_lives.check(life) > 0
