"""Passing over items of a graph without making them, if its pipes can seek.

Role: works on the state of a graph between two items. Items are passed over as low as possible: by setting the place of
a source that keeps it as a number, or else by reading the lowest pipe behind which each item follows from one, so that
the functions behind that are not called. Runs in the process that holds the graph: in main for `DataLoader2.skip`, in
workers that go on behind what other workers gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe
from torchdata.datapipes._pipe.skipping import skipper_of
from torchdata.datapipes._pipe.state.hooks import PipeHooks, hooks_of, reads_per_item
from torchdata.datapipes._pipe.state.plain import from_plain
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.iter.threads.pinning import PinMemory
from torchdata.datapipes.iter.threads.prefetching import Prefetcher
from torchdata.datapipes.iter.threads.synchronizing import FullSync
from torchdata.datapipes.state import (
    STATE_VERSION,
    entry_at,
    is_restorable,
    keeps_nothing,
    load_state,
    save_state,
    standing_still,
)

__all__ = ["HOLDING", "advance"]

#: Pipes that hold items of their source, which they hand on in order.
HOLDING = (Prefetcher, PinMemory, FullSync)


def advance(end: Any, count: int, *, reading: bool = True) -> int | None:
    """Passes over the next items of a graph, which is to be iterated anew afterwards, and goes on behind them.

    Args:
        end: the end of the graph.
        count: how many items.
        reading: whether a pipe may be read for that, if there is none below that can seek.

    Returns:
        How many there were; None if nothing can be saved. The graph is as it was then.
    """
    graph = Graph(end)
    pipes = graph.pipes
    if skipper_of(graph) is not None:
        return None  # as many items of the source are not as many of the end
    above, lowest = _handing_on(graph)
    below_it = graph.at(lowest)
    if len(above) + len(below_it) != len(pipes):
        return None  # others read from it, too
    if any(type(pipe) is FullSync and _reads_ahead(above[:place]) for place, pipe in enumerate(above)):
        return None  # while one rank looks at these pipes, another one's beginning anew would end them
    seeks = _seeks(lowest)
    if not seeks and not (reading and (above or _passes_over(lowest))):
        return None
    with standing_still(pipes):
        saved = save_state(graph, described=False)
    entries = {id(pipe): entry for pipe, entry in zip(pipes, saved["pipes"], strict=True)}
    if not is_restorable(lowest) or any("drop" in entry for entry in saved["pipes"]):
        return None  # it would be made again
    if any(_failed(pipe, entries[id(pipe)]) for pipe in above):
        return None
    wanted = [count]
    for pipe in above:
        wanted.append(_of_source(pipe, entries[id(pipe)], wanted[-1]))
    load_state(graph, saved)
    if any(entries[id(pipe)].get("finished") for pipe in (*above, lowest)):
        passed, below = 0, saved["pipes"][: len(below_it)]  # what is left is held above the end
    else:
        passed, below = _passed_below(below_it, wanted[-1], seeks)
    for pipe, own in zip(reversed(above), wanted[-2::-1], strict=True):
        behind, passed = _behind(pipe, entries[id(pipe)], passed, own)
        below.append(behind)
    load_state(graph, {"version": STATE_VERSION, "pipes": below})
    return passed


def _passed_below(graph: Graph, count: int, seeks: bool) -> tuple[int, list[dict[str, Any]]]:
    """Passes over items of a graph; returns how many there were, and its state behind them."""
    lowest = graph.end
    iterator = iter(lowest)
    passed = 0 if seeks else _read_over(lowest, iterator, count)
    graph = Graph(lowest)  # it has run, and may have grown
    with standing_still(graph.pipes):
        below = save_state(graph, described=False)["pipes"]
    if seeks and not below[-1].get("finished"):
        passed = max(0, min(count, len(lowest) - below[-1]["yielded"]))
        below[-1] = {**below[-1], "yielded": below[-1]["yielded"] + passed}
    return passed, below


def _handing_on(graph: Graph) -> tuple[list[Any], Any]:
    """The pipes that make each item of so many of their source, and the pipe below them."""
    pipe, above = graph.end, []
    while _hands_on(pipe) and len(sources := graph.sources(pipe)) == 1 and is_iter_pipe(sources[0]):
        above.append(pipe)
        pipe = sources[0]
    return above, pipe


def _hands_on(pipe: Any) -> bool:
    """Whether a pipe makes each item of one item of its source, or of several, in order, and holds whole ones alone."""
    if type(pipe) is ShardingFilter or type(pipe) in HOLDING:
        return True
    return keeps_nothing(pipe) and reads_per_item(pipe) is not None


def _batch_of(pipe: Any) -> int:
    """How many items of its source each item of a pipe is made of that hands them on."""
    return reads_per_item(pipe) or 1


def _reads_ahead(pipes: list[Any]) -> bool:
    return any(type(pipe) in HOLDING for pipe in pipes)


def _of_source(pipe: Any, entry: dict[str, Any], count: int) -> int:
    """How many items of its source a pipe takes for so many of its own."""
    if type(pipe) is ShardingFilter:
        taken = _taken(entry)
        return pipe._shard().after(taken, count) - taken if count else 0
    if type(pipe) in HOLDING:
        return max(0, count - len(_held(pipe, entry)["items"]))
    return count * _batch_of(pipe)


def _passes_over(pipe: Any) -> bool:
    """Whether a pipe leaves out items of a pass without making them."""
    return type(hooks_of(pipe))._pass_over is not PipeHooks._pass_over


def _taken(entry: dict[str, Any]) -> int:
    """How many items of its source a `ShardingFilter` had taken."""
    taken: int = 0 if entry["how"] == "begin" else entry["state"].get("taken", 0)
    return taken


def _held(pipe: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """The items and the error that a pipe that reads ahead holds."""
    if entry["how"] == "begin":
        return {"items": [], "error": None}
    held: dict[str, Any] = from_plain(entry["state"], type(pipe).__name__)
    return held


def _failed(pipe: Any, entry: dict[str, Any]) -> bool:
    """Whether a pipe that reads ahead has met an error, behind which nothing can be passed over."""
    return type(pipe) in HOLDING and _held(pipe, entry)["error"] is not None


def _seeks(pipe: Any) -> bool:
    """Whether the place of a pipe in its pass is the number of items that it yielded, and its length is known."""
    hooks = hooks_of(pipe)
    if not hooks.seeks_by_count or not hooks._can_seek():
        return False
    try:
        len(pipe)
    except TypeError:
        return False
    return True


def _read_over(pipe: Any, iterator: Iterator[Any], count: int) -> int:
    """Reads items of a pipe that are not wanted; returns how many there were."""
    hooks_of(pipe)._pass_over(count)
    return sum(1 for _ in islice(iterator, count))


def _behind(pipe: Any, entry: dict[str, Any], passed: int, wanted: int) -> tuple[dict[str, Any], int]:
    """The entry of a pipe of whose source so many items were passed over, and how many of its own these are.

    Args:
        pipe: the pipe.
        entry: its entry before that.
        passed: how many of its source were.
        wanted: how many of its own were to be.
    """
    if entry.get("finished"):
        return entry, 0
    begins = entry["how"] == "begin"
    yielded = 0 if begins else entry["yielded"]
    own = passed
    size = _batch_of(pipe)
    if size > 1:
        own = passed // size if pipe.drop_last else -(-passed // size)
    if type(pipe) is ShardingFilter:
        share, taken = pipe._shard(), _taken(entry)
        own = share.own_before(taken + passed) - share.own_before(taken)
        entry = entry_at(pipe, {**({} if begins else entry["state"]), "taken": taken + passed})
    elif type(pipe) in HOLDING:
        items = _held(pipe, entry)["items"]
        own += min(wanted, len(items))
        entry = entry_at(pipe, {"items": items[wanted:], "error": None})
    elif begins:
        entry = entry_at(pipe)
    return {**entry, "yielded": yielded + own}, own
