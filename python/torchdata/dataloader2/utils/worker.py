"""What a process does to its copy of the pipe graph: once when it starts, and at the start of every epoch.

Role: called by the reading services, in the workers and in the dispatching process of a multi-process service
and in the main process of an in-process one. They own the graph; the functions here return the pipe to read.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, cast

from torchdata.dataloader2.graph import (
    DataPipe,
    list_dps,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
)
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES, apply_sharding
from torchdata.dataloader2.utils.dispatch import find_non_dispatching_branches
from torchdata.dataloader2.utils.late_seeding import seed_when_imported
from torchdata.dataloader2.utils.torch_seeding import seed_torch
from torchdata.datapipes._traversal import is_pipe

if TYPE_CHECKING:
    from torchdata.dataloader2.random import SeedGenerator
    from torchdata.datapipes.datapipe import IterDataPipe

__all__ = ["WorkerInfo", "process_init_fn", "process_reset_fn"]


@dataclass(frozen=True)
class WorkerInfo:
    """Which of how many worker processes this one is.

    Args:
        num_workers: the number of worker processes.
        worker_id: the number of this one, from 0.
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
    """Prepares a graph for the process that reads it: shards it, lets the user change it, prefetches.

    Branches that read from the dispatching process are not sharded: their items are dealt out already.

    Args:
        datapipe: the last pipe of the graph.
        worker_info: which of how many processes this one is.
        custom_init_fn: called with the sharded graph and `worker_info`; returns the pipe to read.
        worker_prefetch_cnt: how many items a thread of this process reads ahead; 0 for no thread.
        dispatching_req_queue: must be None; a `DispatchedSource` in the graph takes the place of the queues.
        dispatching_res_queue: must be None, likewise.

    Returns:
        The pipe to read.

    Raises:
        TypeError: `custom_init_fn` did not return a pipe.
        ValueError: a queue was given.
    """
    if dispatching_req_queue is not None or dispatching_res_queue is not None:
        raise ValueError(
            "dispatching_req_queue and dispatching_res_queue must be None: items of the dispatching process "
            "arrive "
            "through a DispatchedSource pipe in the graph, not through queues"
        )
    for branch in find_non_dispatching_branches(traverse_dps(datapipe)):
        apply_sharding(
            branch, worker_info.num_workers, worker_info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING
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
    """Prepares a graph for an epoch: seeds the process' global generators and the pipes, then calls the
    hooks.

    Args:
        datapipe: the last pipe of the graph.
        worker_info: which of how many processes this one is.
        seed_generator: where seeds are drawn, spawned with the worker's id.
        distributed_shared_seed: whether all seeds are those that workers and ranks share, as in the
            dispatching process, which exists once.
        iter_reset_fn: the reset function of the reading services before this one.
        custom_reset_fn: the user's reset function, called last.

    Returns:
        The pipe to read.

    Raises:
        TypeError: one of the two functions did not return a pipe.
    """
    _seed_global_generators(seed_generator, distributed_shared_seed)
    if distributed_shared_seed:
        set_datapipes_seed(list_dps(traverse_dps(datapipe)), seed_generator, distributed_shared=True)
    else:
        set_graph_random_seed(datapipe, seed_generator)
    if iter_reset_fn is not None:
        datapipe = _require_pipe(iter_reset_fn(datapipe), "iter_reset_fn", iter_reset_fn)
    if custom_reset_fn is not None:
        reset = custom_reset_fn(datapipe, worker_info, seed_generator)
        datapipe = _require_pipe(reset, "worker_reset_fn", custom_reset_fn)
    return datapipe


def _seed_global_generators(seed_generator: SeedGenerator, shared: bool) -> None:
    """Seeds `random`, and torch and NumPy: now where they are loaded, in a child else when they are imported.

    Always draws three seeds, so that what the pipes get does not depend on which libraries a process has
    loaded.
    """
    draw = seed_generator.generate_shared_seed if shared else seed_generator.generate_seed
    python_seed, torch_seed, numpy_seed = draw(), draw(), draw()
    random.seed(python_seed)
    awaited: dict[str, Callable[[Any], object]] = {}
    torch = sys.modules.get("torch")
    if torch is not None:
        seed_torch(torch, torch_seed)
    else:
        awaited["torch"] = lambda torch: torch.manual_seed(torch_seed)
    numpy_random = sys.modules.get("numpy.random")  # which NumPy itself imports late
    if numpy_random is not None:
        numpy_random.seed(numpy_seed >> 32)  # the legacy generator takes 32 bits
    else:
        awaited["numpy.random"] = lambda numpy_random: numpy_random.seed(numpy_seed >> 32)
    if parent_process() is not None:  # main's imports are the user's
        seed_when_imported(awaited)


def _require_pipe(result: Any, argument: str, function: Any) -> DataPipe:
    if not is_pipe(result):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{argument} must return the pipe to read, but {name} returned {result!r}; end it with `return "
            "datapipe`"
        )
    pipe: DataPipe = result
    return pipe
