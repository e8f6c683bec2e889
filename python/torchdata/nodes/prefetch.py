"""Prefetcher: reads its source ahead in a thread."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._read_ahead import ReadSource, ThreadedNode
from torchdata.nodes.base_node import BaseNode, T

__all__ = ["Prefetcher"]


class Prefetcher(ThreadedNode[T]):
    """Reads its source ahead in a thread, so that waiting for the source overlaps with later work.

    If the source raises an error, this node yields the preceding items first, and then raises the error.

    Args:
        source: the node to read. The thread reads the source, so all direct and indirect sources of the node run in
            this thread.
        prefetch_factor: the maximum number of buffered items.
        snapshot_frequency: the number of items between saved states of the source; 1 by default. After loading a state,
            at most `snapshot_frequency` items are reread. Use a value of `snapshot_frequency` above 1 if the source's
            state is large. With `snapshot_frequency=0`, the source's state is saved only at the beginning of an epoch.

    Raises:
        TypeError: `source` is not a node, or `prefetch_factor` or `snapshot_frequency` is not an integer.
        ValueError: `prefetch_factor` is not positive, or `snapshot_frequency` is negative.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Prefetcher
        >>> list(Prefetcher(IterableWrapper(range(3)), prefetch_factor=2))
        [0, 1, 2]
    """

    def __init__(self, source: BaseNode[T], prefetch_factor: int, snapshot_frequency: int = 1) -> None:
        super().__init__(source, snapshot_frequency)
        self.prefetch_factor = check_int("Prefetcher", "prefetch_factor", prefetch_factor, least=1)

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        return ReadSource(self, [None], state, limit=self.prefetch_factor)
