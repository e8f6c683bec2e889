"""Prepares the pipe graph of a process when the process starts, and at the start of every epoch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from torchdata import _engine
from torchdata._bounded_pickles import TooLargeError, bounded
from torchdata._engine.items.torch_worker import set_worker_info
from torchdata._engine.snapshots import Taken, reason
from torchdata._engine.workers.epoch_runner import EpochRunner
from torchdata._engine.workers.program import ChildInfo, EpochProgram
from torchdata._handlers import FailuresSuppressed
from torchdata._importing import loaded
from torchdata.dataloader2.graph import DataPipe, set_datapipes_seed, set_graph_random_seed
from torchdata.dataloader2.graph.copying import replica
from torchdata.dataloader2.graph.cutting import DispatchedSource, find_non_dispatching_branches
from torchdata.dataloader2.graph.serialization import why_not
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES, apply_sharding
from torchdata.dataloader2.random.global_generators import seed_global_generators, seeded_generators
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.services.caches import Caches
from torchdata.dataloader2.services.common_parts import CommonParts
from torchdata.dataloader2.services.common_pipes import may_draw
from torchdata.dataloader2.services.watching import watched_filters
from torchdata.dataloader2.state.layout import opened, sealed
from torchdata.dataloader2.state.position import Content, Filled, Shard
from torchdata.dataloader2.state.shards import fitted
from torchdata.datapipes._pipe import random as own_random
from torchdata.datapipes._pipe import skipping as skipping_items
from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes._pipe.exchanging import LOCKS, ShardGlobals, current_generators
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe
from torchdata.datapipes._pipe.state.iteration import is_torchs
from torchdata.datapipes._pipe.state.layout import PipeEntry
from torchdata.datapipes._pipe.witnessing import Witness
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter.threads.prefetching import end_threads, pipes_with_threads, stop_reading
from torchdata.datapipes.state import entries_of, iterate, load_entries, load_generators, set_strictness, threads_paused

if TYPE_CHECKING:
    from torchdata.datapipes.datapipe import IterDataPipe

#: The module where users may replace `process_init_fn` and `process_reset_fn`.
_PUBLIC = "torchdata.dataloader2.reading_service"


@dataclass(frozen=True)
class WorkerInfo:
    """The number of this worker process, and the number of all worker processes.

    Args:
        num_workers: the number of worker processes.
        worker_id: the number of this worker process, from 0.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> def add_worker(pipe, info):
        ...     return pipe.map(lambda item: (info.worker_id, item))
        >>> service = MultiProcessingReadingService(num_workers=2, worker_init_fn=add_worker)
        >>> with DataLoader2(IterableWrapper("abcd").sharding_filter(), reading_service=service) as loader:
        ...     list(loader)
        [(0, 'a'), (1, 'b'), (0, 'c'), (1, 'd')]
    """

    num_workers: int
    worker_id: int


def process_init_fn(
    datapipe: DataPipe,
    worker_info: WorkerInfo,
    custom_init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None = None,
    worker_prefetch_cnt: int = 0,
    dispatching_req_queue: None = None,
    dispatching_res_queue: None = None,
) -> DataPipe:
    """Prepares a graph for a worker: shards the graph, calls the user's function, and adds a `prefetch` pipe.

    Pipes that read dispatched items are not sharded, because these items are already divided among the workers.

    Args:
        datapipe: the last pipe of the graph.
        worker_info: the number of this worker, and the number of workers.
        custom_init_fn: a function that is called with the sharded graph and `worker_info`, and returns the pipe to
            read; None by default.
        worker_prefetch_cnt: number of items that a thread of this process reads ahead; 0 (the default) for no thread.
        dispatching_req_queue: must be None; a `DispatchedSource` in the graph replaces the queues.
        dispatching_res_queue: must be None; a `DispatchedSource` in the graph replaces the queues.

    Returns:
        The pipe to read.

    Raises:
        TypeError: `custom_init_fn` did not return a pipe.
        ValueError: a queue was given.

    Example:
        >>> from torchdata.dataloader2.reading_service import WorkerInfo, process_init_fn
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(6)).sharding_filter()
        >>> list(process_init_fn(pipe, WorkerInfo(num_workers=3, worker_id=1)))
        [1, 4]
    """
    if dispatching_req_queue is not None or dispatching_res_queue is not None:
        raise ValueError(
            "dispatching_req_queue and dispatching_res_queue must be None: items of the dispatching process arrive "
            "through a DispatchedSource pipe in the graph, not through queues"
        )
    graph = Graph(datapipe)
    for branch in find_non_dispatching_branches(graph):
        apply_sharding(
            graph.at(branch), worker_info.num_workers, worker_info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING
        )
    if custom_init_fn is not None:
        datapipe = _require_pipe(custom_init_fn(datapipe, worker_info), "worker_init_fn", custom_init_fn)
    if worker_prefetch_cnt > 0:
        datapipe = cast("IterDataPipe[Any]", datapipe).prefetch(worker_prefetch_cnt)
    return datapipe


def process_reset_fn(
    datapipe: DataPipe,
    worker_info: WorkerInfo,
    seed_generator: SeedGenerator,
    distributed_shared_seed: bool = False,
    iter_reset_fn: Callable[[DataPipe], DataPipe] | None = None,
    custom_reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None = None,
) -> DataPipe:
    """Prepares a graph for an epoch: seeds the global generators of the process and the pipes, then calls
    `iter_reset_fn` and `custom_reset_fn`.

    Args:
        datapipe: the last pipe of the graph.
        worker_info: the number of this worker, and the number of workers.
        seed_generator: the generator for drawing seeds; each worker has one (`SeedGenerator.spawn`).
        distributed_shared_seed: whether all seeds are drawn from the stream that workers and ranks share; False by
            default. The dispatching process passes True.
        iter_reset_fn: the reset function of the preceding reading service, for example of a
            `DistributedReadingService`; None by default.
        custom_reset_fn: the user's reset function, which is called last; None by default.

    Returns:
        The pipe to read.

    Raises:
        TypeError: `iter_reset_fn` or `custom_reset_fn` did not return a pipe.

    Example:
        >>> from torchdata.dataloader2.random import SeedGenerator
        >>> from torchdata.dataloader2.reading_service import WorkerInfo, process_reset_fn
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe, info = IterableWrapper(range(100)).shuffle(), WorkerInfo(num_workers=1, worker_id=0)
        >>> first = list(process_reset_fn(pipe, info, SeedGenerator(7)))
        >>> first == list(process_reset_fn(pipe, info, SeedGenerator(7)))
        True
    """
    seed_global_generators(seed_generator, distributed_shared_seed)
    if distributed_shared_seed:
        set_datapipes_seed(Graph(datapipe).breadth_first(), seed_generator, distributed_shared=True)
    else:
        set_graph_random_seed(datapipe, seed_generator)
    if iter_reset_fn is not None:
        datapipe = _require_pipe(iter_reset_fn(datapipe), "iter_reset_fn", iter_reset_fn)
    if custom_reset_fn is not None:
        reset = custom_reset_fn(datapipe, worker_info, seed_generator)
        datapipe = _require_pipe(reset, "worker_reset_fn", custom_reset_fn)
    return datapipe


def function_in_use(name: str) -> Callable[..., Any]:
    """Returns the function `name` of `reading_service`, or the user's function that has replaced it there."""
    public = loaded(_PUBLIC)  # a process that has not imported the public module cannot have replaced its functions
    function: Callable[..., Any] = globals()[name] if public is None else getattr(public, name)
    return function


