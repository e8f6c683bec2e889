"""Makes all ranks of a distributed job use one seed, which they exchange by torch.distributed."""

from __future__ import annotations

from typing import Any

__all__ = ["dist_share_seed"]


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Returns the seed of the first rank of a group, on every rank. All ranks of the group must call this function.

    Args:
        seed: this rank's seed, which only the first rank uses.
        process_group: the group of ranks; None (the default) for the default group.

    Returns:
        The first rank's seed.

    Raises:
        RuntimeError: torch.distributed is not available or not initialized.

    Example:
        >>> import random
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.random import dist_share_seed
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> def seeded_loader():  # on every rank, after torch.distributed.init_process_group
        ...     loader = DataLoader2(IterableWrapper(range(9)).shuffle())
        ...     loader.seed(dist_share_seed(random.getrandbits(63)))
        ...     return loader
    """
    from torchdata._ranks.torch_group import require_initialized  # `torch_group` imports many modules

    dist = require_initialized("dist_share_seed")
    import torch

    root = dist.get_global_rank(process_group, 0) if process_group is not None else 0
    # Not every torch backend broadcasts unsigned 64-bit numbers, so the bits are sent as a signed number.
    signed = seed - 2**64 if seed >= 2**63 else seed
    shared = torch.tensor(signed, dtype=torch.int64, device="cuda" if _needs_cuda(dist, process_group) else "cpu")
    dist.broadcast(shared, src=root, group=process_group)
    received = int(shared.item())
    return received + 2**64 if received < 0 else received


def _needs_cuda(dist: Any, process_group: Any) -> bool:
    """Returns whether the group can send only tensors in GPU memory."""
    backend = str(dist.get_backend(process_group))
    return "nccl" in backend and "gloo" not in backend
