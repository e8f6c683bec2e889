"""Converts map pipes to iterable pipes (MapToIterConverter), and pipes to nodes of `torchdata.nodes` (`to_node`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from torchdata.datapipes._pipe.checks import with_type
from torchdata.datapipes._pipe.datasets import in_fixed_order
from torchdata.datapipes._pipe.seeking import iterate_by_index
from torchdata.datapipes._pipe.state.record import passed
from torchdata.datapipes._pipe.unloaded import ReadsByIndex
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe, T_co

__all__ = ["MapToIterConverter", "to_node"]


class MapToIterConverter(ReadsByIndex[T_co]):
    """Yields the items of a MapDataPipe, in the order of its indices or of given indices.

    Functional form of MapDataPipe: `to_iter_datapipe`.

    Args:
        datapipe: the MapDataPipe to read.
        indices: the indices to read, in order; by default all indices below the length.

    Raises:
        TypeError: `datapipe` is not a MapDataPipe, or it lacks a length and `indices` is not given.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> list(SequenceWrapper({"a": 1, "b": 2}).to_iter_datapipe(indices=["b", "a"]))
        [2, 1]
    """

    data_attributes = frozenset({"indices"})
    iteration_state = ()

    def __init__(self, datapipe: MapDataPipe[T_co], indices: Sequence[Any] | None = None) -> None:
        if not any(cls.__name__ == "MapDataPipe" for cls in type(datapipe).__mro__):
            raise TypeError(f"MapToIterConverter can only apply on MapDataPipe, but found {with_type(datapipe)}")
        self.datapipe = datapipe
        if indices is not None and not isinstance(indices, Sequence):
            # The indices are stored in a list, because an iterator could be read in only one epoch.
            indices = list(in_fixed_order(indices))
        self.indices: Sequence[Any] = indices if indices else range(len(datapipe))

    def _indices(self) -> Iterator[Any]:
        return iterate_by_index(self.indices, passed(self))

    def __len__(self) -> int:
        return len(self.indices)


def to_node(datapipe: IterDataPipe[T_co], seed: int | None = None) -> Any:
    """Converts the pipe to a node of `torchdata.nodes`, as `torchdata.nodes.from_pipe` does. This function needs
    PyTorch.

    Args:
        seed: the seed of the graph's random pipes in each epoch; None (the default) draws new seeds for each epoch.
    """
    return import_module("torchdata.nodes").from_pipe(datapipe, seed)  # imported by name, because nodes depend on pipes


MapDataPipe.register_datapipe_as_function("to_iter_datapipe", MapToIterConverter)
IterDataPipe.register_function("to_node", to_node)
