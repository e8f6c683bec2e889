"""The pipe after the adapter `Headroom`: repeats items from memory.

Role: the end of the graph in the main process, so that its items cost nothing. Owns the kept items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import check_int, check_source
from torchdata.datapipes.datapipe import IterDataPipe

#: Items of an epoch by kept item, if the source does not know its length.
ROUNDS = 100


class ServedAgain(IterDataPipe[Any]):
    """Reads some items, and then yields these same objects repeatedly.

    Args:
        source_datapipe: the pipe to read.
        items: the number of items that are read, once.
        length: the number of items of an epoch; None for the length of the source, or 100 for each kept item if that
            length is not known.
    """

    item_attributes = frozenset({"_kept"})

    def __init__(self, source_datapipe: Any, items: int, length: int | None = None) -> None:
        check_source("Headroom", source_datapipe, "source_datapipe")
        self.source_datapipe = source_datapipe
        self.items = check_int("Headroom", "items", items, least=1)
        self.length = None if length is None else check_int("Headroom", "length", length, least=0)
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        if len(self._kept) < self.items:
            self._kept = []
            for item in self.source_datapipe:
                self._kept.append(item)
                if len(self._kept) == self.items:
                    break
        kept, left = self._kept, len(self)
        while kept and left > 0:
            yield from kept[:left]
            left -= len(kept)

    def __len__(self) -> int:
        if self.length is not None:
            return self.length
        try:
            return len(self.source_datapipe)
        except TypeError:
            return ROUNDS * self.items

    def is_replicable(self) -> bool:
        """Returns False, because items are kept in the main process."""
        return False

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_kept": []}
