"""Repeats a function call after an error that may be temporary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from torchdata._handlers import is_of_handler
from torchdata._reporting import warn_outside

R = TypeVar("R")

#: Seconds to wait before the first repetition of a call. The waiting time doubles with each repetition.
PAUSE = 0.5
#: Permanent errors, after which a call is not repeated.
_FINAL = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def retried(call: Callable[[], R], max_retries: int, what: str, count: Callable[[], object] | None = None) -> R:
    """Repeats a call that raises an OSError, unless the error is permanent.

    Args:
        what: the beginning of the warning, such as "opening 'a.txt'".
        count: a function that is called before each repetition of `call`.
    """
    pause = PAUSE
    for _ in range(max_retries):
        try:
            return call()
        except OSError as error:
            if isinstance(error, _FINAL) or is_of_handler(error):
                raise
            warn_outside(f"{what} failed, and is tried again in {pause:g} s: {type(error).__name__}: {error}")
        if count is not None:
            count()
        time.sleep(pause)
        pause *= 2
    return call()
