"""A list from which items at random positions are removed quickly, for the buffer of `Shuffler` after its source has
ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

#: The number of items in a chunk. `pop` moves at most this many items.
CHUNK_SIZE = 16_384


class ChunkedList:
    """A list in which `pop` moves only items of one chunk. Removing a million items in random order by `list.pop` would
    take minutes."""

    def __init__(self, items: list[Any]) -> None:
        self._chunks = [items[begin : begin + CHUNK_SIZE] for begin in range(0, len(items), CHUNK_SIZE)]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._chunks)

    def pop(self, index: int) -> Any:
        for number, chunk in enumerate(self._chunks):
            if index < len(chunk):
                item = chunk.pop(index)
                if not chunk:
                    del self._chunks[number]
                return item
            index -= len(chunk)
        raise IndexError("pop index out of range")
