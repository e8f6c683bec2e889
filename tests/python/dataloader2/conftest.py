"""The common fixture of loaders' tests: a machine of another size than this one, for choices by that size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchdata import _machine as machine


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many cores there are, and how much memory is left."""

    def of(cores: int, memory: int | None = 1 << 40) -> None:
        monkeypatch.setattr(machine, "cores", lambda: cores)
        monkeypatch.setattr(machine, "memory_left", lambda: memory)

    return of
