"""Decides which pipes of a graph run once for all shards of a process.

This module inspects only the graph, because its results must be the same for any number of workers.
"""

from __future__ import annotations

import random
from collections import deque
from copy import deepcopy
from itertools import islice
from types import NoneType
from typing import Any

from torchdata.dataloader2.graph.cutting import DispatchedSource
from torchdata.dataloader2.graph.settings import is_sharding
from torchdata.dataloader2.state.worker_positions import lasts
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, is_pipe
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes._pipe.state.iteration import COUNTERS, is_torchs
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter

#: The sources of these pipes cannot run once for all shards, because these pipes read their source several times, join
#: branches, or skip exceptions.
_UNSUITED = frozenset({"Cycler", "IterKeyZipper", "OnError", "Repeater", "Sampler", "_Split"})
#: Pipes that lock files; a shard releases these locks before another shard runs.
_LOCKING = frozenset({"EndOnDiskCacheHolder", "OnDiskCacheHolder"})

#: `_PLAIN`: types of objects that contain no user code. `_BOOKKEEPING`: names of attributes that this package adds to
#: every pipe.
_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, range, random.Random, deque})
_BOOKKEEPING = frozenset({"_iteration_token", "_iteration_record"})


def filters_with_common_part(graph: Graph) -> list[ShardingFilter[Any]]:
    """Returns each `sharding_filter` with a common part: pipes before the filter that run once for all shards.

    Every pipe after a returned filter reads its source only once in an epoch, and no other pipe reads the common part.
    The result is empty if a pipe keeps state beyond an epoch, or if threads of a pipe might draw from the generators of
    the common part. A filter that can skip the items of other shards without computing them is not returned.
    """
    if lasts(graph):
        return []
    filters = [pipe for pipe in graph if is_sharding(pipe)]
    before = graph.below(filters)
    for pipe in graph:
        if hooks_of(pipe)._may_have_threads() or (id(pipe) not in before and not _is_suited(pipe)):
            return []
    last = (pipe for pipe in filters if id(pipe) not in before)
    return [pipe for pipe in last if type(pipe) is ShardingFilter and _is_apart(graph, pipe)]


def _is_suited(pipe: Any) -> bool:
    kind = type(pipe)
    is_known = kind.__module__.startswith("torchdata.") and kind.__name__ not in _UNSUITED | _LOCKING
    return is_known and not isinstance(pipe, DispatchedSource)


def _is_apart(graph: Graph, datapipe: ShardingFilter[Any]) -> bool:
    """Returns whether one replica of the pipes before the filter can compute the items of all shards."""
    source = datapipe.source_datapipe
    if not datapipe._gives_each_item_to_one_worker() or not is_iter_pipe(source) or datapipe._skips_others():
        return False
    common = graph.at(source)
    if any(map(_needs_own_shard, common)):
        return False
    readers = (pipe for pipe in graph if pipe not in common and pipe is not datapipe)
    return not any(each in common for reader in readers for each in graph.sources(reader))


def _needs_own_shard(pipe: Any) -> bool:
    is_locking = type(pipe).__name__ in _LOCKING
    return is_locking or is_torchs(pipe) or is_sharding(pipe) or isinstance(pipe, DispatchedSource)


def may_draw(pipe: Any) -> bool:
    """Returns whether a pipe may run user code, which may draw from the global generators."""
    if not type(pipe).__module__.startswith("torchdata."):
        return True
    return not all(_is_plain(value) for name, value in vars(pipe).items() if name not in _BOOKKEEPING)


def attributes_of(pipe: Any) -> dict[str, Any]:
    """Returns copies of all attributes that may be counters of iterations, if `pipe` is a user's pipe."""
    if type(pipe).__module__.startswith("torchdata."):
        return {}
    return {name: deepcopy(value) for name, value in vars(pipe).items() if type(value) in COUNTERS}


def _is_plain(value: Any) -> bool:
    """Returns whether the value of a pipe's attribute contains no user code. At most 64 members of a container are
    checked."""
    if type(value) in (tuple, list, dict, set):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return all(map(_is_plain, islice(parts, 64)))
    if isinstance(value, type) or is_pipe(value):
        return getattr(value, "__module__", "").startswith("torchdata.")
    return type(value) in _PLAIN
