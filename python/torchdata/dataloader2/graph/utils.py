"""Reads and modifies the connections of pipe graphs.

This module never pickles or copies a pipe, because a pipe's attributes may contain large data, locks and open files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeGuard

from torchdata.datapipes._pipe.checks import with_type
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.torch import twin_of
from torchdata.datapipes._pipe.graph.traversal import is_pipe, pipes_in, sources_of
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

DataPipe: TypeAlias = IterDataPipe[Any] | MapDataPipe[Any]
DataPipeGraph = dict[int, tuple[DataPipe, "DataPipeGraph"]]


def has_method(datapipe: Any, name: str) -> TypeGuard[Any]:
    """Returns False for functional forms of pipes, such as `map`, because they are not methods."""
    return callable(getattr(type(datapipe), name, None)) or callable(getattr(datapipe, "__dict__", {}).get(name))


def traverse_dps(datapipe: DataPipe) -> DataPipeGraph:
    """Returns the graph of `datapipe` and all its direct and indirect sources.

    Pipes are found in the attributes of pipes, including nested lists, tuples, sets, dictionaries and deques.

    Args:
        datapipe: the last pipe of the graph.

    Returns:
        `{id(datapipe): (datapipe, sources)}`, where `sources` is a dictionary of the same form with an entry for each
        source. A pipe that several pipes read from appears below each of these pipes. In a cycle of pipes, each path
        ends before it would contain a pipe twice.

    Raises:
        TypeError: `datapipe` is not a pipe.

    Example:
        >>> from torchdata.dataloader2.graph import traverse_dps
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> source = IterableWrapper(range(3))
        >>> last = source.map(str)
        >>> traverse_dps(last) == {id(last): (last, {id(source): (source, {})})}
        True
    """
    graph = whole(datapipe)
    finished: dict[int, DataPipeGraph] = {}

    def sources(pipe: DataPipe, path: set[int]) -> tuple[DataPipeGraph, bool]:
        """Returns the graph of a pipe's sources without pipes on `path`, and whether this graph is complete."""
        if id(pipe) in finished:
            return finished[id(pipe)], True
        path.add(id(pipe))
        found: DataPipeGraph = {}
        everywhere = True
        for source in graph.sources(pipe):
            if id(source) in path:
                everywhere = False
                continue
            below, same = sources(source, path)
            found[id(source)] = (source, below)
            everywhere &= same
        path.discard(id(pipe))
        # A result without omissions does not depend on `path`, so it is stored for the pipe's other readers.
        if everywhere:
            finished[id(pipe)] = found
        return found, everywhere

    return {id(graph.end): (graph.end, sources(graph.end, set())[0])}


def whole(end: DataPipe | Graph | DataPipeGraph) -> Graph:
    """Raises TypeError for a value that is neither a pipe nor a graph."""
    if isinstance(end, Graph):
        return end
    if isinstance(end, dict):
        if len(end) != 1:
            raise ValueError(f"a graph, as traverse_dps returns it, has one last pipe, but got {len(end)} entries")
        [member] = end.values()
        if type(member) is not tuple or len(member) != 2 or not is_pipe(member[0]):
            raise TypeError(f"a graph is a dict, as traverse_dps returns it, but got {with_type(end)}")
        return Graph(member[0])
    if not is_pipe(end):
        raise TypeError(f"a graph ends in an IterDataPipe or a MapDataPipe, but got {with_type(end)}")
    return Graph(end)


