"""Copies a dataset for several shards in one process, so that each shard has its own data, as in a worker process.

The main process pickles the dataset and the loader's functions once, and a process unpickles them once for each of its
shards. All copies of an array share one memory until a shard writes to its copy. All copies share locks, read-only
arrays, and objects that separate processes would share, such as queues of multiprocessing.
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

_SHARED_BY_PROCESSES = frozenset(
    {"multiprocessing.connection", "multiprocessing.queues", "multiprocessing.sharedctypes",
     "multiprocessing.synchronize", "torch.multiprocessing.queue"}
)  # fmt: skip


class Copies:
    def __init__(self, obj: Any) -> None:
        self._kept: list[Any] = []
        self._pickle = SharedPickle(*pickled_program(obj, self._keeping))

    def make(self) -> Any:
        _loading.kept = self._kept
        try:
            return self._pickle.load(loads)
        finally:
            del _loading.kept

    def _keeping(self, base: Any) -> Any:
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
