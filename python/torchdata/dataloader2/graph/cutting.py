"""Cutting a pipe graph into the parts that run in the dispatching process, in the workers and in main.

Role: decides where to cut, and holds the pipe that stands at the cut in every worker. The functions run in
the main process before workers start; `DispatchedSource` runs in the workers, where the worker runtime owns
the stream that it reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torchdata.dataloader2.graph.utils import DataPipe, DataPipeGraph, has_method, put_in_place, whole
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.mapping.skipping import OnError
from torchdata.datapipes.iter.ordering.sharding import ShardingRoundRobinDispatcher

__all__ = [
    "DispatchedSource",
    "cut_dispatched",
    "find_lca_round_robin_sharding_dp",
    "find_non_dispatching_branches",
    "find_replicable_branches",
    "skipping_as_before",
]


class DispatchedSource(IterDataPipe[Any]):
    """Stands in a worker's graph for the part that runs in the dispatching process.

    Its place in the stream is kept by the dispatching process; its state says only how far it has read.

    Attributes:
        open_stream: makes an iterator over the items that are dealt to this worker. Set by the worker
            runtime; it stays after when the pipe is pickled.
        share: what was read of them: the pass; items and checksum. Set and left behind likewise.
    """

    open_stream: Callable[[], Iterator[Any]] | None = state(saved=False, lasts=True)
    share: Callable[[], tuple[int, tuple[int, int]]] | None = state(saved=False, lasts=True)

    def __iter__(self) -> Iterator[Any]:
        if self.open_stream is None:
            raise RuntimeError(
                "this DispatchedSource is not connected to a dispatching process: it is made and connected by "
                "MultiProcessingReadingService and is read in its workers only"
            )
        return self.open_stream()

    def state_dict(self) -> dict[str, Any]:
        """The share that was read in this pass: items and checksum."""
        return {"share": list(self.share()[1]) if self.share is not None else [0, 0]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes nothing: the next stream is opened where the last one was left."""


class _DummyIterDataPipe(IterDataPipe[Any]):
    """The pipe that 0.9 had in a worker's graph until a function of the worker connected it to the dispatching process.

    Functions that users put in place of `process_init_fn` look for it. They find none, because `DispatchedSource` is
    connected by the worker runtime, and have nothing to do. In graphs of their own it stands for dispatched items.
    """


def find_lca_round_robin_sharding_dp(graph: Graph | DataPipeGraph) -> DataPipe | None:
    """The last pipe that runs in the dispatching process, or None if nothing is dispatched.

    It is the first pipe (seen from the sources) through which all items of all
    `sharding_round_robin_dispatch` pipes pass. If a branch shares a source with a dispatched one, both are
    dispatched; pipes that read from each other in a circle are dispatched together.

    Args:
        graph: the graph, or what `traverse_dps` returned.
    """
    graph = whole(graph)
    dispatched: set[int] = set()
    for pipe in graph:
        if isinstance(pipe, ShardingRoundRobinDispatcher):
            dispatched.update(map(id, graph.at(pipe)))

    cuts: dict[int, Any] = {}

    def cut_of(pipe: Any) -> Any:
        """The one pipe below which all that is dispatched on the way to `pipe` lies."""
        if id(pipe) in dispatched:
            return pipe
        if id(pipe) not in cuts:
            cuts[id(pipe)] = None  # what a circle gets to see of its own beginning
            found = {id(cut): cut for cut in map(cut_of, graph.sources(pipe)) if cut is not None}
            cuts[id(pipe)] = pipe if len(found) > 1 else next(iter(found.values()), None)
        return cuts[id(pipe)]

    lowest: DataPipe | None = cut_of(graph.end)
    return lowest


def cut_dispatched(graph: Graph, source: DispatchedSource | None = None) -> tuple[Graph, Graph | None]:
    """Replaces the dispatched part by a `DispatchedSource`: returns the remaining graph and the dispatched graph."""
    dispatching = find_lca_round_robin_sharding_dp(graph)
    if dispatching is None:
        return graph, None
    source = DispatchedSource() if source is None else source
    return Graph(put_in_place(graph, dispatching, source)), graph.at(dispatching)


