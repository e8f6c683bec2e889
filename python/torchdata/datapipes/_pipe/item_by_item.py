"""Base classes of pipes that yield one item for each item of their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import length_of
from torchdata.datapipes._pipe.graph.traversal import sources_of
from torchdata.datapipes.datapipe import IterDataPipe, T_co


class SameLength:
    """Defines `len` as the length of the source. `SameLength` must precede IterDataPipe or MapDataPipe in the list of
    base classes."""

    def __len__(self) -> int:
        return length_of(self, sources_of(self)[0])


class ItemByItem(SameLength, IterDataPipe[T_co]):
    one_to_one = True

    def _function(self) -> Callable[[Any], Any]:
        return self._result

    def _result(self, item: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        return map(self._function(), sources_of(self)[0])  # `guard_iterator` detects the function's StopIteration
