"""Finds the sharding filters that sample their items, so that the main process can compare the workers' orders."""

from __future__ import annotations

from typing import Any

from torchdata._reporting import name_of
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter.mapping.converting import MapToIterConverter
from torchdata.datapipes.iter.mapping.skipping import OnError
from torchdata.datapipes.iter.mapping.wrapping import IterableWrapper
from torchdata.datapipes.iter.ordering.combinatorics import Shuffler
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.map.callable import Mapper as MapMapper
from torchdata.datapipes.map.combinatorics import IndexSampler
from torchdata.datapipes.map.combinatorics import Shuffler as MapShuffler
from torchdata.datapipes.map.wrapping import SequenceWrapper
from torchdata.datapipes.state import is_one_to_one

#: Types of plain data that have the same order of elements in all processes.
_ORDERED = (bytes, dict, list, range, str, tuple)

#: Pipes that yield items in an order that depends only on the source's order and on the seed that all workers share.
_KEEP_ORDER = (MapMapper, MapShuffler, ShardingFilter, Shuffler)


def watched_filters(graph: Graph, *, is_seeded: bool) -> list[tuple[Any, str]]:
    """Returns each filter that may receive its items in a different order in each worker, and the names of its sources.

    `is_seeded`: whether every `shuffle` before a filter certainly has the same seed in all workers, because no user
    function changes the graph.
    """
    # `isinstance` would also return True for torch's `sharding_filter`, which is a virtual subclass of
    # `ShardingFilter`. Torch's filter does not record samples for comparing workers.
    filters = [pipe for pipe in graph if ShardingFilter in type(pipe).__mro__]
    # With `on_error`, exceptions of user functions may skip different items in each worker.
    is_known = is_seeded and not any(isinstance(pipe, OnError) for pipe in graph)
    return [
        (pipe, _sources_of(graph, pipe))
        for pipe in filters
        if pipe.source_splits_itself or not (is_known and all(map(_has_known_order, graph.at(pipe))))
    ]


def _has_known_order(pipe: Any) -> bool:
    """Returns whether the items have the same order in all workers, unless user functions drop or reorder items."""
    if type(pipe) is IterableWrapper:
        return _is_plain(pipe.iterable)
    if type(pipe) is SequenceWrapper:
        return _is_plain(pipe.sequence)
    if type(pipe) is MapToIterConverter:
        return _is_plain(pipe.indices)
    return type(pipe) in _KEEP_ORDER or (type(pipe).__module__.startswith("torchdata.") and is_one_to_one(pipe))


def _is_plain(data: Any) -> bool:
    return _is_plain(data.sequence) if type(data) is SequenceWrapper else type(data) in _ORDERED


def _sources_of(graph: Graph, pipe: Any) -> str:
    names = []
    for source in graph.at(pipe):
        if type(source) is IndexSampler:
            names.append(f"the {name_of(source)} over {type(source.sampler).__name__}")
        elif not graph.sources(source):
            iterable = vars(source).get("iterable")
            within = "" if iterable is None else f" over {getattr(iterable, '__name__', type(iterable).__name__)}"
            names.append(f"the {name_of(source)}{within}")
    return " and ".join(names)
