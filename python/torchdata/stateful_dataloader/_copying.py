"""Copies of what several shards read that run in one process: each is what a worker process would have of its own.

Role: main pickles the dataset and its functions once, as it does for workers under spawn, and each shard loads that in
the process that runs it. Arrays and tensors lie in memory that all copies map privately: a page is copied when a shard
writes to it, as after a fork.

Some objects are the same in all copies: locks, and what processes share anyway (multiprocessing's values and queues,
tensors in shared memory, memory-mapped files). So are arrays that cannot be written to.
"""

from __future__ import annotations

import _thread
import copyreg
import pickle
import threading
from typing import Any

import numpy
import torch

from torchdata._engine.items.codec import loads
from torchdata._engine.processes.crossing import SharedPickle
from torchdata._engine.workers.group import pickled_program

__all__ = ["Copies"]

#: Modules of classes whose objects processes share.
_SHARED_BY_PROCESSES = frozenset(
    {"multiprocessing.connection", "multiprocessing.queues", "multiprocessing.sharedctypes",
     "multiprocessing.synchronize", "torch.multiprocessing.queue"}
)  # fmt: skip


class Copies:
    """Copies of an object.

    Args:
        obj: the object.

    Raises:
        Exception: it cannot be pickled.
    """

    def __init__(self, obj: Any) -> None:
        #: What is the same in all copies.
        self._kept: list[Any] = []
        self._pickle = SharedPickle(*pickled_program(obj, self._keeping))

    def make(self) -> Any:
        """Another copy."""
        _loading.kept = self._kept
        try:
            return self._pickle.load(loads)
        finally:
            del _loading.kept

    def _keeping(self, base: Any) -> Any:
        """A class of picklers that leaves out what is the same in all copies."""
        kept = self._kept
        kept.clear()

        class Keeping(base):  # type: ignore[misc]
            dispatch_table = copyreg.dispatch_table if base is pickle.Pickler else base.dispatch_table

            def reducer_override(self, obj: Any) -> Any:
                if _is_same_in_all(obj):
                    kept.append(obj)
                    return _kept, (len(kept) - 1,)
                return NotImplemented if base is pickle.Pickler else super().reducer_override(obj)

        return Keeping


_loading = threading.local()


def _kept(number: int) -> Any:
    return _loading.kept[number]


def _is_same_in_all(obj: Any) -> bool:
    cls: Any = type(obj)
    if isinstance(obj, numpy.ndarray):
        return isinstance(obj, numpy.memmap) or not obj.flags.writeable
    if isinstance(obj, torch.Tensor):
        return bool(obj.untyped_storage().is_shared())
    return cls in (_thread.LockType, _thread.RLock) or cls.__module__ in _SHARED_BY_PROCESSES
