"""Python's cyclic garbage collector in children: kept off what they import and what they keep to their end.

Role: importing torch makes a quarter of a million objects that stay; searching them for cycles takes a tenth of that
import, and each later search of all objects takes as long again. In a forked child such a search also writes to, and
so copies, every page that holds an object of main's.
"""

from __future__ import annotations

import gc
import operator
from multiprocessing.context import get_spawning_popen
from typing import Any

__all__ = ["EARLY_THRESHOLD", "ChildName", "settle"]

#: New objects that make a child search for cycles while it starts: three times what importing torch makes.
EARLY_THRESHOLD = 1_000_000


class ChildName(str):
    """The name of a child's process, which raises the child's collection threshold where it is unpickled.

    multiprocessing sends the name ahead of everything else: it is unpickled before the child imports the main module,
    and with it whatever the user's program imports. What does it is all of the standard library, as the child may not
    be able to import this package yet. Anywhere else it is pickled as the string that it is.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:  # on its way elsewhere, in a log record perhaps
            return str, (str(self),)
        return operator.getitem, ((_ThresholdRaised(), str(self)), 1)


class _ThresholdRaised:
    def __reduce__(self) -> Any:
        return gc.set_threshold, (EARLY_THRESHOLD,)


def settle(thresholds: tuple[int, int, int]) -> None:
    """Ends a child's start-up: gives it main's thresholds, and takes all that lives now out of later searches.

    Thresholds that the user's program has set in the child meanwhile stay.
    """
    if gc.get_threshold()[0] == EARLY_THRESHOLD:
        gc.set_threshold(*thresholds)
    gc.freeze()
