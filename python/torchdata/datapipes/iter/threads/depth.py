"""How many items a pipe that reads ahead holds ready if that is left to it.

Role: runs in the thread that reads ahead. The queue reports that the source had to stop because the queue was full, and
that later the consumer waited for an item. Items then take different times, and a larger queue would compensate this.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata._native import ReadAheadQueue

__all__ = ["LEAST_DEPTH", "Depth", "bytes_of"]

#: Items that are held ready at first, and at most.
LEAST_DEPTH, MOST_DEPTH = 2, 256
#: The part of the memory that is left which the items may take.
MEMORY_PART = 16
#: Bytes that they may take if it is not known how much is left.
OTHERWISE = 256 << 20


class Depth:
    """Makes a queue longer if that spares waiting."""

    def __init__(self) -> None:
        #: The size of the largest item that was looked at.
        self._item = 0

    def look(self, queue: ReadAheadQueue, item: Any) -> None:
        """To be called with each item, before it is handed over."""
        if not queue.has_lacked():
            return
        from torchdata import _machine as machine

        self._item = max(self._item, bytes_of(item), 1)
        left = machine.memory_left()
        allowed = (OTHERWISE if left is None else left // MEMORY_PART) // self._item
        capacity = queue.capacity
        queue.capacity = max(LEAST_DEPTH, min(2 * capacity, MOST_DEPTH, allowed))


def bytes_of(item: Any, depth: int = 4) -> int:
    """About how much memory an item takes: its arrays, tensors, strings and bytes, in containers up to a depth."""
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)) and depth:
        return sum(bytes_of(each, depth - 1) for each in item)
    return sys.getsizeof(item, 64)
