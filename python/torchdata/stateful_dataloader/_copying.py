"""Copies a dataset for several shards in one process, so that each shard has the same data as a separate worker process
would have.

Role: the main process pickles the dataset and its functions once, as for workers that are started by spawn. The process
that runs a shard unpickles a copy for this shard. The copies share the memory of arrays and tensors, but a shard
that writes to a page of this memory gets its own copy of the page.

All copies share locks, read-only arrays, and objects that separate processes also share: values and queues of
multiprocessing, tensors in shared memory, and memory-mapped files.
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

#: Modules whose classes define objects that processes share.
_SHARED_BY_PROCESSES = frozenset(
    {"multiprocessing.connection", "multiprocessing.queues", "multiprocessing.sharedctypes",
     "multiprocessing.synchronize", "torch.multiprocessing.queue"}
)  # fmt: skip


class Copies:
    """Creates copies of an object.

    Args:
        obj: the object.

    Raises:
        Exception: the object cannot be pickled.
    """

    def __init__(self, obj: Any) -> None:
        #: Objects that all copies share.
        self._kept: list[Any] = []
        self._pickle = SharedPickle(*pickled_program(obj, self._keeping))

    def make(self) -> Any:
        """Returns a new copy."""
        _loading.kept = self._kept
        try:
            return self._pickle.load(loads)
        finally:
            del _loading.kept

    def _keeping(self, base: Any) -> Any:
        """Returns a pickler class that does not pickle objects that all copies share."""
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
