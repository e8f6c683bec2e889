"""Begins a new iteration if a pipe without a method `reset` has loaded a state from the end of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.iteration import initial_entry, load_entry
from torchdata.datapipes._pipe.state.record import passed


class AfterEnd(Iterator[Any]):
    """Yields the items of the iterator that `begin` returns. If this iterator is empty, restarts the sources of the
    pipe and calls `begin` a second time."""

    __slots__ = ("_begin", "_datapipe", "_iterator", "_sources")

    def __init__(self, datapipe: Any, begin: Callable[[], Iterator[Any]]) -> None:
        self._datapipe = datapipe
        self._begin: Callable[[], Iterator[Any]] | None = begin
        self._sources = [(pipe, initial_entry(pipe)) for pipe in Graph(datapipe) if pipe is not datapipe]
        self._iterator = begin()

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            if self._begin is None or passed(self._datapipe):
                raise
        for source, entry in self._sources:
            load_entry(source, entry)
        self._iterator, self._begin = self._begin(), None
        return next(self._iterator)
