"""`InProcessReadingService`: runs the pipe graph in the main process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torchdata.dataloader2.graph import DataPipe, set_graph_random_seed
from torchdata.dataloader2.graph.settings import pause_pipes, resume_pipes
from torchdata.dataloader2.graph.utils import replace_pipe
from torchdata.dataloader2.services.interface import IterResetFn, ReadingServiceInterface, Shares
from torchdata.dataloader2.services.program import WorkerInfo, function_in_use, refuse_functions
from torchdata.datapipes._pipe.checks import check_callable, check_int
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter.threads.synchronizing import FullSync

if TYPE_CHECKING:
    from torchdata.dataloader2.random.seed_generator import SeedGenerator
    from torchdata.datapipes.datapipe import IterDataPipe

_InitFn = Callable[[DataPipe, WorkerInfo], DataPipe]
_ResetFn = Callable[[DataPipe, WorkerInfo, "SeedGenerator"], DataPipe]

_NAME = "InProcessReadingService"
_ONLY_WORKER = WorkerInfo(1, 0)


class InProcessReadingService(ReadingServiceInterface):
    """Runs the pipe graph in the main process and seeds its pipes.

    The global random generators of the main process belong to the user and are not changed.

    Args:
        prefetch_cnt: number of items that a thread at the end of the graph reads ahead; 0 (the default) for no thread.
        init_fn: a function that is called once before the first epoch, with the graph and a `WorkerInfo`; it returns
            the pipe to read. None for no function.
        reset_fn: a function that is called at the start of each epoch, after the pipes were seeded, with the graph, a
            `WorkerInfo` and the `SeedGenerator`; it returns the pipe to read. None for no function.

    Raises:
        TypeError: `prefetch_cnt` is not an integer, or a function cannot be called.
        ValueError: `prefetch_cnt` is negative.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, InProcessReadingService
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(DataLoader2(IterableWrapper(range(3)), reading_service=InProcessReadingService(prefetch_cnt=2)))
        [0, 1, 2]
    """

    def __init__(self, prefetch_cnt: int = 0, init_fn: _InitFn | None = None, reset_fn: _ResetFn | None = None) -> None:
        check_int(_NAME, "prefetch_cnt", prefetch_cnt, least=0)
        check_callable(_NAME, "init_fn", init_fn, optional=True)
        check_callable(_NAME, "reset_fn", reset_fn, optional=True)
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._end_datapipe: DataPipe | None = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Applies sharding with a single worker to the graph that ends in `datapipe`, calls `init_fn`, and adds the
        prefetching thread if requested. Returns the last pipe of the graph."""
        datapipe = function_in_use("process_init_fn")(datapipe, _ONLY_WORKER, self._init_fn)
        if self._prefetch_cnt > 0:
            datapipe = self._with_prefetching(datapipe)
        self._end_datapipe = datapipe
        return datapipe

    def _with_prefetching(self, datapipe: DataPipe) -> DataPipe:
        """Appends a pipe with a thread that reads the graph ahead. If the last pipe is `fullsync`, the thread is
        inserted before it, because pausing a thread after `fullsync` would wait for other ranks.
        """
        if not isinstance(datapipe, FullSync):
            return cast("IterDataPipe[Any]", datapipe).prefetch(self._prefetch_cnt)
        source: Any = datapipe.source_datapipe
        end: DataPipe = replace_pipe(Graph(datapipe), source, source.prefetch(self._prefetch_cnt))
        return end

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Seeds the pipes from `seed_generator`. Returns a function that applies `iter_reset_fn` and then the user's
        `reset_fn`; without a `reset_fn`, returns `iter_reset_fn`."""
        # Seeds are drawn from a copy of the generator, so that the draws do not change the next epoch's seeds.
        seed_generator = copy.copy(seed_generator)
        set_graph_random_seed(self._end("initialize_iteration"), seed_generator)
        if self._reset_fn is None:
            return iter_reset_fn
        return partial(_reset, self._reset_fn, seed_generator, iter_reset_fn)

    def with_shards(self) -> ReadingServiceInterface:
        """Returns a service that calls `init_fn` and `reset_fn` for each shard."""
        from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService

        return MultiProcessingReadingService.without_workers(self._init_fn, self._reset_fn)

    def count_items(self, datapipe: DataPipe) -> int | None:
        """Returns the length of `datapipe`, or None if a function of the user may still change the graph."""
        keeps_graph = self._init_fn is None and self._reset_fn is None
        return len(cast("Any", datapipe)) if keeps_graph or self._end_datapipe is not None else None

    def count_shares(self) -> Shares:
        """Returns a single share."""
        refuse_functions(self, init_fn=self._init_fn, reset_fn=self._reset_fn)
        return Shares()

    def _end(self, method: str) -> DataPipe:
        if self._end_datapipe is None:
            raise RuntimeError(f"InProcessReadingService.initialize must be called before {method}")
        return self._end_datapipe

    def _pause(self, pause_fn: IterResetFn | None = None) -> IterResetFn | None:
        pause_pipes(self._end("_pause"))
        return None

    def _resume(self, resume_fn: IterResetFn | None = None) -> IterResetFn | None:
        resume_pipes(self._end("_resume"))
        return None

    def _limit(
        self, num_batches: int | None, limit_fn: Callable[[DataPipe, int | None], Any] | None = None
    ) -> Callable[[DataPipe, int | None], Any] | None:
        if limit_fn is not None:
            limit_fn(self._end("_limit"), num_batches)
        return None


def _reset(
    reset_fn: _ResetFn, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None, datapipe: DataPipe
) -> DataPipe:
    if iter_reset_fn is not None:
        datapipe = iter_reset_fn(datapipe)
    return reset_fn(datapipe, _ONLY_WORKER, seed_generator)
