"""MultiNodeRoundRobinSampler: takes items from several nodes in turn."""

from __future__ import annotations

from typing import Any

from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import T
from torchdata.nodes.samplers._sources import MultiNode, NoItem
from torchdata.nodes.samplers.stop_criteria import StopCriteria

__all__ = ["MultiNodeRoundRobinSampler"]


class MultiNodeRoundRobinSampler(MultiNode[T]):
    """Yields one item of each source in turn.

    Args:
        source_nodes: the nodes to read, by name.
        stop_criteria: when the epoch ends; a value of `StopCriteria`. The default is
            `CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED`.
        tag_output: whether items contain the name of their source: a dict gets the key `"dataset_key"`, and any other
            item becomes a dict with this key and `"data"`; False by default.

    Raises:
        TypeError: a source is not a node.
        ValueError: `source_nodes` is empty, or `stop_criteria` is unknown. Reading raises ValueError if an item already
            has a key named `"dataset_key"`.

    Example:
        >>> from torchdata.nodes import IterableWrapper, MultiNodeRoundRobinSampler, StopCriteria
        >>> sources = {"a": IterableWrapper("aaa"), "b": IterableWrapper("b")}
        >>> list(MultiNodeRoundRobinSampler(sources, StopCriteria.ALL_DATASETS_EXHAUSTED))
        ['a', 'b', 'a', 'a']
    """

    CURRENT_DATASET_INDEX_KEY = "current_dataset_index"

    _current = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("MultiNodeRoundRobinSampler", initial_state)
        self._current = fields.integer(self.CURRENT_DATASET_INDEX_KEY, least=0, most=len(self.dataset_names) - 1)
        super().reset(initial_state)

    def next(self) -> T:
        names = self.dataset_names
        while not self._is_over:
            # `following` is computed before an item is read, because Ctrl-C may be raised at the call of `len`, and
            # would lose the item.
            following = (self._current + 1) % len(names)
            try:
                item: T = self._item_of(names[self._current])
            except NoItem:
                self._current = following
                continue
            self._current = following
            return item
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), self.CURRENT_DATASET_INDEX_KEY: self._current}

    def _length_of_turns(self, lengths: list[int]) -> int:
        if self.stop_criteria == StopCriteria.CYCLE_FOREVER and any(lengths):
            return super()._length_of_turns(lengths)
        # A source with n items ends in round n + 1. In the last round, only the sources that precede the ending source
        # in the dict yield an item. A source without items never yields an item.
        ends = [(length, index) for index, length in enumerate(lengths)]
        rounds, last = min(ends) if self.stop_criteria == StopCriteria.FIRST_DATASET_EXHAUSTED else max(ends)
        return sum(rounds + (index < last) for index, length in enumerate(lengths) if length)
