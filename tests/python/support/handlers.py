"""Sets signal handlers for the duration of a test."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def handling(handler: Any, *numbers: signal.Signals | int) -> Iterator[Any]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, former in before.items():
            signal.signal(number, former)
