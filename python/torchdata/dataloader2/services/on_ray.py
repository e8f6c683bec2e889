"""`RayReadingService`: the workers of a `MultiProcessingReadingService` on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchdata._engine.workers.epochs import Children
from torchdata._optional import require
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.services.local_shards import LocalShards
from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService
from torchdata.dataloader2.services.program import WorkerInfo
from torchdata.dataloader2.state.position import Shard
from torchdata.datapipes._pipe.checks import check_int

_NAME = "RayReadingService"
#: The default number of items that a worker prepares in advance is high, because a message to another machine takes
#: milliseconds.
_AHEAD = 1_000
#: Options of Ray actors that users must not set, and why.
_OWN = {
    "concurrency_groups": "the service sets this option itself",
    "max_concurrency": "the service sets this option itself",
    "max_restarts": "on_worker_exit determines what happens when a worker exits",
    "max_task_retries": "on_worker_exit determines what happens when a worker exits",
    "lifetime": "the loader ends its actors",
    "name": "each worker has an actor of its own",
    "get_if_exists": "each worker has an actor of its own",
}


class RayReadingService(MultiProcessingReadingService):
    """Runs the pipe graph in workers on the machines of a Ray cluster. This class is experimental: names and defaults
    may change.

    The items, their order and the state of the loader are the same as with `MultiProcessingReadingService` and the same
    number of workers. The states of this service and of `MultiProcessingReadingService` are interchangeable. Each
    worker is a process on the machine of a Ray actor, and exits when the loader is shut down. The service joins a
    running cluster by `ray.init(address="auto")`, unless the program has already called `ray.init()`.

    The pipeline is pickled, and functions of the main program are pickled together with their code. All machines must
    have the modules that the pipeline imports (`runtime_env`), the files that the pipeline reads, and the same versions
    of Python, NumPy and this package. Pipes before a `sharding_round_robin_dispatch` run on the main process's machine.

    Args:
        num_workers: number of workers, at least 1; "auto" is not supported and raises a TypeError.
        worker_prefetch_cnt: number of items that each worker prepares before they are requested, at least 0; 1,000 by
            default.
        main_prefetch_cnt: number of items that are prepared for the main process, divided among the workers, at least
            0; 10 by default.
        worker_init_fn: see `MultiProcessingReadingService`; None by default.
        worker_reset_fn: see `MultiProcessingReadingService`; None by default.
        ray_remote_args: Ray's options of each worker's actor, such as `{"num_cpus": 2, "resources": {"fast_disk": 1},
            "scheduling_strategy": "SPREAD", "runtime_env": {"pip": ["emoji"]}}`; one CPU by default.
        in_order: see `MultiProcessingReadingService`; True by default.
        memory_budget: bytes of shared memory for items in the main process, and the same number of bytes for all
            workers together. `memory_budget=None` (the default) means a quarter of the machine's memory.
        timeout: seconds to wait for an item before the action of `on_timeout`; None (the default) or 0 for no limit.
        on_worker_exit: "error" (the default) raises `WorkerExitedError` if a worker, its actor or its machine fails.
            "restart" makes Ray start a new worker, which resumes from the last snapshot.
        on_timeout: "error" (the default) raises TimeoutError after `timeout` seconds without an item. "restart" ends
            the worker that hangs, reports the Python stack of this worker, and makes Ray start a new worker.
        patience: with `on_timeout="restart"`, the time limit in seconds for workers that use a processor, as reported
            by their hosts. None (the default) for `timeout`.

    Raises:
        ModuleNotFoundError: Ray is not installed (extra `ray`).
        TypeError: `num_workers` or a prefetch count is not an integer, `ray_remote_args` is not a dictionary with
            string keys, or another argument has the wrong type.
        ValueError: `num_workers` is less than 1, a prefetch count is negative, `ray_remote_args` contains an option
            that users must not set, or another argument has an invalid value, as for `MultiProcessingReadingService`.

    Example:
        >>> import ray  # call `ray.init` to choose the cluster; otherwise the service joins the running one
        >>> from torchdata.dataloader2 import RayReadingService
        >>> service = RayReadingService(num_workers=4, ray_remote_args={"num_cpus": 2, "scheduling_strategy": "SPREAD"})
        >>> service.num_workers
        4
    """

    def __init__(
        self,
        num_workers: int,
        worker_prefetch_cnt: int = _AHEAD,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None = None,
        worker_reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None = None,
        *,
        ray_remote_args: dict[str, Any] | None = None,
        in_order: bool = True,
        memory_budget: int | None = None,
        timeout: float | None = None,
        on_worker_exit: str = "error",
        on_timeout: str = "error",
        patience: float | None = None,
    ) -> None:
        check_int(_NAME, "num_workers", num_workers, least=1)
        super().__init__(
            num_workers,
            None,
            worker_prefetch_cnt,
            main_prefetch_cnt,
            worker_init_fn,
            worker_reset_fn,
            in_order=in_order,
            memory_budget=memory_budget,
            timeout=timeout,
            on_worker_exit=on_worker_exit,
            on_timeout=on_timeout,
            patience=patience,
            snapshot_budget=None,  # workers on other machines do not receive requests for large snapshots
        )
        self.ray_remote_args = _check_options({} if ray_remote_args is None else ray_remote_args)
        require("ray", extra="ray", needed_by=_NAME)
        self._cluster: Any = None

    def _workers_for(self, shards: int) -> int:
        """Each worker on the cluster runs one shard."""
        return shards

    def _start(self, branch: DataPipe, dispatching: DataPipe | None, shards: Sequence[Shard]) -> Children | LocalShards:
        from torchdata._engine.remote.cluster import Cluster

        self._cluster = Cluster(_NAME, self.ray_remote_args, len(shards), self.memory_budget)
        return super()._start(branch, dispatching, shards)

    def _context(self) -> Any:
        cluster, self._cluster = self._cluster, None
        return cluster


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Raises TypeError if `options` is not a dictionary with string keys. Raises ValueError if `options` contains an
    option that users must not set.
    """
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise TypeError(f"{_NAME}: ray_remote_args must be a dictionary of options of Ray's actors, not {options!r}")
    for key in options:
        if key in _OWN:
            raise ValueError(f"{_NAME}: ray_remote_args must not contain {key!r}: {_OWN[key]}")
    return options
