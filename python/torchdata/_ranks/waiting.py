"""Waits for other ranks without hanging: polls with a deadline, and describes the missing ranks.

Role: used by the groups, in the calling thread. Keeps no state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

#: Seconds between two checks. The first intervals are short, because synchronized ranks answer within a fraction of a
#: millisecond.
_FIRST_NAP, _LONGEST_NAP = 20e-6, 2e-3

#: A wait of more than this many seconds is long.
LONG = 0.3


class GivenUp(Exception):
    """This rank no longer waits for the answer."""


def wait_until(
    done: Callable[[], bool], timeout: float, when_long: Callable[[], None], given_up: Callable[[], bool]
) -> bool:
    """Returns whether `done` becomes true within `timeout` seconds. `when_long` is called once if it takes long.

    Raises:
        GivenUp: `given_up` returned True.
    """
    begin = time.monotonic()
    nap, told = _FIRST_NAP, False
    while not done():
        waited = time.monotonic() - begin
        if not told and waited > min(LONG, timeout):
            when_long()
            told = True
        if waited > timeout:
            return False
        if given_up():
            raise GivenUp("the group of ranks was closed")
        time.sleep(nap)
        nap = min(nap * 1.5, _LONGEST_NAP)
    return True


def describe_ranks(ranks: Iterable[int]) -> str:
    """Formats `rank 3`, or `ranks 1, 2`."""
    numbers = list(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


class UncopyableGroup:
    """The base class of this package's groups. Groups cannot be copied, because other ranks would not know a copy."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a group of ranks in use can be neither pickled nor copied, nor can the pipe or the reading service that "
            "talks through it: copy them before they are iterated, and give each DataLoader2 a service of its own"
        )
