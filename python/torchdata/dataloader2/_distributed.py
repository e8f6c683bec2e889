"""Sharding among the ranks of a `torch.distributed` job.

Role: divides the pipe graph by rank and gives all ranks the same shared seeds. Runs in the main process of
every rank and owns a process group of its own (gloo), so that its messages never mix with those of the
training.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torchdata.dataloader2._interface import IterResetFn, ReadingServiceInterface
from torchdata.dataloader2.graph import DataPipe, set_graph_random_seed
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES, apply_sharding

if TYPE_CHECKING:
    from torchdata.dataloader2.random import SeedGenerator

__all__ = ["DistributedReadingService"]

#: Seconds after which an operation of the process group fails.
DEFAULT_TIMEOUT = 30 * 60


class DistributedReadingService(ReadingServiceInterface):
    """Gives each rank of a `torch.distributed` job its share of the items, with the same order before
    sharding.

    Put it before a `MultiProcessingReadingService` in a `SequentialReadingService` to use workers on every
    rank.

    Args:
        timeout: seconds after which an operation among the ranks fails.

    Raises:
        RuntimeError: PyTorch is not installed or was built without `torch.distributed`.
        ValueError: `timeout` is not positive.
    """

    def __init__(self, timeout: int = DEFAULT_TIMEOUT) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, but got {timeout!r}")
        _distributed()
        self._world_size = 1
        self._rank = 0
        self._datapipe: DataPipe | None = None
        self._timeout = timeout
        self._pg: Any = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Shards the graph by rank; ends it in `fullsync`, so that no rank goes on when another has no item
        left.

        Raises:
            RuntimeError: `torch.distributed` is not initialized.
        """
        dist = _distributed()
        if not dist.is_initialized():
            raise RuntimeError(
                "Torch Distributed is required to be initialized: call "
                "torch.distributed.init_process_group() on every "
                "rank before iterating the loader"
            )
        self._world_size = dist.get_world_size()
        self._rank = dist.get_rank()
        self._pg = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        apply_sharding(datapipe, self._world_size, self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if "fullsync" in type(datapipe).functions and not _is_fullsync(datapipe):
            datapipe = datapipe.fullsync(self._timeout)
        self._datapipe = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Takes the shared seed of rank 0 on all ranks, and seeds the graph."""
        if self._datapipe is None:
            raise RuntimeError(
                "DistributedReadingService.initialize must be called before initialize_iteration"
            )
        from torchdata.dataloader2.random import dist_share_seed

        seed_generator.seed(dist_share_seed(seed_generator.generate_shared_seed(), self._pg))
        set_graph_random_seed(self._datapipe, seed_generator.spawn(self._rank, inplace=True))
        return iter_reset_fn

    def finalize(self) -> None:
        """Destroys the service's own process group."""
        group, self._pg = self._pg, None
        if group is not None and _distributed().is_initialized():
            _distributed().destroy_process_group(group)


def _is_fullsync(datapipe: DataPipe) -> bool:
    from torchdata.datapipes import iter as iter_pipes

    fullsync = getattr(iter_pipes, "FullSync", None)
    return fullsync is not None and isinstance(datapipe, fullsync)


def _distributed() -> Any:
    """The module `torch.distributed`, where it can be used."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise RuntimeError(
            "DistributedReadingService needs PyTorch, which is not installed; for one machine use "
            "MultiProcessingReadingService alone"
        ) from error
    if not dist.is_available():
        raise RuntimeError(
            "Torch Distributed is required to be available, but this build of PyTorch comes without it"
        )
    return dist
