"""A list with a fast `pop` at random positions, for the buffer of `Shuffler` after its source has ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

#: The number of items in a chunk, which is the maximum number of items that `pop` moves.
CHUNK_SIZE = 16_384


class ChunkedList:
    """A list that consists of chunks. `pop` moves only items of one chunk, whereas `list.pop` may move all later
    items."""

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
