"""The messages between the ranks of a job: one seed for all, and whether each still has an item.

Role: `open_group` makes the group of processes that `DistributedReadingService` and `FullSync` talk through, on
`torch.distributed` or on MPI. Every rank opens its groups in the same order, in its main process. A group belongs to
the object that opened it. Nothing is imported here before a group is opened.
"""

from __future__ import annotations

import sys
from typing import Any

from torchdata._ranks.group import (
    DEFAULT_TIMEOUT,
    PrefetchTimeoutError,
    RankGroup,
    RanksLostError,
    TorchRanks,
    check_group,
    check_timeout,
)

__all__ = [
    "DEFAULT_TIMEOUT",
    "PrefetchTimeoutError",
    "RankGroup",
    "RanksLostError",
    "TorchRanks",
    "check_group",
    "check_timeout",
    "members_of",
    "open_group",
]


def members_of(process_group: Any, whose: str) -> tuple[int, ...] | None:
    """The ranks of a process group or device mesh of torch, as the job numbers them; None if it is neither.

    Args:
        process_group: what the user gave.
        whose: who asks, for messages.

    Raises:
        ValueError: the mesh has several dimensions, or this rank is in no such group.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():  # nobody can have one
        return None
    if hasattr(process_group, "get_group") and hasattr(process_group, "mesh_dim_names"):
        if process_group.ndim != 1:
            raise ValueError(
                f"{whose}: the device mesh has {process_group.ndim} dimensions; give the one over which data is "
                f'divided, as in mesh["dp"], out of {process_group.mesh_dim_names}'
            )
        process_group = process_group.get_group()
    elif process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{whose}: rank {dist.get_rank()} does not belong to the process group that new_group() made")
    return tuple(dist.get_process_group_ranks(process_group)) if isinstance(process_group, dist.ProcessGroup) else None


def open_group(backend: str, timeout: float, whose: str, members: tuple[int, ...] | None = None) -> RankGroup:
    """Opens a group of ranks. Each of these ranks must call it.

    Args:
        backend: `"gloo"`, on `torch.distributed`, or `"mpi"`, on MPI through mpi4py.
        timeout: seconds after which an operation among the ranks fails.
        whose: who asks, for messages.
        members: the ranks of `torch.distributed` that the group has; None for all.

    Raises:
        RuntimeError: the library is missing, or `torch.distributed` is not initialized.
    """
    if backend == "mpi":
        from torchdata._ranks.mpi_group import MpiGroup

        return MpiGroup(timeout, whose)
    from torchdata._ranks.torch_group import TorchGroup

    return TorchGroup(timeout, whose, members)
