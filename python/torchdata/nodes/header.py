"""Header: ends an epoch early."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, T, check_node

__all__ = ["Header"]


class Header(BaseNode[T]):
    """Yields the first `n` items of each epoch, and does not read further items.

    Args:
        source_node: the node to read.
        n: the maximum number of items to yield.

    Raises:
        TypeError: `source_node` is not a node, or `n` is not an integer.
        ValueError: `n` is negative.

    Example:
        >>> from torchdata.nodes import Header, IterableWrapper
        >>> list(Header(IterableWrapper(range(100)), 3))
        [0, 1, 2]
    """

    SOURCE_KEY = "source"
    NUM_YIELDED_KEY = "_num_yielded"

    _num_yielded = 0

    def __init__(self, source_node: BaseNode[T], n: int) -> None:
        super().__init__()
        self.source_node = check_node("Header", "source_node", source_node)
        self.n = check_int("Header", "n", n, least=0)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Header", initial_state)
        self._num_yielded = fields.integer(self.NUM_YIELDED_KEY, least=0, most=self.n)
        self._advance = fields.reset(self.source_node, self.SOURCE_KEY)
        super().reset(initial_state)

    def next(self) -> T:
        if self._num_yielded >= self.n:
            raise StopIteration
        item: T = self._advance()
        self._num_yielded += 1
        return item

    def get_state(self) -> dict[str, Any]:
        return {self.SOURCE_KEY: self.source_node.state_dict(), self.NUM_YIELDED_KEY: self._num_yielded}

    def __len__(self) -> int:
        """Returns the number of items per epoch.

        Raises:
            TypeError: the length of the source is unknown.
        """
        return min(self.n, len(self.source_node))
