"""The counters of a `Loader` of nodes.

The statistics count the items that the loader yields, and the items that the processes of nodes compute. With
`stats="full"`, a wrapper around the iterator of each node counts and times the items of this node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torchdata._native import IterationToken, SharedIterator, StatsBoard
from torchdata._observe.stats.batches import BatchRecorder
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting, Pages
from torchdata._observe.stats.labels import Flag, location_of
from torchdata._observe.stats.model import NODES
from torchdata._reporting import is_users, with_function
from torchdata._users_code import INDEXED, ITERATED, code_location, codes_of_dataset
from torchdata.nodes._read_ahead import ThreadedNode
from torchdata.nodes.base_node import BaseNode, nodes_of, sources_of


class NodeRecorder(BatchRecorder):
    name = NODES

    #: The table of counters, with a row for each node, and the number of the loader's row.
    _bound: tuple[Counting, int] | None = None

    def begin_graph(self, iterator: SharedIterator, root: BaseNode[Any]) -> None:
        mappers: list[Any] = [node for node in nodes_of(root) if getattr(node, "processes", None) is not None]
        new_board = partial(StatsBoard, 1 + sum(node.num_workers for node in mappers), 1, PIPES, self.full)
        counting = self._counting_here(new_board)
        if counting is None:
            return
        first = 1
        for node in mappers:
            node._pages = Pages(counting, first, new_board)
            first += node.num_workers
        if self._bound is None or self._bound[0] is not counting:
            rows = list(_rows_of(root))[-PIPES + 1 :] if self.full else []
            rows.append((IterationToken(), NODES, "", None, 0, 0))
            counting.board.bind(MAIN_PAGE, rows, len(rows))
            for token, *_ in rows:
                token.begin()
            self._bound = counting, len(rows) - 1
        self._begin(iterator, self._bound[1])


def _rows_of(root: BaseNode[Any]) -> Iterator[tuple[IterationToken, str, str, int | None, int, int]]:
    nodes = [node for node in reversed(nodes_of(root)) if not _is_part(node)]
    readers = {id(source): number for number, node in enumerate(nodes) for source in _read_by(node)}
    for node in nodes:
        node._counted = IterationToken()
        is_ahead = isinstance(node, ThreadedNode) or bool(getattr(node, "num_workers", False))
        flags = Flag.THREAD if is_ahead else 0
        yield node._counted, *_named(node), readers.get(id(node), len(nodes)), flags, 0


def _is_part(node: BaseNode[Any]) -> bool:
    """Returns whether another node has created this node for its own use."""
    return type(node).__name__.startswith("_") and not is_users(type(node))


def _read_by(node: BaseNode[Any]) -> Iterator[BaseNode[Any]]:
    for source in sources_of(node):
        if _is_part(source):
            yield from _read_by(source)
        else:
            yield source


def _named(node: BaseNode[Any]) -> tuple[str, str]:
    """Returns the name of a node's dataset or function (or of the node if it has neither), and the location of the
    code."""
    function = getattr(node, "map_fn", None)
    dataset = getattr(function, "__self__", None) if getattr(function, "__name__", "") == "__getitem__" else None
    codes = codes_of_dataset(dataset, INDEXED) or codes_of_dataset(getattr(node, "iterable", None), ITERATED)
    if codes:
        return codes[0].name, codes[0].location
    own = type(node).next
    location = location_of(node) or (code_location(own.__code__) if is_users(own) else "")
    return with_function(node), location
