"""The messages between the ranks of a job: one seed for all, and whether each still has an item.

Role: `open_group` makes the group of processes that `DistributedReadingService` and `FullSync` talk through, on
`torch.distributed` or on MPI. Every rank opens its groups in the same order, in its main process. A group belongs to
the object that opened it. Nothing is imported here before a group is opened.
"""

from __future__ import annotations

from torchdata._ranks.group import (
    DEFAULT_TIMEOUT,
    PrefetchTimeoutError,
    RankGroup,
    RanksLostError,
    check_group,
    check_timeout,
)

__all__ = [
    "DEFAULT_TIMEOUT",
    "PrefetchTimeoutError",
    "RankGroup",
    "RanksLostError",
    "check_group",
    "check_timeout",
    "open_group",
]


def open_group(backend: str, timeout: float, whose: str) -> RankGroup:
    """Opens a group of all ranks. Every rank must call it.

    Args:
        backend: `"gloo"`, on `torch.distributed`, or `"mpi"`, on MPI through mpi4py.
        timeout: seconds after which an operation among the ranks fails.
        whose: who asks, for messages.

    Raises:
        RuntimeError: the library is missing, or `torch.distributed` is not initialised.
    """
    if backend == "mpi":
        from torchdata._ranks.mpi_group import MpiGroup

        return MpiGroup(timeout, whose)
    from torchdata._ranks.torch_group import TorchGroup

    return TorchGroup(timeout, whose)
