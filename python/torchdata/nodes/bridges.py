"""Converts between nodes and the pipes of `torchdata.datapipes`, with exact states. The functional form of `from_pipe`
is `pipe.to_node()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.dataloader2.random.seed_generator import check_seed
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.nodes._fields import StateFields
from torchdata.nodes._pipe_position import PipePosition
from torchdata.nodes.adapters import IterableWrapper
from torchdata.nodes.base_node import BaseNode, T, check_node

__all__ = ["from_pipe", "to_pipe"]


def from_pipe(pipe: IterDataPipe[T], seed: int | None = None) -> IterableWrapper[T]:
    """Returns a node that yields the items of a pipe. The state of the node is the exact state of the pipe's graph,
    including the buffers and generators of the pipes. As with all nodes, the state does not contain the global random
    generators.

    A saved state is copied. Copies of a large state, for example of a shuffle with many items, slow down a
    `ParallelMapper` or `Prefetcher` that reads this node. To reduce the number of copies, set `snapshot_frequency` of
    the node that reads this node above 1.

    Args:
        pipe: the last pipe of a graph.
        seed: the seed of the graph's random pipes in each epoch. With a seed, a resumed run has the same later epochs
            as an uninterrupted run. With `seed=None` (the default), each epoch draws new seeds from the global
            generator, so the epochs after the resumed epoch differ from an uninterrupted run.

    Raises:
        TypeError: `pipe` is not an iterable-style pipe, or `seed` is not an integer.
        ValueError: `seed` is out of range.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.nodes import Batcher, from_pipe
        >>> list(Batcher(from_pipe(IterableWrapper(range(4)).map(str)), 2))
        [['0', '1'], ['2', '3']]
    """
    if not isinstance(pipe, IterDataPipe):
        raise TypeError(
            f"from_pipe: pipe must be an IterDataPipe, but got {pipe!r} of type {type(pipe).__name__}; IterableWrapper "
            "makes a node of any iterable, and a pipe that is read by index has `.to_iter_datapipe()`"
        )
    node: IterableWrapper[T] = IterableWrapper(pipe)
    node._stateful = PipePosition(pipe, None if seed is None else check_seed(seed))
    return node


class NodePipe(IterDataPipe[T]):
    """The pipe that `to_pipe` creates, which reads a node.

    Args:
        source_node: the node to read.

    Example:
        >>> from torchdata.nodes import IterableWrapper, to_pipe
        >>> list(to_pipe(IterableWrapper(range(3))))
        [0, 1, 2]
    """

    NODE_KEY, UNREAD_KEY = "node", "unread"

    _restored: dict[str, Any] | None = None
    #: Whether an iteration has begun. `_began_for_state`: whether the iteration has begun only because the state of
    #: this pipe was requested.
    _begun = _began_for_state = False

    def __init__(self, source_node: BaseNode[T]) -> None:
        self.source_node = check_node("to_pipe", "source_node", source_node)

    def __iter__(self) -> Iterator[T]:
        restored, self._restored = self._restored, None
        began, self._began_for_state = self._began_for_state, False
        source: BaseNode[T] = self.source_node
        if restored is not None or not began:
            source.reset(restored)
        self._begun = True
        return source

    def reset(self) -> None:
        if self._restored is not None and not self._began_for_state:
            # If a loaded position was not used, the node is first reset to this position, because its next epoch may
            # depend on the position.
            self.source_node.reset(self._restored)
            self._restored = None

    def state_dict(self) -> dict[str, Any]:
        # A node that was never read is first reset to its beginning.
        if self._restored is None and not self._begun:
            self.source_node.reset(None)
            self._begun = self._began_for_state = True
        state = {self.NODE_KEY: self.source_node.state_dict() if self._restored is None else self._restored}
        return {**state, self.UNREAD_KEY: True} if self._began_for_state else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        fields = StateFields("to_pipe", state_dict, begins=False)
        self._restored = fields[self.NODE_KEY]
        self._began_for_state = fields.flag(self.UNREAD_KEY, False)

    def shutdown(self) -> None:
        self.source_node.shutdown()


def to_pipe(node: BaseNode[T]) -> IterDataPipe[T]:
    """Returns a pipe that yields the items of a node. A saved state of the pipe's graph also contains the states of
    `node` and its sources.

    Args:
        node: the last node of a graph.

    Raises:
        TypeError: `node` is not a node.

    Example:
        >>> from torchdata.nodes import IterableWrapper, to_pipe
        >>> list(to_pipe(IterableWrapper(range(4))).batch(2))
        [[0, 1], [2, 3]]
    """
    return NodePipe(node)