def replaced_functions() -> dict[str, Callable[..., Any]]:
    """Returns the user's functions that have replaced functions of `reading_service`. Spawned processes import the
    original functions, so the user's functions must be sent to spawned processes.
    """
    ours = {"process_init_fn": process_init_fn, "process_reset_fn": process_reset_fn}
    return {name: function_in_use(name) for name in ours if function_in_use(name) is not ours[name]}


def refuse_functions(service: Any, **functions: Callable[..., Any] | None) -> None:
    """Raises TypeError if a function is given, because a user's function may change the graph."""
    for name, function in functions.items():
        if function is not None:
            raise TypeError(f"{name} of the {type(service).__name__} may change the graph")


class _Share(NamedTuple):
    """A worker's position in the items that the dispatching process sends to it.

    Args:
        number: the worker's current iteration over the dispatched items, from 1; 0 without dispatched items.
        is_read_out: whether the worker has read all dispatched items.
    """

    number: int
    read: tuple[int, int] = (0, 0)
    is_read_out: bool = False


class GraphProgram(EpochProgram):
    runner: ClassVar[type[EpochRunner]] = EpochRunner
    globals: ShardGlobals

    def __init__(
        self,
        datapipe: DataPipe,
        init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None,
        reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None,
        shards: Sequence[Shard],
    ) -> None:
        self.shards = shards
        self.datapipe = datapipe
        self.init_fn = init_fn
        self.reset_fn = reset_fn
        self.replaced = replaced_functions()
        self._witness: Witness | None = None
        self._passes = 0
        self._common, self._index = CommonParts(is_alone=True), 0
        #: Keeps this shard's threads stopped while another shard runs, because these threads draw random numbers.
        self._held = ExitStack()
        #: The pipes with threads; None until the graph has been searched for them.
        self._reading_ahead: list[Any] | None = None
        self._graph: Graph | None = None
        #: The graph that replaces the current graph in the next epoch.
        self._successor: DataPipe | None = None
        #: The reason why no snapshot can be made in this epoch.
        self._unsaved: Exception | None = None
        self._saved = False
        #: Whether `set_strictness` has made all pipes compare reread items with the original items. The first epoch
        #: calls it, because the user's graph may arrive with pipes that do not compare items.
        self._is_strict = False
        self._is_beyond_share = False
        #: The iterator of the running epoch, and the number of items that the graph had yielded when this iterator was
        #: created.
        self._running: tuple[Iterator[Any], int] | None = None
        self._watched: tuple[DataPipe, list[tuple[Any, str]]] | None = None

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        from torchdata._by_value import dumps

        return (
            f"{why_not(self.datapipe, 'pickled', dumps, error)}. Start method {start_method!r} pickles it: create "
            "files, locks and connections in the worker, inside `__iter__`, or leave them out by `__getstate__`"
        )

    def replicas(self, count: int) -> list[EpochProgram]:
        self._common = CommonParts(is_alone=count == 1)
        graphs = [replica(self.datapipe) for _ in range(count - 1)]
        others = [GraphProgram(graph, self.init_fn, self.reset_fn, self.shards) for graph in graphs]
        for index, each in enumerate(others, 1):
            each._common, each._index = self._common, index
        return [self, *others]

    def enter(self) -> None:
        """Switches the worker number and the random generators of the process to this shard."""
        # torch may have been imported while another shard ran, so the worker info of this shard is set
        if not self.globals.enter() and "torch.utils.data" in sys.modules:
            self._set_worker_info()
        if self._reading_ahead:
            self._held.close()

    def leave(self) -> None:
        """Saves the random generators of this shard, stops its threads, and releases its locks."""
        if self._reading_ahead is None:
            self._reading_ahead = pipes_with_threads(self.datapipe)
        for pipe in self._reading_ahead:
            with FailuresSuppressed(TimeoutError):  # a thread that takes too long for an item continues to run
                self._held.enter_context(pipe.threads_paused())
        if (locks := loaded(LOCKS)) is not None:
            locks.release_all_of(None)  # another shard may need the files, and this shard's threads have stopped
        self.globals.leave(is_all=not self._reading_ahead and locks is None)

    def _search_again(self) -> None:
        self._reading_ahead, self._graph, self.globals.is_all = None, None, False

    def _running_graph(self) -> Graph:
        """Returns the graph of the running iteration. If no pipe of the user can change its sources, the graph is
        stored for further calls."""
        graph = self._graph or Graph(self.datapipe)
        if self._graph is None and all(type(pipe).__module__.startswith("torchdata.") for pipe in graph):
            self._graph = graph
        return graph

    def prepare(self, child: ChildInfo) -> None:
        self._child, self._shard, self.globals = child, self.shards[child.worker_id], ShardGlobals()
        self._caches = Caches(child.largest_snapshot)
        self._info = WorkerInfo(self._shard.workers, self._shard.worker)
        skipping_items.worker = "dispatch" if child.dispatches else self._shard.worker
        if child.dispatches:
            return
        if self._shard.moved:
            apply_sharding(Graph(self.datapipe), self._shard.ranks, self._shard.rank, SHARDING_PRIORITIES.DISTRIBUTED)
        for source in filter(_is_dispatched, Graph(self.datapipe)):
            source.open_stream = child.open_dispatched
            source.share = child.share
        self._set_worker_info()
        own_random.is_replica = True
        # All arguments are given, even if they are None, because a user's replacement of `process_init_fn` may require
        # them.
        self.datapipe = self._in_use("process_init_fn")(
            self.datapipe,
            worker_info=self._info,
            custom_init_fn=self.init_fn,
            worker_prefetch_cnt=0,
            dispatching_req_queue=None,
            dispatching_res_queue=None,
        )

    def begin_epoch(self, seeds: bytes, iter_reset_fn: Callable[[DataPipe], DataPipe] | None) -> None:
        self._begin_left_epoch()
        self._passes, self._unsaved, self._saved, self._is_beyond_share = 0, None, False, False
        skipping_items.epoch = self.epoch
        stop_reading(self.datapipe)
        if self._successor is not None:
            self.datapipe, self._successor = self._successor, None
        self.datapipe = self._in_use("process_reset_fn")(
            self.datapipe,
            self._info,
            SeedGenerator.imported(seeds),
            distributed_shared_seed=self._child.dispatches,
            iter_reset_fn=iter_reset_fn,
            custom_reset_fn=self.reset_fn,
        )
        if self._shard.of_main:  # the main process drew no seeds for global generators before the seeds of the pipes
            set_graph_random_seed(self.datapipe, SeedGenerator.imported(seeds))
        self._search_again()
        # Only an epoch without dispatched items and without an `iter_reset_fn` can be repeated.
        is_alone = not self._child.dispatches and self._child.share is None
        self._caches.begin(self.datapipe, seeds if is_alone and iter_reset_fn is None else None)
        self._begun_with = seeds, iter_reset_fn
        if not self._child.dispatches:
            self._set_worker_info()
            self._watch_order()
            self._begin_common_part(seeds)

    def _begin_left_epoch(self) -> None:
        """Computes the first item of the last epoch, if the program abandoned that epoch before this shard computed an
        item.

        A user's pipe may count its epochs when it computes its first item. If some shards skipped the first item of an
        epoch, their pipes would count fewer epochs than the pipes of other shards.
        """
        if self._running is not None and self._is_unread() and any(map(may_draw, Graph(self.datapipe))):
            with FailuresSuppressed():  # the error belongs to the epoch that was left
                next(self._running[0], None)
        self._running = None

    def end_epoch(self, has_failed: bool) -> None:
        if has_failed or not self._is_unread():
            self._running = None  # the iterator may have open files

    def _is_unread(self) -> bool:
        """Returns whether this shard's iterator exists but has not yielded an item; False if a dispatching process is
        used."""
        if self._running is None or self._child.dispatches or self._child.share is not None:
            return False
        return _yielded(self.datapipe) == self._running[1]

    def _begin_common_part(self, seeds: bytes) -> None:
        """Runs pipes once for all shards if the number of shards is fixed and no user function may change a shard's
        pipes.
        """
        if self._shard.splits and not self.replaced and self.init_fn is None and self.reset_fn is None:
            seed = partial(self._seed_common_part, seeds)
            self._common.begin(self.datapipe, seed, self._set_worker_info, is_first=self._index == 0)

    def close(self) -> None:
        self._common.close()
        end_threads(self.datapipe)

    def _seeded_generators(self) -> dict[str, Any]:
        """Returns the global generators' states right after seeding, which snapshots omit if they are unchanged."""
        return seeded_generators(self._begun_with[0], self._child.dispatches)

    def _seed_common_part(self, seeds: bytes, number: int) -> None:
        generator = SeedGenerator(SeedGenerator.imported(seeds).generate_shared_seed()).spawn(number)
        seed_global_generators(generator, shared=False)
        set_worker_info(0, 1, self.datapipe, is_local=_engine.current_sender is None)

    def _set_worker_info(self) -> None:
        if not self._shard.of_main:
            is_local = _engine.current_sender is None
            set_worker_info(self._shard.worker, self._shard.workers, self.datapipe, is_local=is_local)

    def _watch_order(self) -> None:
        """Makes each `sharding_filter` record samples of its items, so that the main process can compare the orders of
        all workers."""
        self._watch_with(None)
        if self._child.num_workers > 1:
            if self._watched is None or self._watched[0] is not self.datapipe:
                seeded = not self.replaced and self.init_fn is None and self.reset_fn is None
                self._watched = self.datapipe, watched_filters(Graph(self.datapipe), is_seeded=seeded)
            if self._watched[1]:
                self._watch_with(Witness(self._watched[1]))

    def _watch_with(self, witness: Witness | None) -> None:
        self._witness = witnessing.current = witness

    def note(self) -> object:
        return None if self._witness is None else self._witness.notes()

    def snapshot(self, most: int | None = None, *, begins: bool = False, waits: bool = True) -> Taken | None:
        """Returns a snapshot of the shard. Returns None if the graph cannot be saved, if a pipe is rereading the epoch,
        if omitted cached items may have been modified, or if a thread is busy and `waits` is false.

        Raises TooLargeError if the state has more than `most` bytes.
        """
        caches = self._caches
        if self._unsaved is not None or self._passes > 1 or not caches.may_snapshot(begins):
            return None
        filled = caches.filled(begins)
        if not begins and filled is not None:
            most = self._child.largest_snapshot  # larger caches can be refilled from seeds
        try:
            graph = self._running_graph()
            # The threads of pipes are stopped during the snapshot, because they draw random numbers, too.
            with threads_paused(graph.pipes, None if waits else 0.0), caches.left_out(), bounded(most):
                seeded = None if self.replaced else self._seeded_generators()
                entries, generators = entries_of(graph), current_generators(seeded)
            share = self._share_in(graph, entries)
            if share is None:
                return None
            with bounded(most):
                content = sealed(Content(entries, generators, share.is_read_out, filled))
            if begins:
                caches.note_start(content)
            self._saved = True
            return share.number, share.read, content
        except TooLargeError:
            raise
        except Exception as error:
            if not waits:
                return None
            self._unsaved = error
            # If no snapshot can be taken, the main process uses the worker's last snapshot of the epoch. If the epoch
            # has no earlier snapshot, the main process receives the reason for the missing snapshot.
            return None if self._saved else (int(self._child.share is not None), (0, 0), reason(error))

    def _share_in(self, graph: Graph, entries: Sequence[PipeEntry]) -> _Share | None:
        """Returns how many dispatched items the graph had read, according to its saved states `entries`; None if this
        is unknown."""
        if self._child.share is None:
            return _Share(0)
        reached, read = self._child.share()
        if reached > 1:
            return None
        source = graph.first(_is_dispatched)
        if source is None or reached == 0:
            # A resumed graph that yields buffered items may have read no dispatched item yet.
            return _Share(1, read)
        entry = entries[graph.index(source)]
        if entry.restores and not entry.finished:
            items, checksum = (entry.state or {})["share"]
            return _Share(1, (items, checksum))
        replayed = (pipe for pipe, each in zip(graph, entries, strict=True) if each.drop is not None)
        if any(source in graph.at(pipe) for pipe in replayed):
            return None if entry.restores else _Share(1)
        if self._is_beyond_share or token_of(source).finished:
            return _Share(1, read, is_read_out=True)
        return _Share(2)  # the first iteration over the dispatched items ended early

    def resume_from(self, snapshot: bytes | None, strict: bool = True) -> Iterator[Any]:
        if not (strict and self._is_strict):
            set_strictness(self._running_graph(), strict)
            self._is_strict = strict
        self._passes += 1
        if snapshot is None:
            return self._iterate()
        saved = opened(snapshot, "the snapshot of a worker")
        self._caches.resume(saved.filled, snapshot)
        cached = None if saved.filled is None or saved.filled.checksum is None else self._refilled(saved.filled)
        self._watch_with(None)  # filters of other workers may be in another iteration
        self._passes, self._saved = 1, True
        return self._resume(saved, cached, strict)

    def _refilled(self, filled: Filled) -> list[Any]:
        """Repeats the epoch that filled the caches, and returns the cached items, which the snapshot does not
        contain."""
        running = self._begun_with
        self.begin_epoch(filled.seeds, None)
        start = filled.start
        repeated = self._iterate() if start is None else self._resume(opened(start, "the snapshot of a worker"))
        deque(repeated, maxlen=0)
        cached = self._caches.values(self.datapipe)
        self.begin_epoch(*running)
        return cached

    def _iterate(self) -> Iterator[Any]:
        iterator = iterate(self.datapipe)
        self._caches.note_iterator(self.datapipe)
        self._running = iterator, _yielded(self.datapipe)
        return iterator

    def _resume(self, saved: Content, cached: list[Any] | None = None, strict: bool = True) -> Iterator[Any]:
        entries = saved.entries or ()
        if saved.read_out and self._child.share is not None:
            self._read_share_out()  # before the state is loaded, because a new epoch may interrupt this call
        if self._shard.of_main:
            self.datapipe, entries = fitted(self.datapipe, entries)
            self._search_again()
        if saved.entries is not None:
            load_entries(self.datapipe, entries)
        if saved.filled is not None and cached is not None:
            self._caches.put_back(saved.filled, cached, strict)
        # The generators are set before `_iterate` starts threads, because these threads draw random numbers.
        if saved.generators or not self.replaced:  # a function of the program may have seeded the generators otherwise
            load_generators(saved.generators or self._seeded_generators())
        if saved.read_out and self._child.share is None and not entries[-1].finished:
            return iter(())  # the saved epoch had ended, although these pipes have not noted its end
        return self._iterate()

    def _read_share_out(self) -> None:
        """Makes the dispatching process finish the epoch, because the end of an epoch may change the state of its
        pipes. Raises RuntimeError if the dispatching process sends a further item.
        """
        source = Graph(self.datapipe).first(_is_dispatched)
        for _ in source.open_stream():
            raise RuntimeError(
                "this pipeline does not repeat itself, so it cannot resume from the state: the dispatching process "
                "distributes more items than were read before the state was saved"
            )
        self._is_beyond_share = True

    def call(self, function: Callable[[DataPipe], DataPipe | None]) -> None:
        """Applies `function` to the graph. A pipe that `function` returns replaces the graph in the next epoch."""
        self._watched = None
        self._caches.note_call()
        self._search_again()
        replaced = function(self.datapipe if self._successor is None else self._successor)
        if replaced is not None:
            self._successor = replaced  # until the next epoch, snapshots are taken of the running graph

    def _in_use(self, name: str) -> Callable[..., Any]:
        return self.replaced.get(name) or function_in_use(name)


def _yielded(pipe: Any) -> int:
    return int(pipe._number_of_samples_yielded) if is_torchs(pipe) else token_of(pipe).yielded


def _is_dispatched(pipe: Any) -> bool:
    return isinstance(pipe, DispatchedSource)


def _require_pipe(result: Any, argument: str, function: Any) -> DataPipe:
    if not is_pipe(result):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{argument} must return the pipe to read, but {name} returned {result!r}; end it with `return datapipe`"
        )
    pipe: DataPipe = result
    return pipe