def find_dps(graph: DataPipeGraph, dp_type: type[Any]) -> list[DataPipe]:
    """Finds the pipes of the graph that have exactly the type `dp_type`. Each pipe is listed once, depth first.

    Args:
        graph: a result of `traverse_dps`.
        dp_type: the class of the pipes to find; instances of its subclasses are not found. If `dp_type` has the same
            name in torch and in this package, such as `torch.utils.data.datapipes.iter.Shuffler`, pipes of both classes
            are found.

    Returns:
        The pipes; an empty list if there are none.

    Raises:
        TypeError: `graph` is not a graph.

    Example:
        >>> from torchdata.dataloader2.graph import find_dps, traverse_dps
        >>> from torchdata.datapipes.iter import IterableWrapper, Mapper
        >>> find_dps(traverse_dps(IterableWrapper(range(3)).map(str).batch(2)), Mapper)
        [Mapper]
    """
    types = (dp_type, twin_of(dp_type))
    return [pipe for pipe in whole(graph).depth_first() if type(pipe) in types]


def list_dps(graph: DataPipeGraph, exclude_dps: DataPipe | Iterable[DataPipe] | None = None) -> list[DataPipe]:
    """Lists all pipes of the graph, each once, breadth first from the last pipe.

    Args:
        graph: a result of `traverse_dps`.
        exclude_dps: a pipe, or several pipes, to leave out together with all their sources; None (the default) for
            none.

    Returns:
        The pipes.

    Raises:
        TypeError: `graph` is not a graph, or `exclude_dps` contains an object that is not a pipe.

    Example:
        >>> from torchdata.dataloader2.graph import list_dps, traverse_dps
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list_dps(traverse_dps(IterableWrapper(range(3)).map(str)))
        [Mapper, IterableWrapper]
    """
    excluded: list[Any] = [exclude_dps] if is_pipe(exclude_dps) else list(exclude_dps or ())
    for pipe in excluded:
        if not is_pipe(pipe):
            raise TypeError(f"exclude_dps takes a pipe or several pipes, but got {with_type(pipe)}")
    return whole(graph).breadth_first(excluded)


def replace_dp(graph: DataPipeGraph, old_datapipe: DataPipe, new_datapipe: DataPipe) -> DataPipeGraph:
    """Replaces `old_datapipe` with `new_datapipe` in every pipe of the graph that reads from `old_datapipe`.

    To insert a pipe after `old_datapipe`, pass a new pipe that reads from `old_datapipe`, directly or through other
    pipes. The given pipes are modified.

    Args:
        graph: a result of `traverse_dps`.
        old_datapipe: a pipe of the graph, possibly its last one.
        new_datapipe: the replacement for `old_datapipe`.

    Returns:
        The new graph.

    Raises:
        TypeError: `new_datapipe` is not a pipe.
        ValueError: the graph does not contain `old_datapipe`.

    Example:
        >>> from torchdata.dataloader2.graph import replace_dp, traverse_dps
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> source = IterableWrapper([3, 4])
        >>> last = source.enumerate()
        >>> _ = replace_dp(traverse_dps(last), source, source.map(str))
        >>> list(last)
        [(0, '3'), (1, '4')]
    """
    found = whole(graph)
    if not is_pipe(new_datapipe):
        raise TypeError(f"a pipe is replaced by a pipe, but got {with_type(new_datapipe)}")
    _require_member(found, old_datapipe)
    return traverse_dps(replace_pipe(found, old_datapipe, new_datapipe))


def replace_pipe(graph: Graph, old_datapipe: Any, new_datapipe: Any) -> Any:
    """Returns the last pipe of the changed graph."""
    # The new pipe may itself read the old pipe, so the new pipe and its sources stay unchanged.
    kept = _reached(new_datapipe, old_datapipe, sources_of)
    for pipe_id, pipe in _reached(graph.end, old_datapipe, graph.sources).items():
        if pipe_id not in kept:
            _rewire(pipe, lambda source: new_datapipe if source is old_datapipe else source)
    return new_datapipe if graph.end is old_datapipe else graph.end


def _reached(end: DataPipe, without: DataPipe, sources: Callable[[DataPipe], list[DataPipe]]) -> dict[int, DataPipe]:
    """Returns `end` and its direct and indirect sources, by id. The search skips the pipe `without`."""
    found: dict[int, DataPipe] = {}
    waiting = [end]
    while waiting:
        pipe = waiting.pop()
        if pipe is not without and id(pipe) not in found:
            found[id(pipe)] = pipe
            waiting.extend(sources(pipe))
    return found


