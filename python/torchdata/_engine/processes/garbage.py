"""Python's cyclic garbage collector in children: kept off what they import and what they keep to their end.

Role: importing torch makes a quarter of a million objects that stay; searching them for cycles takes a tenth of that
import, and each later search of all objects takes as long again. In a forked child such a search also writes to, and
so copies, every page that holds an object of main's.
"""

from __future__ import annotations

import gc

from torchdata._engine.processes.bootstrap import EARLY_THRESHOLD

__all__ = ["settle"]


def settle(thresholds: tuple[int, int, int]) -> None:
    """Ends a child's start-up: gives it main's thresholds, and takes all that lives now out of later searches.

    Thresholds that the user's program has set in the child meanwhile stay.
    """
    if gc.get_threshold()[0] == EARLY_THRESHOLD:
        gc.set_threshold(*thresholds)
    gc.freeze()
