"""Filter: drops items if a function returns a false value for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata.datapipes._pipe.checks import check_callable
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import Again, BaseNode, T, check_node

__all__ = ["Filter"]


class Filter(BaseNode[T]):
    """Yields each item if a function returns a true value for it.

    If Ctrl-C interrupts `filter_fn`, the item is kept for the next call.

    Args:
        source: the node to read.
        filter_fn: a function of an item.

    Raises:
        TypeError: `source` is not a node, or `filter_fn` is not a function.

    Example:
        >>> from torchdata.nodes import Filter, IterableWrapper
        >>> list(Filter(IterableWrapper(range(6)), lambda n: n % 2 == 0))
        [0, 2, 4]
    """

    SOURCE_KEY = "source"
    NUM_FILTERED_KEY = "_num_filtered"
    NUM_YIELDED_KEY = "_num_yielded"
    CUT_OFF_KEY = "cut_off"

    def __init__(self, source: BaseNode[T], filter_fn: Callable[[T], Any]) -> None:
        super().__init__()
        self.source = check_node("Filter", "source", source)
        check_callable("Filter", "filter_fn", filter_fn)
        self.filter_fn = filter_fn

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Filter", initial_state)
        self._num_filtered = fields.integer(self.NUM_FILTERED_KEY, least=0)
        self._num_yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
        self._advance = fields.reset(self.source, self.SOURCE_KEY)
        if self.CUT_OFF_KEY in fields:
            self._advance = Again(self, fields[self.CUT_OFF_KEY])
        super().reset(initial_state)

    def next(self) -> T:
        advance, wants = self._advance, self.filter_fn
        while True:
            item: T = advance()
            try:
                wanted = wants(item)
            except StopIteration as error:
                raise not_the_end("filter_fn of Filter", error) from error
            except Exception:
                raise
            except BaseException:
                self._advance = Again(self, item)
                raise
            if wanted:
                self._num_yielded += 1
                return item
            self._num_filtered += 1

    def get_state(self) -> dict[str, Any]:
        """Returns the position, which includes the numbers of items that the filter has dropped and yielded."""
        state = {
            self.SOURCE_KEY: self.source.state_dict(),
            self.NUM_FILTERED_KEY: self._num_filtered,
            self.NUM_YIELDED_KEY: self._num_yielded,
        }
        return {**state, self.CUT_OFF_KEY: self._advance.item} if isinstance(self._advance, Again) else state
