"""Computes the number of items of an epoch, before or while workers and ranks run.

For each worker and rank, a copy of the pipes without their data is sharded. For each rank, the lengths of its workers'
copies are then added up.
"""

from __future__ import annotations

from typing import Any

from torchdata._handlers import raise_if_of_handler
from torchdata.dataloader2.graph.cutting import DispatchedSource, cut_dispatched, find_replicable_branches
from torchdata.dataloader2.graph.serialization import clone
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES, apply_sharding, is_sharding
from torchdata.dataloader2.graph.utils import replace_pipe
from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.services.program import WorkerInfo, process_init_fn
from torchdata.datapipes._pipe.checks import certain_lengths
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes.iter.mapping.wrapping import LengthSetter
from torchdata.datapipes.iter.threads.synchronizing import FullSync


class _CountedSource(DispatchedSource):
    """Replaces a part of the graph that runs in other processes."""

    count = 0

    def __len__(self) -> int:
        return self.count


def length_of_epoch(datapipe: Any, service: ReadingServiceInterface) -> int:
    """Raises TypeError if a pipe's length is unknown, or if a pipe defines `__del__`, because `__del__` of a copy might
    close objects of the original pipe.
    """
    try:
        for pipe in Graph(datapipe):
            if hasattr(type(pipe), "__del__"):
                raise TypeError(f"{type(pipe).__name__} defines `__del__`")
        # in a `certain_lengths` context, a pipe raises an error if it could only guess its length, or would have to
        # read all items
        with certain_lengths():
            return _RankEpoch(clone(datapipe), service).length()
    except Exception as error:
        raise_if_of_handler(error)
        raise TypeError(f"this DataLoader2 has no length: {advice_on(error)}") from error


def advice_on(error: BaseException) -> str:
    """Returns an error message with the responsible pipe and a remedy."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{error}; if you know the number of items of that pipe, put `.set_length(n)` after it"


class _RankEpoch:
    def __init__(self, datapipe: Any, service: ReadingServiceInterface) -> None:
        self.workers, self.ranks = service.count_shares()
        graph = Graph(datapipe)
        for pipe in graph:
            if hooks_of(pipe)._length_reads_items:
                raise TypeError(f"{type(pipe).__name__} would have to read its items to determine its length")
            if self.ranks is not None and isinstance(pipe, FullSync):
                graph = Graph(replace_pipe(graph, pipe, *graph.sources(pipe)))
        self.graph = graph
        self.dispatching: Graph | None = None
        self.dispatched, self.from_workers = _CountedSource(), _CountedSource()
        self.branch: Graph = graph
        if self.workers:
            self._cut()

    def _cut(self) -> None:
        rest, self.dispatching = cut_dispatched(self.graph, self.dispatched)
        branches = find_replicable_branches(rest)
        if len(branches) != 1:
            raise TypeError(f"workers run one branch of the graph, and this one has {len(branches)}")
        self.branch = rest.at(branches[0])
        self.graph = Graph(replace_pipe(rest, self.branch.end, self.from_workers))

    def length(self) -> int:
        """Returns the smallest number of items of all ranks, because all ranks end an epoch together."""
        if self.ranks is None:
            return self._length_on_rank(None)
        return min(self._length_on_rank(rank) for rank in range(self.ranks))

    def _length_on_rank(self, rank: int | None) -> int:
        if rank is not None and self.ranks is not None:
            for part in (self.dispatching, self.branch, self.graph):
                if part is not None:
                    apply_sharding(part, self.ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if self.workers:
            self.from_workers.count = self._length_of_workers()
        elif (self.ranks or 1) > 1:
            self._require_shares_to_be_known(self.graph)
        return len(self.graph.end)

    def _length_of_workers(self) -> int:
        dispatched = 0 if self.dispatching is None else len(self.dispatching.end)
        if self.workers * (self.ranks or 1) > 1:
            end = self.branch.end
            if type(end) is LengthSetter and (self.ranks or 1) == 1 and _is_divided(self.branch):
                return len(end)  # the user has set the length of the whole graph
            self._require_shares_to_be_known(self.branch)
        total = 0
        for worker in range(self.workers):
            self.dispatched.count = len(range(worker, dispatched, self.workers))
            process_init_fn(self.branch.end, WorkerInfo(self.workers, worker))
            total += len(self.branch.end)
        return total

    @staticmethod
    def _require_shares_to_be_known(graph: Graph) -> None:
        for pipe in graph:
            if isinstance(pipe, LengthSetter) and _is_divided(graph.at(pipe)):
                raise TypeError(
                    f"{type(pipe).__name__} comes after the pipe that divides the items, so its length does not "
                    f"show how many items each worker gets; put `.set_length()` before that pipe, or, without "
                    f"ranks, at the end"
                )


def _is_divided(graph: Graph) -> bool:
    return any(is_sharding(pipe) or isinstance(pipe, _CountedSource) for pipe in graph)
