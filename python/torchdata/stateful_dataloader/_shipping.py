"""Whether what the workers are given holds tensors in shared memory, which must not be copied on the way to them.

Role: main, before workers start by spawn or forkserver.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

__all__ = ["holds_shared_memory"]


class _SharedMemoryFound(Exception):
    """Something is to stay shared, and not to be copied."""


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        return len(data)


class _Searching(pickle.Pickler):
    """Looks for tensors in shared memory; what it writes is thrown away."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, torch.storage.UntypedStorage, torch.storage.TypedStorage)):
            if obj.is_shared():
                raise _SharedMemoryFound
            return bool, ()
        return NotImplemented


def holds_shared_memory(program: Any) -> bool:
    """Whether a program refers to tensors in shared memory."""
    try:
        _Searching(_Nowhere(), protocol=5).dump(program)
    except _SharedMemoryFound:
        return True
    except Exception:  # for cloudpickle, perhaps
        return False
    return False
