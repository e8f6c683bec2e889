"""A list of items from which items at random positions are removed quickly.

Role: Shuffler uses the list for the items that remain in its buffer when the source has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

__all__ = ["BLOCK_SIZE", "Blocks"]

#: The number of items in a block. `list.pop` moves at most this number of items.
BLOCK_SIZE = 16_384


class Blocks:
    """The items of a list, in blocks.

    `pop` returns what `list.pop` returns, but moves only the later items of one block. Removing a million items from
    one list in random order takes minutes.
    """

    def __init__(self, items: list[Any]) -> None:
        self._blocks = [items[begin : begin + BLOCK_SIZE] for begin in range(0, len(items), BLOCK_SIZE)]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._blocks)

    def pop(self, index: int) -> Any:
        """Removes and returns the item at `index`, which must be at least 0 and below the length."""
        for number, block in enumerate(self._blocks):
            if index < len(block):
                item = block.pop(index)
                if not block:
                    del self._blocks[number]
                return item
            index -= len(block)
        raise IndexError("pop index out of range")
