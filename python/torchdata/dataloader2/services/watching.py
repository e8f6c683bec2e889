"""Finds the sharding filters that sample their items, so that the main process can compare the workers' orders."""

from __future__ import annotations

from typing import Any

from torchdata._reporting import name_of
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter.mapping.skipping import OnError
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.state import is_one_to_one

#: Types of plain data that have the same order of elements in all processes.
_ORDERED = (bytes, dict, list, range, str, tuple)

#: Pipes are recognized by the names of their classes, because importing all classes would delay the start of a worker.
_ITER, _MAP = "torchdata.datapipes.iter.", "torchdata.datapipes.map."
#: For each pipe that yields plain data, the attribute that contains the data.
_DATA = {
    f"{_ITER}IterableWrapper": "iterable",
    f"{_MAP}SequenceWrapper": "sequence",
    f"{_ITER}MapToIterConverter": "indices",
}
#: Pipes that yield items in an order that depends only on the source's order and on the seed that all workers share.
_KEEP_ORDER = (f"{_MAP}Mapper", f"{_MAP}Shuffler", f"{_ITER}ShardingFilter", f"{_ITER}Shuffler")


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
    name = _class_name(pipe)
    if name in _DATA:
        return _is_plain(getattr(pipe, _DATA[name]))
    return name in _KEEP_ORDER or (name.startswith("torchdata.") and is_one_to_one(pipe))


def _is_plain(data: Any) -> bool:
    return type(data) in _ORDERED or (_class_name(data) == f"{_MAP}SequenceWrapper" and _is_plain(data.sequence))


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _sources_of(graph: Graph, pipe: Any) -> str:
    names = []
    for source in graph.at(pipe):
        if _class_name(source) == f"{_MAP}IndexSampler":
            names.append(f"the {name_of(source)} over {type(source.sampler).__name__}")
        elif not graph.sources(source):
            iterable = vars(source).get("iterable")
            within = "" if iterable is None else f" over {getattr(iterable, '__name__', type(iterable).__name__)}"
            names.append(f"the {name_of(source)}{within}")
    return " and ".join(names)
