"""A fixture and a function for tests of threads."""

import gc
import threading
from collections.abc import Iterator

import pytest

from waiting import wait_for


def threads() -> list[str]:
    """Returns the names of the package's threads in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchdata-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Checks that the package's threads end with each test of a file that imports this fixture."""
    yield
    gc.collect()
    wait_for(lambda: not threads())
