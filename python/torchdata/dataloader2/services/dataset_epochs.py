"""Sends the epoch numbers of datasets and samplers that have `set_epoch` to their copies in the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchdata.dataloader2.graph import DataPipe
from torchdata.datapipes._pipe.datasets import epoch_of
from torchdata.datapipes._pipe.graph.graph import Graph

_ResetFn = Callable[[DataPipe], DataPipe]


class DatasetEpochs:
    def __init__(self, graph: Graph | None) -> None:
        self._holders = [] if graph is None else [*_holders(graph)]
        self._last = self._now()
        self._has_changed = False

    def _now(self) -> list[int | None]:
        return [epoch_of(holder) for holder in self._holders]

    def and_then(self, reset_fn: _ResetFn | None) -> _ResetFn | None:
        """Returns a reset function for workers: it calls `set_epoch` of the datasets, and then `reset_fn`. Until the
        user has called `set_epoch`, returns `reset_fn` itself, because a dataset may count its own epochs.
        """
        before, self._last = self._last, self._now()
        self._has_changed = self._has_changed or self._last != before
        return partial(_set_epochs, self._last, reset_fn) if self._has_changed else reset_fn


def _set_epochs(epochs: list[int | None], reset_fn: _ResetFn | None, datapipe: DataPipe) -> DataPipe:
    holders = [*_holders(Graph(datapipe))]
    if len(holders) == len(epochs):  # the lengths differ if a user's function has changed the graph
        for holder, epoch in zip(holders, epochs, strict=True):
            if epoch is not None and epoch != epoch_of(holder):
                holder.set_epoch(epoch)
    return datapipe if reset_fn is None else reset_fn(datapipe)


def _holders(graph: Graph) -> Iterator[Any]:
    seen: set[int] = set()
    for pipe in graph:
        for value in vars(pipe).values():
            if epoch_of(value) is not None and id(value) not in seen:
                seen.add(id(value))
                yield value
