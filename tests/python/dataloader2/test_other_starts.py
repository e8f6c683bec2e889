"""A few random loaders whose processes do not fork, with a snapshot after each item: resumed, moved and replaced."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import random_elastic
import random_restart
import random_resume
from torchdata._engine import snapshots

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans set the cadence for good, and loaders warn of what is as it is to be."""
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    warnings.simplefilter("ignore")


@pytest.mark.parametrize(
    ("driver", "seed", "method"),
    [
        (random_elastic, 277, "spawn"),
        (random_elastic, 9, "forkserver"),
        (random_resume, 10, "forkserver"),
        (random_restart, 29, "forkserver"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_random_loaders_go_on_whatever_their_processes_start_with(driver: Any, seed: int, method: str) -> None:
    plan = driver.Plan(seed, methods=(method,))
    assert plan.method == method
    plan.cadence = 0.0, 0.0
    assert driver.check(plan) > 0
