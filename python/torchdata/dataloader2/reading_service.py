"""Reading services: how a loader runs its pipe graph.

Role: the public place of all services, and the service that runs the graph in the main process.

`process_init_fn` and `process_reset_fn` are attributes of this module that services look up here at the time
of the call, so that users may put functions of their own in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torchdata.dataloader2._distributed import DistributedReadingService
from torchdata.dataloader2._interface import (
    CheckpointableReadingServiceInterface,
    IterResetFn,
    ReadingServiceInterface,
)
from torchdata.dataloader2._multiprocessing import MultiProcessingReadingService
from torchdata.dataloader2._sequential import SequentialReadingService
from torchdata.dataloader2.graph import DataPipe, list_dps, set_graph_random_seed, traverse_dps
from torchdata.dataloader2.graph.utils import has_method
from torchdata.dataloader2.utils import WorkerInfo, process_init_fn, process_reset_fn

if TYPE_CHECKING:
    from torchdata.dataloader2.random import SeedGenerator
    from torchdata.datapipes.datapipe import IterDataPipe

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "WorkerInfo",
    "process_init_fn",
    "process_reset_fn",
]

_InitFn = Callable[[DataPipe, WorkerInfo], DataPipe]
_ResetFn = Callable[[DataPipe, WorkerInfo, "SeedGenerator"], DataPipe]

_ONLY_WORKER = WorkerInfo(1, 0)


def pause_pipes(datapipe: DataPipe) -> None:
    """Calls `pause()` of all pipes of the graph that have it, the last pipe first."""
    for pipe in list_dps(traverse_dps(datapipe)):
        if has_method(pipe, "pause"):
            pipe.pause()


def resume_pipes(datapipe: DataPipe) -> None:
    """Calls `resume()` of all pipes of the graph that have it, the last pipe last."""
    for pipe in reversed(list_dps(traverse_dps(datapipe))):
        if has_method(pipe, "resume"):
            pipe.resume()


class InProcessReadingService(ReadingServiceInterface):
    """Runs the pipe graph in the main process and controls its randomness.

    The global random generators of the main process are left alone: they belong to the user.

    Args:
        prefetch_cnt: how many items a thread reads ahead at the end of the graph; 0 for none.
        init_fn: called once with the graph and a `WorkerInfo` before the first epoch; returns the pipe to
            read.
        reset_fn: called with the graph, a `WorkerInfo` and the `SeedGenerator` at the start of each epoch,
            after the pipes were seeded; returns the pipe to read.

    Raises:
        TypeError: `prefetch_cnt` is no integer, or a function cannot be called.
        ValueError: `prefetch_cnt` is negative.
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: _InitFn | None = None,
        reset_fn: _ResetFn | None = None,
    ) -> None:
        if not isinstance(prefetch_cnt, int):
            raise TypeError(f"prefetch_cnt is a number of items, but got {prefetch_cnt!r}")
        if prefetch_cnt < 0:
            raise ValueError(
                f"prefetch_cnt is a number of items and cannot be negative, but got {prefetch_cnt}"
            )
        for name, function in (("init_fn", init_fn), ("reset_fn", reset_fn)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, but got {function!r}")
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._end_datapipe: DataPipe | None = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Shards the graph (there is one share), calls `init_fn` and appends the prefetching thread."""
        datapipe = process_init_fn(datapipe, _ONLY_WORKER, self._init_fn)
        if self._prefetch_cnt > 0:
            datapipe = cast("IterDataPipe[Any]", datapipe).prefetch(self._prefetch_cnt)
        self._end_datapipe = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Seeds the pipes; returns the given reset function, followed by `reset_fn` if there is one."""
        set_graph_random_seed(self._end("initialize_iteration"), seed_generator)
        if self._reset_fn is None:
            return iter_reset_fn
        return partial(_reset, self._reset_fn, seed_generator, iter_reset_fn)

    @property
    def keeps_graph(self) -> bool:
        """Whether no function of the user's may change the graph."""
        return self._init_fn is None and self._reset_fn is None

    def set_prefetch_counts(self, main: int | None, worker: int | None) -> None:
        """Sets `prefetch_cnt` to `main`; there are no workers."""
        if main is not None:
            self._prefetch_cnt = main

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
    """The reset function of an in-process service; a function of the module, so that it pickles."""
    if iter_reset_fn is not None:
        datapipe = iter_reset_fn(datapipe)
    return reset_fn(datapipe, _ONLY_WORKER, seed_generator)


class PrototypeMultiProcessingReadingService(ReadingServiceInterface):
    """The former name of `MultiProcessingReadingService`, which it makes, with a warning."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a `MultiProcessingReadingService` of the same arguments."""
        warnings.warn(
            "`PrototypeMultiProcessingReadingService` is deprecated; use `MultiProcessingReadingService`, "
            "which takes "
            "the same arguments.",
            FutureWarning,
            stacklevel=2,
        )
        return MultiProcessingReadingService(*args, **kwargs)
