"""Divides a pipe graph into three parts: for the dispatching process, for the workers and for the main process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.dataloader2.graph.utils import DataPipe, DataPipeGraph, has_method, replace_pipe, whole
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.mapping.skipping import OnError
from torchdata.datapipes.iter.ordering.sharding import ShardingRoundRobinDispatcher


class DispatchedSource(IterDataPipe[Any]):
    """Replaces, in a worker's graph, the pipes that run in the dispatching process.

    The state of a `DispatchedSource` contains only the number and the checksum of the items that this worker has read.
    The dispatching process saves the position of the replaced pipes.

    Attributes:
        open_stream: a function that returns an iterator over the items for this worker.
        share: a function that returns the number of the worker's current iteration over the dispatched items, and the
            number and the checksum of the items that the worker has read in this iteration.
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
        return {"share": list(self.share()[1]) if self.share is not None else [0, 0]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignores the state, because a new stream of dispatched items starts where the previous stream stopped."""


class _DummyIterDataPipe(IterDataPipe[Any]):
    """The pipe that yielded the dispatched items in a worker's graph of torchdata 0.9.

    User-defined versions of `process_init_fn` search the graph for a `_DummyIterDataPipe`, but graphs now contain a
    `DispatchedSource` instead.
    """


def find_lca_round_robin_sharding_dp(graph: Graph | DataPipeGraph) -> DataPipe | None:
    """Returns the last of the pipes that run in the dispatching process; None if no pipe runs there.

    The returned pipe is the first pipe that the items of all `sharding_round_robin_dispatch` pipes pass through. A
    branch that shares a source with a dispatched branch is also dispatched. Pipes that read from each other in a cycle
    are dispatched together.
    """
    graph = whole(graph)
    dispatched: set[int] = set()
    for pipe in graph:
        if isinstance(pipe, ShardingRoundRobinDispatcher):
            dispatched.update(map(id, graph.at(pipe)))

    cuts: dict[int, Any] = {}

    def cut_of(pipe: Any) -> Any:
        if id(pipe) in dispatched:
            return pipe
        if id(pipe) not in cuts:
            cuts[id(pipe)] = None  # if the search returns to this pipe in a cycle, it finds this result
            found = {id(cut): cut for cut in map(cut_of, graph.sources(pipe)) if cut is not None}
            cuts[id(pipe)] = pipe if len(found) > 1 else next(iter(found.values()), None)
        return cuts[id(pipe)]

    lowest: DataPipe | None = cut_of(graph.end)
    return lowest


def cut_dispatched(graph: Graph, source: DispatchedSource | None = None) -> tuple[Graph, Graph | None]:
    """Returns `graph` with `source` instead of the dispatched pipes, and the graph of the dispatched pipes; returns
    `(graph, None)` if no pipe is dispatched.
    """
    dispatching = find_lca_round_robin_sharding_dp(graph)
    if dispatching is None:
        return graph, None
    source = DispatchedSource() if source is None else source
    return Graph(replace_pipe(graph, dispatching, source)), graph.at(dispatching)


def skipping_as_before(part: Graph, graph: Graph) -> Graph:
    """If `graph` contains an `on_error` after `part`, appends an `on_error` to `part`. `part` runs in other processes,
    so an `on_error` outside `part` cannot skip its exceptions.
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
    """Returns the last pipe of each branch that the workers must shard, because its items are not dispatched."""
    graph = whole(graph)
    dispatched = (DispatchedSource, _DummyIterDataPipe)
    if not any(isinstance(pipe, dispatched) for pipe in graph):
        return [graph.end]
    readers = {id(pipe) for pipe in graph if any(isinstance(source, dispatched) for source in graph.at(pipe))}
    ends = {id(source): source for pipe in graph if id(pipe) in readers for source in graph.sources(pipe)}
    return [pipe for pipe_id, pipe in ends.items() if pipe_id not in readers]


def _is_replicable(datapipe: DataPipe) -> bool:
    return not has_method(datapipe, "is_replicable") or bool(datapipe.is_replicable())


def find_replicable_branches(graph: Graph | DataPipeGraph) -> list[DataPipe]:
    """Returns the ends of the largest branches that may be copied to worker processes."""
    graph = whole(graph)
    if all(map(_is_replicable, graph)):
        return [graph.end]
    single = {id(pipe) for pipe in graph if not all(map(_is_replicable, graph.at(pipe)))}
    sources = [source for pipe in graph if id(pipe) in single for source in graph.sources(pipe)]
    candidates = {id(source): source for source in sources if id(source) not in single}
    return [pipe for pipe in candidates.values() if candidates.keys().isdisjoint(graph.below([pipe]))]
