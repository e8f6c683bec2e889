"""Determines the rank of this process, and the seeds of ranks."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

__all__ = ["get_rank_and_world_size"]


def get_rank_and_world_size() -> tuple[int, int]:
    """Returns the rank and the number of ranks: from `torch.distributed` if it is initialized, otherwise from the
    environment variables RANK (default: 0) and WORLD_SIZE (default: 1).

    Raises:
        ValueError: the rank is negative, or not less than the number of ranks.
    """
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        try:
            rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        except ValueError:
            rank, world_size = 0, 1
    if not 0 <= rank < world_size:
        raise ValueError(
            f"Invalid rank {rank}: with a world size of {world_size} it must be from 0 to {world_size - 1}; check the "
            "variables RANK and WORLD_SIZE"
        )
    return rank, world_size


def _get_rank_seed(seed: int, generator_rank: torch.Generator, rank: int, world_size: int, epoch: int) -> int:
    """Returns the seed of a rank, computed as in torchdata 0.11."""
    generator_rank.manual_seed(seed * world_size + rank)
    return int(torch.randint(0, 2**32 - 1, size=(epoch + 1,), generator=generator_rank)[-1].item())
