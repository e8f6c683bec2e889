"""Checks that find likely mistakes in a pipe graph before it runs."""

from __future__ import annotations

from torchdata.dataloader2.graph import DataPipe, DataPipeGraph, traverse_dps
from torchdata.dataloader2.graph.settings import is_sharding, is_shuffler

__all__: list[str] = []


def _check_shuffle_before_sharding(datapipe: DataPipe) -> bool:
    """Whether items are shuffled on every path that leads into a sharding pipe.

    Sharding without a shuffle before it gives each worker the same share of the items in every epoch.
    """
    return _shuffled_before_sharding(traverse_dps(datapipe))


def _shuffled_before_sharding(graph: DataPipeGraph) -> bool:
    return all(
        _shuffled(sources) if is_sharding(pipe) else _shuffled_before_sharding(sources)
        for pipe, sources in graph.values()
    )


def _shuffled(graph: DataPipeGraph) -> bool:
    return bool(graph) and all(is_shuffler(pipe) or _shuffled(sources) for pipe, sources in graph.values())
