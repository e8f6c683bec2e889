"""Pytest fixtures that several test files for loaders use."""

from collections.abc import Callable

import pytest

from torchdata import _machine as machine
from torchdata._engine import snapshots


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that simulates a machine with the given number of cores."""
    return lambda cores: monkeypatch.setattr(machine, "cores", lambda: cores)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes processes take a snapshot after each item."""
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
