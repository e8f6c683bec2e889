"""One seed for all ranks of a distributed job, over torch.distributed."""

from __future__ import annotations

from typing import Any

__all__ = ["dist_share_seed"]


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """The seed of rank 0, on every rank. Every rank of the group must call it.

    Args:
        seed: this rank's proposal; rank 0's is taken.
        process_group: the group to share it in; None for the default group.

    Raises:
        RuntimeError: torch.distributed is missing or not initialised.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise RuntimeError("sharing a seed among ranks needs PyTorch: pip install torch") from None
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "sharing a seed among ranks needs an initialised process group: call "
            "torch.distributed.init_process_group first"
        )
    # torch has no unsigned 64-bit broadcast everywhere: the bits travel as a signed number.
    shared = torch.tensor(seed - 2**64 if seed >= 2**63 else seed, dtype=torch.int64)
    dist.broadcast(shared, src=0, group=process_group)
    received = int(shared.item())
    return received + 2**64 if received < 0 else received
