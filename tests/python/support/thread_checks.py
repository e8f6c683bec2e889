"""Checks that all threads that a test has started have ended."""

import gc
import threading
from collections.abc import Iterator

import pytest

from waiting import wait_for


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchdata-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_for(lambda: not threads())
