"""Cutting a pipe graph into the parts that run in the dispatching process, in the workers and in main.

Role: decides where to cut, and holds the pipe that stands at the cut in every worker. The functions run in
the main process before workers start; `DispatchedSource` runs in the workers, where the worker runtime owns
the stream that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.dataloader2.graph.utils import (
    DataPipe,
    DataPipeGraph,
    end_of,
    find_replicable_branches,
)
from torchdata.datapipes._traversal import sources_of, walk
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.sharding import ShardingRoundRobinDispatcher
from torchdata.datapipes.state import Stateless

__all__ = [
    "DispatchedSource",
    "find_lca_round_robin_sharding_dp",
    "find_non_dispatching_branches",
    "find_replicable_branches",
]


class DispatchedSource(Stateless, IterDataPipe[Any]):
    """Stands in a worker's graph for the part that runs in the dispatching process.

    Its place in the stream is kept by the dispatching process; the pipe itself has no state.

    Attributes:
        open_stream: makes an iterator over the items that are dealt to this worker. Set by the worker
            runtime; it stays behind when the pipe is pickled.
    """

    def __init__(self) -> None:
        self.open_stream: Callable[[], Iterator[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.open_stream is None:
            raise RuntimeError(
                "this DispatchedSource is not connected to a dispatching process: it is made and connected "
                "by "
                "MultiProcessingReadingService and is read in its workers only"
            )
        return self.open_stream()

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {**state, "open_stream": None} if isinstance(state, dict) else state


class _DummyIterDataPipe(IterDataPipe[Any]):
    """What stood in a worker's graph in 0.9 until a function of the worker connected it to the dispatching process.

    Functions that users put in place of `process_init_fn` look for it. They find none, because `DispatchedSource` is
    connected by the worker runtime, and have nothing to do.
    """


def find_lca_round_robin_sharding_dp(graph: DataPipeGraph) -> DataPipe | None:
    """The pipe at whose end the graph is cut for the dispatching process, or None where nothing is
    dispatched.

    It is the first pipe (seen from the sources) through which all items of all
    `sharding_round_robin_dispatch` pipes pass. Where a branch shares a source with a dispatched one, both are
    dispatched; pipes that read from each other in a circle are dispatched together.

    Args:
        graph: what `traverse_dps` returned.
    """
    dispatched: set[int] = set()
    pipes = walk(end_of(graph))
    for pipe in pipes:
        if isinstance(pipe, ShardingRoundRobinDispatcher):
            dispatched.update(map(id, walk(pipe)))

    cuts: dict[int, Any] = {}

    def cut_of(pipe: Any) -> Any:
        """The one pipe below which all that is dispatched on the way to `pipe` lies."""
        if id(pipe) in dispatched:
            return pipe
        if id(pipe) not in cuts:
            cuts[id(pipe)] = None  # what a circle gets to see of its own beginning
            found = {id(cut): cut for cut in map(cut_of, sources_of(pipe)) if cut is not None}
            cuts[id(pipe)] = pipe if len(found) > 1 else next(iter(found.values()), None)
        return cuts[id(pipe)]

    lowest: DataPipe | None = cut_of(end_of(graph))
    return lowest


def find_non_dispatching_branches(graph: DataPipeGraph) -> list[DataPipe]:
    """The ends of the branches that no item of a `DispatchedSource` passes; workers shard these themselves.

    Args:
        graph: what `traverse_dps` returned for a worker's graph.

    Returns:
        The last pipe of the graph alone where nothing is dispatched, and an empty list where everything is.
    """
    end = end_of(graph)
    pipes = walk(end)
    fed = {id(pipe) for pipe in pipes if any(isinstance(source, DispatchedSource) for source in walk(pipe))}
    if id(end) not in fed:
        return [end]
    ends = {id(source): source for pipe in pipes if id(pipe) in fed for source in sources_of(pipe)}
    return [pipe for pipe_id, pipe in ends.items() if pipe_id not in fed]
