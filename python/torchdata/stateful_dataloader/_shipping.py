"""Checks whether the workers' data contains tensors in shared memory, which must not be copied when it is sent.

Role: runs in the main process before workers start by spawn or forkserver.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

__all__ = ["holds_shared_memory"]


class _SharedMemoryFound(Exception):
    """Raised when a tensor in shared memory is found."""


class _Nowhere:
    """A file that discards its contents."""

    def write(self, data: bytes) -> int:
        return len(data)


class _Searching(pickle.Pickler):
    """Searches for tensors in shared memory. Its output is discarded."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, torch.storage.UntypedStorage, torch.storage.TypedStorage)):
            if obj.is_shared():
                raise _SharedMemoryFound
            return bool, ()
        return NotImplemented


def holds_shared_memory(program: Any) -> bool:
    """Returns whether a program refers to tensors in shared memory."""
    try:
        _Searching(_Nowhere(), protocol=5).dump(program)
    except _SharedMemoryFound:
        return True
    except Exception:  # cloudpickle may be able to pickle it
        return False
    return False
