"""`MultiProcessingReadingService`: the pipe graph in worker processes, over the Rust engine.

Role: cuts the graph into what runs in the dispatching process, in the workers and in main, starts the processes, and
turns the loader's calls into commands to them. Runs in main; owns the `Children`.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torchdata._engine.child import Job
from torchdata._engine.processes import Children
from torchdata.dataloader2._interface import ReadingServiceInterface
from torchdata.dataloader2.graph import DataPipe, replace_dp, set_graph_random_seed, traverse_dps
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.utils import WorkerInfo, process_init_fn, process_reset_fn
from torchdata.dataloader2.utils.dispatch import (
    DispatchedSource,
    find_lca_round_robin_sharding_dp,
    find_replicable_branches,
)
from torchdata.datapipes.iter import IterDataPipe

__all__ = ["MultiProcessingReadingService", "cut_dispatched", "replaced_functions"]

ResetFn = Callable[[DataPipe], DataPipe]


class _WorkerOutput(IterDataPipe[Any]):
    """Stands in main's graph for the branch that runs in the workers: yields what they send, in turn."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._commands: Callable[[int], tuple[Any, Any]] | None = None
        self._fresh = False

    def start_epoch(self, commands: Callable[[int], tuple[Any, Any]]) -> None:
        """Starts an epoch in the workers, which begin to run ahead; the next iteration reads it."""
        self._commands = commands
        self._children.start_epoch(commands)
        self._fresh = True

    def __iter__(self) -> Iterator[Any]:
        if self._commands is None:
            raise RuntimeError(
                "the workers have not been told to start an epoch: iterate the DataLoader2, not its pipe"
            )
        if not self._fresh:  # a pipe in main reads the workers' output once more in the same epoch
            self._children.start_epoch(self._commands)
        self._fresh = False
        return iter(self._children.collector)

    def __repr__(self) -> str:
        return "the worker processes"

    def __getstate__(self) -> Any:
        raise TypeError("the output of running worker processes can be neither pickled nor copied")


