"""Fixtures that several loader tests use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchdata import _machine as machine
from torchdata._engine import snapshots


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that simulates a number of cores and an amount of free memory."""

    def of(cores: int, memory: int | None = 1 << 40) -> None:
        monkeypatch.setattr(machine, "cores", lambda: cores)
        monkeypatch.setattr(machine, "memory_left", lambda: memory)

    return of


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes processes take a snapshot after each item."""
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