def remove_dp(graph: DataPipeGraph, datapipe: DataPipe) -> DataPipeGraph:
    """Removes a pipe from the graph, so that its readers read from its source.

    Args:
        graph: a result of `traverse_dps`.
        datapipe: a pipe of the graph with exactly one source.

    Returns:
        The new graph.

    Raises:
        RuntimeError: the pipe is a source of the graph or its last pipe, or reads from several pipes.
        ValueError: the graph does not contain the pipe.

    Example:
        >>> from torchdata.dataloader2.graph import remove_dp, traverse_dps
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> mapped = IterableWrapper(range(3)).map(str)
        >>> last = mapped.enumerate()
        >>> _ = remove_dp(traverse_dps(last), mapped)
        >>> list(last)
        [(0, 0), (1, 1), (2, 2)]
    """
    found = whole(graph)
    _require_member(found, datapipe)
    sources = found.sources(datapipe)
    if not sources:
        raise RuntimeError(
            f"Cannot remove the source DataPipe {datapipe!r}: it reads from no other pipe, so nothing would be left "
            "for its readers"
        )
    if len(sources) > 1:
        raise RuntimeError(
            f"Cannot remove the receiving DataPipe {datapipe!r}: it reads from {len(sources)} pipes, and only one of "
            "them could replace it; use replace_dp"
        )
    if datapipe is found.end:
        raise RuntimeError(
            f"Cannot remove the receiving DataPipe {datapipe!r}, the last one of the graph; use {sources[0]!r}, "
            "which it reads, instead"
        )
    return replace_dp(graph, datapipe, sources[0])


def _require_member(graph: Graph, datapipe: DataPipe) -> None:
    if datapipe not in graph:
        raise ValueError(
            f"{datapipe!r} is not one of the {len(graph)} pipes of this graph; if the pipes have changed, "
            "build the graph again with traverse_dps"
        )


def _rewire(datapipe: DataPipe, choose: Callable[[Any], Any]) -> None:
    opened: set[int] = set()
    for name, value in list(vars(datapipe).items()):
        if all(choose(source) is source for source in pipes_in(value)):
            continue
        changed = _rewired(value, choose, opened)
        if changed is not value:
            datapipe.__dict__[name] = changed


def _rewired(obj: Any, choose: Callable[[Any], Any], opened: set[int]) -> Any:
    """Applies `choose` to all pipes in `obj`; mutable containers are modified, and immutable containers are
    recreated."""
    if is_pipe(obj):
        return choose(obj)
    if not isinstance(obj, (dict, list, tuple, set, frozenset, deque)):
        return obj
    if id(obj) in opened:
        return obj
    opened.add(id(obj))
    try:
        return _rewired_container(obj, lambda member: _rewired(member, choose, opened))
    finally:
        opened.discard(id(obj))


def _rewired_container(obj: Any, exchange: Callable[[Any], Any]) -> Any:
    if isinstance(obj, dict):
        before: Any = list(obj.items())
        pairs = [(exchange(key), exchange(value)) for key, value in before]
        if any(k is not key or v is not value for (k, v), (key, value) in zip(pairs, before, strict=True)):
            obj.clear()  # all pairs are inserted in order, so that the order of the keys is preserved
            obj.update(pairs)
        return obj
    before = list(obj)
    members = [exchange(member) for member in before]
    if all(member is old for member, old in zip(members, before, strict=True)):
        return obj
    if isinstance(obj, list):
        obj[:] = members
    elif isinstance(obj, (set, deque)):
        obj.clear()
        for member in members:
            obj.add(member) if isinstance(obj, set) else obj.append(member)
    else:
        make = getattr(type(obj), "_make", type(obj))  # a named tuple's fields are separate arguments
        return make(members)
    return obj