class MultiProcessingReadingService(ReadingServiceInterface):
    """Runs the pipe graph in worker processes.

    Every worker runs a replica of the graph, in which each `sharding_filter` keeps the worker's share. Pipes before a
    `sharding_round_robin_dispatch` run once, in a dispatching process, which deals their items to the workers in turn.
    Pipes whose `is_replicable()` is False, and what reads from them, stay in the main process.

    A `DataPipeLintWarning` (see `torchdata.dataloader2.linter`) says where several workers would yield the same items
    because nothing divides them. No warning comes where `worker_init_fn` or `worker_reset_fn` may do that.

    Args:
        num_workers: number of worker processes; 0 runs everything in the main process.
        multiprocessing_context: start method, "fork", "spawn" or "forkserver"; None for the platform's default.
        worker_prefetch_cnt: items that each worker prepares ahead of what was asked of it.
        main_prefetch_cnt: items prepared ahead for the main process as a whole, shared out over the workers.
        worker_init_fn: called in each worker when it starts, with the graph and its `WorkerInfo`; returns the
            graph.
        worker_reset_fn: called in each worker (and in the dispatching process) at the start of an epoch, with the
            graph, the `WorkerInfo` and a `SeedGenerator`; returns the graph.
        in_order: take items from the workers in strict turn, which makes their order deterministic; False takes
            whatever is ready first.
        memory_budget: bytes of shared memory that the workers' items may use together, in flight and in the caller's
            hands; None for a quarter of the machine's memory. Only what is used is allocated. Beyond it items are
            copied: slower, never stuck.
        timeout: seconds to wait for an item before raising TimeoutError; None (or 0) waits as long as the worker lives.

    A worker that dies raises `torchdata.dataloader2.error.WorkerExitedError` within a second, once what it had sent was
    delivered. An exception in a worker is raised in the main process with its own type and the original traceback.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None = None,
        worker_reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None = None,
        *,
        in_order: bool = True,
        memory_budget: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.num_workers = _count("num_workers", num_workers)
        if num_workers == 0:
            warnings.warn(
                "MultiProcessingReadingService with num_workers=0 runs in the main process; "
                "InProcessReadingService says so",
                stacklevel=2,
            )
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context is not None and multiprocessing_context not in methods:
            raise ValueError(
                f"multiprocessing_context must be one of {methods} or None, not {multiprocessing_context!r}"
            )
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = _count("worker_prefetch_cnt", worker_prefetch_cnt)
        self.main_prefetch_cnt = _count("main_prefetch_cnt", main_prefetch_cnt)
        self.worker_init_fn = _callable("worker_init_fn", worker_init_fn)
        self.worker_reset_fn = _callable("worker_reset_fn", worker_reset_fn)
        if not isinstance(in_order, bool):
            raise TypeError(f"in_order must be True or False, not {in_order!r}")
        self.in_order = in_order
        if memory_budget is not None:
            _count("memory_budget", memory_budget)
        self.memory_budget = memory_budget
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout < math.inf):
            raise ValueError(
                f"timeout must be a number of seconds that is not negative, or None, not {timeout!r}"
            )
        self.timeout = timeout or None
        self._children: Any = None  # the Children, once initialised
        self._worker_output: _WorkerOutput | None = None
        self._end_datapipe: DataPipe | None = None
        self._dispatches = False

    # -- the graph ---------------------------------------------------------------------------------

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Cuts the graph, starts the processes and returns the part of the graph that stays in main."""
        from torchdata.dataloader2 import reading_service

        if self._end_datapipe is not None:
            raise RuntimeError("this reading service is in use: give each DataLoader2 its own")
        if self.num_workers == 0:
            self._end_datapipe = reading_service.process_init_fn(
                datapipe, WorkerInfo(1, 0), self.worker_init_fn
            )
            return self._end_datapipe

        self._warn_of_copies(datapipe)
        datapipe, dispatching = cut_dispatched(datapipe)
        branches = find_replicable_branches(traverse_dps(datapipe))
        if len(branches) != 1:
            raise ValueError(
                f"MultiProcessingReadingService runs one branch in its workers, but this graph has {len(branches)} "
                f"({', '.join(type(branch).__name__ for branch in branches) or 'all pipes are non-replicable'}); "
                "join the branches before the first pipe that is not replicable"
            )
        branch = branches[0]
        stays_in_main = branch is not datapipe
        self._children = self._start(branch, dispatching)
        output = self._worker_output = _WorkerOutput(self._children)
        if not stays_in_main:
            self._end_datapipe = output
            return output
        end: Any = output
        replace_dp(traverse_dps(datapipe), branch, end)
        self._end_datapipe = datapipe
        return datapipe

    def _warn_of_copies(self, datapipe: DataPipe) -> None:
        """Warns of items that several workers would yield, unless functions of the user's may divide them."""
        from torchdata.dataloader2.linter import warn_of_silent_findings

        no_functions = self.worker_init_fn is None and self.worker_reset_fn is None
        if self.num_workers > 1 and no_functions and not replaced_functions():
            warn_of_silent_findings(datapipe, self.num_workers)

    def _start(self, branch: DataPipe, dispatching: DataPipe | None) -> Children:
        share = math.ceil(self.main_prefetch_cnt / self.num_workers)
        self._dispatches = dispatching is not None
        replaced = replaced_functions()
        return Children(
            multiprocessing.get_context(self.multiprocessing_context),
            self.num_workers,
            Job(branch, self.worker_init_fn, self.worker_reset_fn, **replaced),
            None if dispatching is None else Job(dispatching, None, self.worker_reset_fn, **replaced),
            window=_window(self.worker_prefetch_cnt + share),
            dispatch_window=_window(self.worker_prefetch_cnt),
            memory_budget=self.memory_budget,
            in_order=self.in_order,
            timeout=self.timeout,
        )

    # -- epochs ------------------------------------------------------------------------------------

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Seeds the pipes in main and starts the epoch in all processes."""
        end = self._initialised()
        set_graph_random_seed(end, seed_generator)
        if self._worker_output is not None:
            seeds = [seed_generator.spawn(worker_id) for worker_id in range(self.num_workers)]
            if self._dispatches:
                seeds.append(seed_generator.spawn(self.num_workers))
            # As bytes: pickling an object asks each reducer that torch has registered.
            exported = [generator.exported() for generator in seeds]
            self._worker_output.start_epoch(lambda index: (exported[index], iter_reset_fn))
        return None

    def finalize_iteration(self) -> None:
        """Ends the epoch: nobody runs ahead for it any more."""
        if self._children is not None:
            self._children.collector.stop()

    def set_prefetch_counts(self, main: int | None, worker: int | None) -> None:
        """Sets `main_prefetch_cnt` and `worker_prefetch_cnt`, before the workers start."""
        if self._children is not None:
            raise RuntimeError("prefetch counts are set before the workers start")
        if main is not None:
            self.main_prefetch_cnt = _count("main", main)
        if worker is not None:
            self.worker_prefetch_cnt = _count("worker", worker)

    def finalize(self) -> None:
        """Ends all processes; bounded and idempotent."""
        if getattr(self, "_children", None) is not None:
            self._children.shutdown()

    # -- pausing -----------------------------------------------------------------------------------

    def _pause(self, pause_fn: ResetFn | None = None) -> None:
        """Halts prefetching in main and in the workers; `pause_fn` is then applied to the graph of each."""
        from torchdata.dataloader2 import reading_service

        reading_service.pause_pipes(self._main_graph())
        self._children.collector.pause()
        if pause_fn is not None:
            self._children.call(pause_fn)

    def _resume(self, resume_fn: ResetFn | None = None) -> None:
        """Undoes `_pause`, in reverse order."""
        from torchdata.dataloader2 import reading_service

        end = self._main_graph()
        if resume_fn is not None:
            self._children.call(resume_fn)
        self._children.collector.resume()
        reading_service.resume_pipes(end)

    def _limit(
        self, num_batches: int | None, limit_fn: Callable[[DataPipe, int | None], DataPipe] | None = None
    ) -> None:
        """Applies `limit_fn` to the graphs of all processes; the loader itself counts what it hands out."""
        if limit_fn is not None:
            in_children = num_batches if self._dispatches else None
            self._children.call(_Limit(limit_fn, in_children))
            limit_fn(self._initialised(), num_batches)

    def _main_graph(self) -> DataPipe:
        end = self._initialised()
        if self._worker_output is None:
            raise RuntimeError(
                "MultiProcessingReadingService pauses and resumes with more than 0 workers only"
            )
        return end

    def _initialised(self) -> DataPipe:
        if self._end_datapipe is None:
            raise RuntimeError("the reading service was not initialised with a graph: DataLoader2 does that")
        return self._end_datapipe

    def __getstate__(self) -> dict[str, Any]:
        if self._children is not None:
            raise TypeError(
                "a MultiProcessingReadingService with running workers can be neither pickled nor copied"
            )
        return self.__dict__


def replaced_functions() -> dict[str, Callable[..., DataPipe]]:
    """What users have put in place of the functions that prepare a graph in each process; spawned ones have ours."""
    from torchdata.dataloader2 import reading_service

    ours = {"process_init_fn": process_init_fn, "process_reset_fn": process_reset_fn}
    now = {name: getattr(reading_service, name) for name in ours}
    return {name: function for name, function in now.items() if function is not ours[name]}


class _Limit:
    """`limit_fn` with its count, on its way to the children."""

    def __init__(self, limit_fn: Callable[[DataPipe, int | None], DataPipe], num_batches: int | None) -> None:
        self.limit_fn = limit_fn
        self.num_batches = num_batches

    def __call__(self, datapipe: DataPipe) -> None:
        self.limit_fn(datapipe, self.num_batches)


def cut_dispatched(
    datapipe: DataPipe, source: DispatchedSource | None = None
) -> tuple[DataPipe, DataPipe | None]:
    """Puts a `DispatchedSource` in the place of what is to be dispatched: (graph of the rest, graph to dispatch)."""
    graph = traverse_dps(datapipe)
    dispatching = find_lca_round_robin_sharding_dp(graph)
    if dispatching is None:
        return datapipe, None
    source = DispatchedSource() if source is None else source
    if dispatching is datapipe:
        return source, dispatching
    replace_dp(graph, dispatching, source)
    return datapipe, dispatching


def _window(items: int) -> int:
    """How many items a process may be ahead: at least one, and no more than the engine can count."""
    return min(max(1, items), sys.maxsize)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, but is {value}")
    return value


def _callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {value!r}")
    return value
