"""Cycler: reads its source repeatedly."""

from __future__ import annotations

import sys
from typing import Any

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, T, advance_of, check_node

__all__ = ["Cycler"]


class Cycler(BaseNode[T]):
    """Reads its source repeatedly. The source is reset when it ends, so an epoch of this node consists of
    several epochs of the source. If an epoch of the source yields no items, this node's epoch ends.

    Args:
        source_node: the node to read.
        max_cycles: how many epochs of the source form one epoch of this node; None (the default) for no limit.

    Raises:
        TypeError: `source_node` is not a node, or `max_cycles` is not an integer.
        ValueError: `max_cycles` is not positive.

    Example:
        >>> from torchdata.nodes import Cycler, IterableWrapper
        >>> list(Cycler(IterableWrapper("ab"), max_cycles=2))
        ['a', 'b', 'a', 'b']
    """

    SOURCE_KEY = "source"
    NUM_CYCLES_KEY = "_num_cycles"
    ENDED_KEY = "_ended"

    _num_cycles = 0
    #: Whether this node's epoch has ended because an epoch of the source yielded no items.
    _ended = False
    _must_turn = False

    def __init__(self, source_node: BaseNode[T], max_cycles: int | None = None) -> None:
        super().__init__()
        self.source_node = check_node("Cycler", "source_node", source_node)
        self.max_cycles = None if max_cycles is None else check_int("Cycler", "max_cycles", max_cycles, least=1)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Cycler", initial_state)
        most = sys.maxsize if self.max_cycles is None else self.max_cycles - 1
        self._num_cycles = fields.integer(self.NUM_CYCLES_KEY, least=0, most=most)
        self._ended = fields.flag(self.ENDED_KEY, False)
        self._must_turn, self._advance = False, fields.reset(self.source_node, self.SOURCE_KEY)
        super().reset(initial_state)

    def next(self) -> T:
        if self._ended:
            raise StopIteration
        if not self._must_turn:
            try:
                item: T = self._advance()
                return item
            except StopIteration:
                if self._num_cycles + 1 == self.max_cycles:
                    raise
                self._must_turn = True
        self._turn()
        try:
            again: T = self._advance()
        except StopIteration:
            self._ended = True
            raise
        return again

    def _turn(self) -> None:
        self.source_node.reset(None)
        self._advance = advance_of(self.source_node)
        # Python raises KeyboardInterrupt only at calls and in loops, so it cannot interrupt the following lines.
        self._num_cycles, self._must_turn = self._num_cycles + 1, False

    def get_state(self) -> dict[str, Any]:
        if self._must_turn:
            self._turn()
        state = {self.SOURCE_KEY: self.source_node.state_dict(), self.NUM_CYCLES_KEY: self._num_cycles}
        return {**state, self.ENDED_KEY: True} if self._ended else state

    def __len__(self) -> int:
        """Returns the number of items per epoch.

        Raises:
            TypeError: the length of the source is unknown, or `max_cycles` is None.
        """
        if self.max_cycles is None:
            raise TypeError("Cycler has no length: without max_cycles it reads its source for ever")
        return self.max_cycles * len(self.source_node)