def skipping_as_before(part: Graph, graph: Graph) -> Graph:
    """A part that is to run in other processes, with an `on_error` at its end if one after the cut speaks for it.

    Exceptions are skipped in the process that raises them, so each process has a pipe that does.

    Args:
        part: the part.
        graph: the graph that it was cut from.
    """
    for skipper in graph:
        if not isinstance(skipper, OnError):
            continue
        waiting, seen = [*graph.sources(skipper)], {id(skipper)}
        while waiting:
            pipe = waiting.pop()
            if id(pipe) in seen or isinstance(pipe, OnError):
                continue
            if pipe is part.end:
                return Graph(OnError(pipe, skipper.how, skipper.limit, skipper.log))
            seen.add(id(pipe))
            waiting += graph.sources(pipe)
    return part


def find_non_dispatching_branches(graph: Graph | DataPipeGraph) -> list[DataPipe]:
    """The ends of the branches that no item of the dispatching process passes; workers shard these themselves.

    Its items come out of a `DispatchedSource`, or of the `_DummyIterDataPipe` that old code puts there.

    Args:
        graph: a worker's graph, or what `traverse_dps` returned for it.

    Returns:
        The last pipe of the graph alone if nothing is dispatched, and an empty list if everything is.
    """
    graph = whole(graph)
    dispatched = (DispatchedSource, _DummyIterDataPipe)
    if not any(isinstance(pipe, dispatched) for pipe in graph):
        return [graph.end]
    fed = {id(pipe) for pipe in graph if any(isinstance(source, dispatched) for source in graph.at(pipe))}
    ends = {id(source): source for pipe in graph if id(pipe) in fed for source in graph.sources(pipe)}
    return [pipe for pipe_id, pipe in ends.items() if pipe_id not in fed]


def _is_replicable(datapipe: DataPipe) -> bool:
    return not has_method(datapipe, "is_replicable") or bool(datapipe.is_replicable())


def find_replicable_branches(graph: Graph | DataPipeGraph) -> list[DataPipe]:
    """The ends of the branches that may be copied into worker processes.

    A pipe whose `is_replicable()` is False must exist once, and so must all pipes that read from it. The other pipes
    form branches; of branches that read from one another, the foremost one is returned. If pipes refer to each other in
    a circle, one does not count as a reader of another that stands nearer to the end.

    Args:
        graph: the graph, or what `traverse_dps` returned.

    Returns:
        The ends of the branches: the last pipe of the graph alone if all pipes are replicable, and an
        empty list if none is.
    """
    graph = whole(graph)
    if all(map(_is_replicable, graph)):
        return [graph.end]
    reads = _reads_outside_circles(graph)
    upstream = {id(pipe): _upstream(pipe, reads) for pipe in graph}
    single = {id(pipe) for pipe in graph if not all(map(_is_replicable, upstream[id(pipe)]))}
    candidates = {
        id(source): source
        for pipe in graph
        if id(pipe) in single
        for source in reads[id(pipe)]
        if id(source) not in single
    }
    return [
        pipe
        for pipe in candidates.values()
        if not any(id(other) in candidates for other in upstream[id(pipe)] if other is not pipe)
    ]


def _reads_outside_circles(graph: Graph) -> dict[int, list[DataPipe]]:
    """The sources of each pipe by id, without pipes in a circle that are nearer to the end."""
    distance = {id(graph.end): 0}
    waiting = deque([graph.end])
    reads: dict[int, list[DataPipe]] = {}
    while waiting:
        pipe = waiting.popleft()
        reads[id(pipe)] = graph.sources(pipe)
        for source in reads[id(pipe)]:
            if id(source) not in distance:
                distance[id(source)] = distance[id(pipe)] + 1
                waiting.append(source)
    return {
        pipe_id: [
            source
            for source in sources
            if distance[id(source)] >= distance[pipe_id] or pipe_id not in map(id, graph.at(source))
        ]
        for pipe_id, sources in reads.items()
    }


def _upstream(pipe: DataPipe, reads: dict[int, list[DataPipe]]) -> list[DataPipe]:
    """The pipe and all that it reads from, directly or not."""
    found = {id(pipe): pipe}
    waiting = [pipe]
    while waiting:
        for source in reads[id(waiting.pop())]:
            if id(source) not in found:
                found[id(source)] = source
                waiting.append(source)
    return list(found.values())
