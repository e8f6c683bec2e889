"""Fixtures for the tests of pipes, which several files use."""

import socket
from collections.abc import Iterator

import pytest

from torchdata.datapipes.iter.archives import archive, tar


@pytest.fixture
def small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limit for decompression bombs to 1 MiB, so that small test files exceed the limit."""
    for module in (archive, tar):
        monkeypatch.setattr(module, "SMALLEST_BOMB", 1 << 20)
    monkeypatch.setattr(tar, "PIECE", 1 << 18)


@pytest.fixture
def silent() -> Iterator[str]:
    """Returns the address of a server that accepts connections, but never answers requests."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
