"""A shared fixture of the loader tests, which simulates another number of cores and amount of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchdata import _machine as machine


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the number of cores and the remaining memory."""

    def of(cores: int, memory: int | None = 1 << 40) -> None:
        monkeypatch.setattr(machine, "cores", lambda: cores)
        monkeypatch.setattr(machine, "memory_left", lambda: memory)

    return of
