"""Contains `MultiNode`, the base class of nodes that read several sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, T, advance_of, check_node
from torchdata.nodes.samplers.stop_criteria import StopCriteria

_CRITERIA = [value for name, value in vars(StopCriteria).items() if name.isupper()]


class NoItem(Exception):
    """Raised if the chosen source has ended, so that the node chooses another source."""


class MultiNode(BaseNode[T]):
    """A node that reads several sources. Subclasses choose a source for each item.

    Args:
        stop_criteria: when the epoch ends; a value of `StopCriteria`. The default is
            `CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED`.
        tag_output: whether each item contains the name of the source that has yielded it.
    """

    DATASET_NODE_STATES_KEY = "dataset_node_states"
    DATASETS_EXHAUSTED_KEY = "datasets_exhausted"
    DATASETS_BARREN_KEY = "datasets_barren"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advances"})

    _is_over = False

    def __init__(
        self,
        source_nodes: Mapping[str, BaseNode[T]],
        stop_criteria: str = StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED,
        tag_output: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(source_nodes, Mapping) or not source_nodes:
            raise ValueError(f"{name}: source_nodes must be a dict of nodes by name, but got {source_nodes!r}")
        for key, node in source_nodes.items():
            check_node(name, f"source_nodes[{key!r}]", node)
        if stop_criteria not in _CRITERIA:
            raise ValueError(f"{name}: stop_criteria must be one of {', '.join(_CRITERIA)}, but got {stop_criteria!r}")
        self.source_nodes = source_nodes
        self.dataset_names = list(source_nodes)
        self.stop_criteria = stop_criteria
        self.tag_output = tag_output

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        states: Mapping[str, Any] = {}
        #: The names of sources that have started over and ended without an item.
        self._barren: set[str] = set()
        self._datasets_exhausted = dict.fromkeys(self.dataset_names, False)
        if initial_state is not None:
            fields = StateFields(type(self).__name__, initial_state)
            exhausted = fields.by_name(self.DATASETS_EXHAUSTED_KEY, self.dataset_names)
            if not all(isinstance(ended, bool) for ended in exhausted.values()):
                raise fields.wrong(self.DATASETS_EXHAUSTED_KEY, "must hold True or False by name")
            self._datasets_exhausted.update((name, exhausted[name]) for name in self.dataset_names)
            barren = fields.list_of(self.DATASETS_BARREN_KEY)
            if not all(name in self.dataset_names for name in barren):
                raise fields.wrong(self.DATASETS_BARREN_KEY, f"must hold some of {self.dataset_names}")
            self._barren.update(barren)
            states = fields.by_name(self.DATASET_NODE_STATES_KEY, self.dataset_names)
        for name in self.dataset_names:
            self.source_nodes[name].reset(states.get(name))
        self._advances: dict[str, Callable[[], T]] = {
            name: advance_of(node) for name, node in self.source_nodes.items()
        }
        self._look_whether_over()
        super().reset(initial_state)

    def _look_whether_over(self) -> None:
        ended, total = sum(self._datasets_exhausted.values()), len(self.dataset_names)
        if self.stop_criteria == StopCriteria.CYCLE_FOREVER:
            self._is_over = len(self._barren) == total
        elif self.stop_criteria == StopCriteria.FIRST_DATASET_EXHAUSTED:
            self._is_over = ended > 0
        else:
            self._is_over = ended == total

    def _check_for_stop_iteration(self) -> None:
        """Raises StopIteration if the epoch is over. Subclasses with their own `next` may call this method."""
        self._look_whether_over()
        if self._is_over:
            raise StopIteration

    def _item_of(self, name: str) -> Any:
        """Returns the next item of a source. With the `CYCLE_...` criteria, a source that has ended starts over.

        Raises:
            NoItem: the source is exhausted.
        """
        if self._datasets_exhausted[name] and self.stop_criteria == StopCriteria.ALL_DATASETS_EXHAUSTED:
            self._check_for_stop_iteration()  # Ctrl-C may have interrupted this call before
            raise NoItem
        for starts_over in (False, True):
            if starts_over:
                self.source_nodes[name].reset(None)
                self._advances[name] = advance_of(self.source_nodes[name])
            try:
                item: Any = self._advances[name]()
                # Python raises KeyboardInterrupt only at calls and in loops, so it cannot interrupt the following
                # lines.
                if not self.tag_output:
                    return item
                if dict not in item.__class__.__mro__:
                    return {"data": item, "dataset_key": name}
                if "dataset_key" not in item:
                    return {**item, "dataset_key": name}
                raise ValueError(
                    f"{type(self).__name__}: an item of {name!r} has a key 'dataset_key' already, which tag_output "
                    "adds; rename it, or leave tag_output out"
                )
            except StopIteration:
                self._datasets_exhausted[name] = True
                if starts_over:
                    self._barren.add(name)
            self._check_for_stop_iteration()
            if self.stop_criteria == StopCriteria.ALL_DATASETS_EXHAUSTED:
                break
        raise NoItem

    def get_state(self) -> dict[str, Any]:
        state = {
            self.DATASETS_EXHAUSTED_KEY: dict(self._datasets_exhausted),
            self.DATASET_NODE_STATES_KEY: {name: self.source_nodes[name].state_dict() for name in self.dataset_names},
        }
        return {**state, self.DATASETS_BARREN_KEY: sorted(self._barren)} if self._barren else state

    def __len__(self) -> int:
        """Returns the number of items per epoch. Raises TypeError if the length of a source is unknown, or if the
        number of items cannot be computed for this `stop_criteria`."""
        lengths = [len(self.source_nodes[name]) for name in self.dataset_names]  # type: ignore[arg-type]
        if self.stop_criteria == StopCriteria.ALL_DATASETS_EXHAUSTED:
            return sum(lengths)
        return self._length_of_turns(lengths)

    def _length_of_turns(self, lengths: list[int]) -> int:
        raise TypeError(f"{type(self).__name__} has no length with {self.stop_criteria}")
