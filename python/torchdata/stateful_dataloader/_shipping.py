"""What the workers are given, packed for the way to them.

Role: main, before workers start. Under fork they inherit it. Else it is pickled once for all of them, into anonymous
shared memory; what must not be copied, tensors in shared memory and locks of multiprocessing, goes with each process.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from torchdata._engine.processes.crossing import SharedPickle, pickle_graph
from torchdata.stateful_dataloader._worker import Job

__all__ = ["shipped"]


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


def _holds_shared_memory(job: Job) -> bool:
    try:
        _Searching(_Nowhere(), protocol=5).dump(job)
    except _SharedMemoryFound:
        return True
    except Exception:  # for cloudpickle, perhaps
        return False
    return False


def shipped(job: Job, method: str) -> Job | SharedPickle:
    """The job as workers get it.

    Args:
        job: what they do.
        method: multiprocessing's name of how they start.

    Raises:
        TypeError: something in it cannot be pickled.
    """
    if method == "fork" or _holds_shared_memory(job):
        return job
    try:
        return SharedPickle(pickle_graph(job))
    except Exception as error:
        if "inheritance" in str(error):
            return job  # pickled with each process, as such objects must be
        raise TypeError(
            f"StatefulDataLoader: the dataset, collate_fn or worker_init_fn cannot be pickled, which start method "
            f"{method!r} needs ({type(error).__name__}: {error}); open files, locks and connections when they are "
            "first used, or use multiprocessing_context='fork'"
        ) from error
