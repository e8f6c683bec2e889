"""Communication between the ranks of a distributed job: a shared seed, and whether each rank still has an item.

The main process of each rank opens a group to communicate with other ranks. All ranks must open their groups in the
same order, because the number in this order identifies a group.
"""

from __future__ import annotations

import sys
from typing import Any


def members_of(process_group: Any, owner: str) -> tuple[int, ...] | None:
    """Returns the ranks in the group, numbered as in the job; None if `process_group` is not a process group or a
    device mesh of torch. Raises ValueError if the mesh has several dimensions, or if this rank does not belong to the
    group.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():  # without `torch.distributed`, no process group exists
        return None
    if hasattr(process_group, "get_group") and hasattr(process_group, "mesh_dim_names"):
        if process_group.ndim != 1:
            raise ValueError(
                f"{owner}: the device mesh has {process_group.ndim} dimensions, {process_group.mesh_dim_names}; "
                f'select the dimension over which data is divided, as in mesh["dp"]'
            )
        process_group = process_group.get_group()
    elif process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{owner}: rank {dist.get_rank()} does not belong to the process group that new_group() made")
    return tuple(dist.get_process_group_ranks(process_group)) if isinstance(process_group, dist.ProcessGroup) else None
