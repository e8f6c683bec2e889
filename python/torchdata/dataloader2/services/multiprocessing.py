"""`MultiProcessingReadingService`: runs the pipe graph in worker processes.

The service divides the graph between the dispatching process, the workers and the main process, starts the processes,
and translates the loader's calls into commands.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, Literal

from torchdata._engine.snapshots import BUDGET
from torchdata._engine.workers.epochs import Children
from torchdata._engine.workers.hangs import Survived, check_restarts
from torchdata.dataloader2.graph import DataPipe, set_graph_random_seed
from torchdata.dataloader2.graph.cutting import cut_dispatched, find_replicable_branches, skipping_as_before
from torchdata.dataloader2.graph.settings import pause_pipes, resume_pipes
from torchdata.dataloader2.graph.utils import replace_pipe
from torchdata.dataloader2.linter import warn_of_silent_findings
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.services.choosing import WorkerChoice, choose_workers, log, refuse_ranks
from torchdata.dataloader2.services.dataset_epochs import DatasetEpochs
from torchdata.dataloader2.services.interface import AskRank, ReadingServiceInterface, Resumed, Shares
from torchdata.dataloader2.services.local_shards import LocalShards
from torchdata.dataloader2.services.orders import Orders
from torchdata.dataloader2.services.program import (
    GraphProgram,
    WorkerInfo,
    function_in_use,
    refuse_functions,
    replaced_functions,
)
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.dataloader2.state.position import Shard
from torchdata.dataloader2.state.worker_positions import lasts, may_count, names_of_lasting
from torchdata.datapipes._pipe.checks import check_callable, check_int, check_optional_int
from torchdata.datapipes._pipe.graph.graph import Graph

ResetFn = Callable[[DataPipe], DataPipe]


class MultiProcessingReadingService(ReadingServiceInterface):
    """Runs the pipe graph in worker processes.

    Every worker runs a replica of the graph, and each `sharding_filter` keeps only the items of this worker. Pipes
    before a `sharding_round_robin_dispatch` run in a single *dispatching process*, which sends their items to the
    workers in turn. Pipes that return False from `is_replicable()`, and all pipes after them, stay in the main process.
    If several workers would yield the same items, a `DataPipeLintWarning` is issued (see
    `torchdata.dataloader2.linter`).

    If a worker is killed, `torchdata.dataloader2.error.WorkerExitedError` is raised within a second. Items that a
    killed worker had already sent are delivered before the error if possible. An exception in a worker is raised in the
    main process with the original type and traceback.

    With `on_worker_exit="restart"`, a new process replaces the exited process: no item is lost or repeated, and the
    order of items does not change. The replacement process recomputes the items that the main process has already
    received, and drops them after checking that they equal the received items. Restarts therefore require that the
    pipeline yields the same items every time. Each restart causes a `RuntimeWarning`. If processes exit three times at
    the same item, `WorkerExitedError` is raised with the item's number. With a dispatching process, all processes are
    replaced if one process exits. With start method "fork", a helper process forks the replacement processes. The
    helper process was forked when the loader started, so threads and CUDA that the main process uses later cause no
    problems.

    `on_timeout="restart"` replaces processes that hang, and the `RuntimeWarning` about the restart shows the Python
    stacks of these processes. A process hangs if the main process has waited `timeout` seconds for it, and no pipe of
    the process has yielded an item during this time. If a filter drops all items, the process does not hang, because
    the pipes before the filter yield items. If a function takes longer than `timeout` for one item, the process is
    considered to hang, unless `patience` is greater. Each kill at the same item doubles the timeout for this item.
    While a process starts, the timeout is at least a minute.

    Args:
        num_workers: number of worker processes; 0 (the default) runs everything in the main process. "auto" chooses the
            number of available CPU cores minus one, but at least 2 and at most 16. The chosen number of workers is
            logged, and `DataLoader2.diagnose` shows whether another number would be faster. With ranks,
            `num_workers="auto"` raises a ValueError, because all ranks need the same number of workers.
        multiprocessing_context: start method, "fork", "spawn" or "forkserver"; None for the platform's default.
        worker_prefetch_cnt: number of items that each worker prepares before they are requested, at least 0; 10 by
            default.
        main_prefetch_cnt: number of items that are prepared for the main process, divided among the workers, at least
            0; 10 by default.
        worker_init_fn: a function that is called in each worker when it starts, with the graph and its `WorkerInfo`; it
            returns the graph. None by default.
        worker_reset_fn: a function that is called in each worker and in the dispatching process at the start of an
            epoch, with the graph, the `WorkerInfo` and a `SeedGenerator`; it returns the graph. None by default.
        in_order: whether items are taken from the workers in turn, so that their order is deterministic; True by
            default. With `in_order=False`, the first ready item of any worker is taken. The dispatching process always
            sends its items to the workers in turn, regardless of `in_order`.
        memory_budget: the maximum number of bytes of shared memory for items of the workers that the program has not
            freed yet; None for a quarter of the machine's memory. Only memory that items actually use is allocated. If
            the items exceed `memory_budget`, further items are copied, which is slower.
        timeout: seconds to wait for an item before the action of `on_timeout`; None (the default) or 0 for no limit.
        on_worker_exit: "error" (the default) raises `WorkerExitedError` if a worker or the dispatching process exits.
            "restart" replaces the process that has exited. The process that replaces an exited process resumes from the
            last snapshot of the exited process.
        on_timeout: "error" (the default) raises TimeoutError after `timeout` seconds without an item. "restart" kills
            the process that hangs and replaces it. `on_timeout` applies only to processes that hang, and not to
            processes that exit.
        patience: with `on_timeout="restart"`, the timeout in seconds for processes that are busy; None (the default)
            means the value of `timeout`. A process is busy if, in the last `timeout / 2` seconds, its threads were
            running or waiting for a processor for at least a tenth of the time.
        snapshot_budget: bytes that the snapshots of all workers may use in the main process; 64 MiB by default, None
            for no limit. If the data in a worker's pipes exceed the worker's share of `snapshot_budget`, the worker
            sends snapshots only when a state is requested. If a worker without recent snapshots is restarted, the new
            worker recomputes all items since the last snapshot, or since the beginning of the epoch. To refill a cache,
            a restarted worker repeats the epoch that filled the cache. If the cached items were modified, the snapshot
            at the start of an epoch contains the cached items regardless of `snapshot_budget`.

    Raises:
        TypeError: an argument that must be an integer, a function or a bool has another type.
        ValueError: an integer is negative, the platform lacks the start method, `on_worker_exit` or `on_timeout` has an
            unknown value, `timeout` is not a number of seconds, or `patience` is less than `timeout`. ValueError is
            also raised if `on_timeout="restart"` is given without `timeout`, or `patience` without
            `on_timeout="restart"`.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(4)).sharding_filter()
        >>> with DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        ...     list(loader)
        [0, 1, 2, 3]
    """

    _full_stats = False

    def __init__(
        self,
        num_workers: int | Literal["auto"] = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None = None,
        worker_reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None = None,
        *,
        in_order: bool = True,
        memory_budget: int | None = None,
        timeout: float | None = None,
        on_worker_exit: str = "error",
        on_timeout: str = "error",
        patience: float | None = None,
        snapshot_budget: int | None = BUDGET,
    ) -> None:
        name = type(self).__name__
        if num_workers != "auto":
            check_int(name, "num_workers", num_workers, least=0)
        self._num_workers = num_workers
        if num_workers == 0:
            warnings.warn(
                "MultiProcessingReadingService with num_workers=0 runs in the main process; use "
                "InProcessReadingService instead",
                stacklevel=2,
            )
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context is not None and multiprocessing_context not in methods:
            raise ValueError(
                f"multiprocessing_context must be one of {methods} or None, not {multiprocessing_context!r}. Please "
                f"choose one available multiprocessing context from {methods}"
            )
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = check_int(name, "worker_prefetch_cnt", worker_prefetch_cnt, least=0)
        self.main_prefetch_cnt = check_int(name, "main_prefetch_cnt", main_prefetch_cnt, least=0)
        check_callable(name, "worker_init_fn", worker_init_fn, optional=True)
        check_callable(name, "worker_reset_fn", worker_reset_fn, optional=True)
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        if not isinstance(in_order, bool):
            raise TypeError(f"in_order must be True or False, not {in_order!r}")
        self.in_order = in_order
        self.memory_budget = check_optional_int(name, "memory_budget", memory_budget, least=0)
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout < math.inf):
            raise ValueError(f"timeout must be a number of seconds that is not negative, or None, not {timeout!r}")
        self.timeout = timeout or None
        check_restarts(name, on_worker_exit, on_timeout, timeout, patience)
        self.on_worker_exit, self.on_timeout, self.patience = on_worker_exit, on_timeout, patience
        self.snapshot_budget = check_optional_int(name, "snapshot_budget", snapshot_budget, least=0)
        self._children: Children | LocalShards | None = None  # None until the service is initialized
        self._choice: WorkerChoice | None = None
        #: A function that returns the shards of the epoch that the loader resumes, or None to begin a new epoch.
        self._resumed: Resumed = _none
        self._ask_rank: AskRank = _none
        self._rank: tuple[int, int, bool] = (0, 1, False)
        #: The number of shards of each epoch, over all ranks; None for one shard per worker.
        self.splits: int | None = None
        self._shards: Sequence[Shard] = ()
        self._graphs: tuple[DataPipe, DataPipe | None] | None = None
        self._worker_output: WorkerOutput | None = None
        self._end_datapipe: DataPipe | None = None
        self._dispatches = False
        #: The epoch numbers that the user has set for datasets: in the workers' graph, and in the dispatching process's
        #: graph.
        self._epochs: Sequence[DatasetEpochs] = ()

    # -- the graph ---------------------------------------------------------------------------------

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Cuts the graph that ends in `datapipe`, starts the processes, and returns the last pipe of the part that
        stays in the main process.

        Raises:
            RuntimeError: another loader uses this service.
            ValueError: the graph cannot run in workers because it has no branch for them or several branches, there are
                more ranks than `splits`, `num_workers="auto"` is combined with ranks, or
                `sharding_round_robin_dispatch` requires workers.
        """
        if self._end_datapipe is not None:
            raise RuntimeError("this reading service is in use: give each DataLoader2 its own")
        if self._num_workers == "auto":
            refuse_ranks(Graph(datapipe))
            log(self._chosen().line)
        resumed, self._rank = self._resumed(), self._ask_rank() or (0, 1, False)
        # the service drops these two callbacks of the loader, because they would keep the loader alive
        self._resumed, self._ask_rank = _none, _none
        if self.num_workers == 0 and resumed is None and self.splits is None:
            self._end_datapipe = function_in_use("process_init_fn")(datapipe, WorkerInfo(1, 0), self.worker_init_fn)
            return self._end_datapipe

        whole = Graph(datapipe)
        self._warn_of_copies(whole)
        graph, dispatching = cut_dispatched(whole)
        branches = find_replicable_branches(graph)
        if len(branches) != 1:
            raise ValueError(
                f"MultiProcessingReadingService runs one branch in its workers, but this graph has {len(branches)} "
                f"({', '.join(type(branch).__name__ for branch in branches) or 'all pipes are non-replicable'}); "
                "join the branches before the first pipe that is not replicable"
            )
        branch = graph.at(branches[0])
        self._dispatches = dispatching is not None
        self._epochs = DatasetEpochs(branch), DatasetEpochs(dispatching)
        skipping = skipping_as_before(branch, graph)
        apart = None if dispatching is None else skipping_as_before(dispatching, whole)
        self._graphs = skipping.end, None if apart is None else apart.end
        self._shards = self._own_shards() if resumed is None else resumed
        self._children = self._start(*self._graphs, self._shards)
        output = self._worker_output = WorkerOutput(
            self._children,
            lasts(branch, dispatching),
            may_count(branch, dispatching),
            self.in_order,
            names_of_lasting(branch),
            names_of_lasting(dispatching),
            self._shards,
            len(skipping.pipes),
            list(self._shards) != list(self._own_shards()),
        )
        end: DataPipe = replace_pipe(graph, branch.end, output)
        self._end_datapipe = end
        return end

    def _warn_of_copies(self, graph: Graph) -> None:
        """Warns if workers would duplicate or lose data, unless a function of the user may divide the items."""
        no_functions = self.worker_init_fn is None and self.worker_reset_fn is None
        shards = self.splits or self.num_workers
        if shards > 1 and no_functions and not replaced_functions():
            warn_of_silent_findings(graph, shards)

    def _context(self) -> BaseContext:
        return multiprocessing.get_context(self.multiprocessing_context)

    def _workers_for(self, shards: int) -> int:
        """Returns the number of workers for `shards` shards; if items are dispatched, each worker runs one shard."""
        return shards if self._dispatches else min(shards, self.num_workers)

    def _own_shards(self) -> Sequence[Shard]:
        """Returns the shards that this rank runs in a new epoch: its share of `splits` shards, or one shard for each
        worker if `splits` is None."""
        if self.splits is not None:
            rank, ranks, _ = self._rank
            if ranks > self.splits:
                raise ValueError(
                    f"{ranks} ranks cannot share {self.splits} splits: use at least as many splits as ranks"
                )
            return [Shard(split, self.splits, moved=True, splits=True) for split in range(rank, self.splits, ranks)]
        return [Shard(worker, self.num_workers) for worker in range(self.num_workers)]

    def _start(self, branch: DataPipe, dispatching: DataPipe | None, shards: Sequence[Shard]) -> Children | LocalShards:
        worker, count = self.worker_prefetch_cnt, len(shards)
        program = GraphProgram(branch, self.worker_init_fn, self.worker_reset_fn, shards)
        if self.num_workers == 0:
            if dispatching is not None:
                raise ValueError(
                    "`sharding_round_robin_dispatch` needs workers with `splits`, and to resume an epoch that workers "
                    "began: give num_workers=1 or more, or save a state between two epochs"
                )
            return LocalShards(program, count, Orders())
        number = self._workers_for(count)
        ahead = _countable(worker - (-self.main_prefetch_cnt // number))
        return Children(
            self._context(),
            number,
            program,
            None if dispatching is None else GraphProgram(dispatching, None, self.worker_reset_fn, shards[:1]),
            num_shards=count,
            window=ahead,
            dispatch_window=_countable(worker),
            memory_budget=self.memory_budget,
            in_order=self.in_order,
            timeout=self.timeout,
            full_stats=self._full_stats,
            snapshot_budget=self.snapshot_budget,
            survived=Survived.chosen(self),
            listener=Orders(),
        )

    @property
    def num_workers(self) -> int:
        """The number of worker processes, which is known before the processes start."""
        return self._chosen().number if self._num_workers == "auto" else self._num_workers

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        self._num_workers = check_int(type(self).__name__, "num_workers", number, least=0)

    def _chosen(self) -> WorkerChoice:
        if self._choice is None:
            self._choice = choose_workers()
        return self._choice

    # -- questions of the loader -------------------------------------------------------------------

    def before_initialize(self, full_stats: bool, resumed: Resumed, ranks: AskRank) -> None:
        self._full_stats, self._resumed, self._ask_rank = full_stats, resumed, ranks

    def runs_shards(self) -> bool:
        """Returns True."""
        return True

    def divide_into(self, splits: int) -> None:
        """Divides each epoch into `splits` shards, over all ranks."""
        self.splits = splits

    @classmethod
    def without_workers(cls, init_fn: Any = None, reset_fn: Any = None) -> MultiProcessingReadingService:
        """Returns a service without workers, which runs the shards of an epoch in the main process. `init_fn` and
        `reset_fn` are the functions `worker_init_fn` and `worker_reset_fn` of the service."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cls(0, worker_init_fn=init_fn, worker_reset_fn=reset_fn)

    def count_shares(self) -> Shares:
        """Returns the number of workers or splits.

        Raises:
            TypeError: a user's function may change the graph, or the number of splits depends on the rank.
        """
        refuse_functions(self, worker_init_fn=self.worker_init_fn, worker_reset_fn=self.worker_reset_fn)
        if replaced_functions():
            raise TypeError(f"{', '.join(replaced_functions())} may change the graph in the workers")
        if self.splits is not None and self._rank[1] > 1:
            raise TypeError("the number of splits depends on the rank")
        return Shares(workers=self.splits or self.num_workers)

    def has_workers(self) -> bool:
        """Returns whether worker processes run the graph."""
        return self.num_workers > 0

    def stats_notes(self) -> Sequence[str]:
        """Returns the sentence about the number of workers that was chosen for "auto"."""
        return () if self._choice is None else (self._choice.line,)

    def engine_processes(self) -> Children | None:
        """Returns the running processes; None before the service is initialized."""
        return None if isinstance(self._children, LocalShards) else self._children

    def _running(self) -> Children | LocalShards:
        self._main_graph()
        assert self._children is not None
        return self._children

    # -- epochs ------------------------------------------------------------------------------------

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Seeds the pipes in the main process from `seed_generator`, and starts the epoch in all processes, which call
        `iter_reset_fn`. Returns None."""
        end = self._initialised()
        # drawing seeds from a copy does not change the seeds of the next epoch
        set_graph_random_seed(end, copy.copy(seed_generator))
        if self._worker_output is not None:
            generator = copy.copy(seed_generator)
            # The generators are sent as bytes, because pickling a generator would call reducers that torch has
            # registered.
            in_workers, dispatching = (epochs.and_then(iter_reset_fn) for epochs in self._epochs)
            self._divide_again(self._worker_output)
            # The last seed generator is for the dispatching process, which uses only the shared seeds.
            seeds = [*(seeds_of(generator, shard) for shard in self._shards), generator.spawn(len(self._shards))]
            number = len(self._shards)
            self._worker_output.start_epoch(
                lambda index: (seeds[index].exported(), in_workers if index < number else dispatching)
            )
        return None

    def _divide_again(self, output: WorkerOutput) -> None:
        """Replaces workers that run shards of a loaded state by workers that run this loader's own shards.

        If pipes keep state between epochs, the workers are not replaced, because each saved state belongs to one shard.
        """
        own = self._own_shards()
        if not own or list(self._shards) == list(own) or output.resumes or output.lasts:
            return
        assert self._children is not None
        assert self._graphs is not None
        self._children.shutdown()
        self._shards = own
        self._children = self._start(*self._graphs, own)
        output.adopt(self._children, own)

    def finalize_iteration(self) -> None:
        """Ends the epoch, so that no process continues to read ahead."""
        if self._children is not None:
            self._children.collector.stop()

    def finalize(self) -> None:
        """Ends all processes within a limited time. Repeated calls have no effect."""
        children: Children | None = getattr(self, "_children", None)
        if children is not None:
            children.shutdown()

    # -- pausing -----------------------------------------------------------------------------------

    def _pause(self, pause_fn: ResetFn | None = None) -> None:
        """Stops prefetching in the main process and in the workers, and then applies `pause_fn` to all graphs."""
        pause_pipes(self._main_graph())
        self._running().collector.pause()
        if pause_fn is not None:
            self._running().call(pause_fn)

    def _resume(self, resume_fn: ResetFn | None = None) -> None:
        """Reverts `_pause`, in reverse order."""
        end = self._main_graph()
        if resume_fn is not None:
            self._running().call(resume_fn)
        self._running().collector.resume()
        resume_pipes(end)

    def _limit(
        self, num_batches: int | None, limit_fn: Callable[[DataPipe, int | None], DataPipe] | None = None
    ) -> None:
        """Applies `limit_fn` to the graphs of all processes; the loader itself counts the items that it delivers."""
        if limit_fn is not None:
            self._running().call(partial(_limit, limit_fn, num_batches if self._dispatches else None))
            limit_fn(self._initialised(), num_batches)

    def _main_graph(self) -> DataPipe:
        end = self._initialised()
        if self._worker_output is None:
            raise RuntimeError("MultiProcessingReadingService can pause and resume only with at least one worker")
        return end

    def _initialised(self) -> DataPipe:
        if self._end_datapipe is None:
            raise RuntimeError("the reading service was not initialised with a graph: DataLoader2 does that")
        return self._end_datapipe

    def __getstate__(self) -> dict[str, Any]:
        if self._children is not None:
            raise TypeError("a MultiProcessingReadingService with running workers can be neither pickled nor copied")
        return self.__dict__


def _limit(limit_fn: Callable[[DataPipe, int | None], DataPipe], num_batches: int | None, datapipe: DataPipe) -> None:
    limit_fn(datapipe, num_batches)


def _countable(items: int) -> int:
    """Returns the nearest number of prefetched items that the engine accepts: from 1 to `sys.maxsize`."""
    return min(max(1, items), sys.maxsize)


def _none() -> None:
    return None


def seeds_of(generator: SeedGenerator, shard: Shard) -> SeedGenerator:
    """Derives the seed generator of a shard from `generator`. For a shard that may run on any rank (`shard.moved`), the
    caller must pass a generator that is equal on all ranks."""
    if shard.splits:  # the seeds of splits are equal on all ranks
        return SeedGenerator(copy.copy(generator).generate_shared_seed()).spawn(shard.worker)
    if shard.moved and shard.ranks > 1:
        generator = generator.spawn(shard.rank)
    return copy.copy(generator) if shard.of_main else generator.spawn(shard.worker)
