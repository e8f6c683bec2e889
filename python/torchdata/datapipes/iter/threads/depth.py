"""Determines how many items a pipe buffers if its buffer size is "auto".

Role: the code runs in the thread that reads ahead. If the queue was full at first and empty later, the time per item
varies, and a larger queue avoids waiting.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata._native import ReadAheadQueue

__all__ = ["LEAST_DEPTH", "Depth", "bytes_of"]

#: The initial and the maximum number of buffered items.
LEAST_DEPTH, MOST_DEPTH = 2, 256
#: The buffered items may take the available memory divided by this number.
MEMORY_PART = 16
#: Maximum size of the items in bytes, if the available memory is unknown.
OTHERWISE = 256 << 20


class Depth:
    """Enlarges a queue if a larger queue avoids waiting."""

    def __init__(self) -> None:
        #: The size of the largest item so far.
        self._item = 0

    def look(self, queue: ReadAheadQueue, item: Any) -> None:
        """Enlarges the queue if necessary. Call this method with each item before the item enters the queue."""
        if not queue.has_lacked():
            return
        from torchdata import _machine as machine

        self._item = max(self._item, bytes_of(item), 1)
        left = machine.memory_left()
        allowed = (OTHERWISE if left is None else left // MEMORY_PART) // self._item
        capacity = queue.capacity
        queue.capacity = max(LEAST_DEPTH, min(2 * capacity, MOST_DEPTH, allowed))


def bytes_of(item: Any, depth: int = 4) -> int:
    """Estimates the memory of an item: its arrays, tensors, strings and bytes, also in nested containers."""
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)) and depth:
        return sum(bytes_of(each, depth - 1) for each in item)
    return sys.getsizeof(item, 64)
