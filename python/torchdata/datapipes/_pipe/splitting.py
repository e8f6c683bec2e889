"""Prevents sources from splitting their items among workers if a `sharding_filter` already splits the items.

Some sources yield only a part of their items in each worker, according to `torch.utils.data.get_worker_info()`. While a
`sharding_filter` requests an item, `get_worker_info()` reports a single worker in the filter's thread, so that items
are not divided twice.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from torchdata.datapipes._pipe.datasets import is_indexed_only

_WORKER = "torch.utils.data._utils.worker"

_BASES = "torchdata.datapipes.datapipe"

#: Libraries with iterables that never call `get_worker_info`.
_TRUSTED_MODULES = frozenset({"itertools", "numpy", "pandas", "polars", "pyarrow", "torchdata"})

#: Sources of a `sharding_filter` that may call `get_worker_info`, which must report a single worker to these sources.
_whole: WeakSet[Any] = WeakSet()


class _Depth(threading.local):
    """While the depth is positive, `get_worker_info()` reports a single worker in this thread. The depth is the number
    of running iterators that must yield all items."""

    value = 0


_depth = _Depth()

#: A function that sets torch's worker info for the running shard when torch is imported.
set_info: Callable[[Any], None] | None = None


def read_whole(datapipes: Iterable[Any]) -> bool:
    """Makes pipes yield all their items in the next iteration, instead of splitting them among workers.

    Returns:
        True if some of the pipes are PyTorch pipes; the caller must then iterate by `begin_whole`.
    """
    theirs = False
    for datapipe in datapipes:
        if not _ignores_workers(datapipe):
            _whole.add(datapipe)
            theirs = theirs or all(cls.__module__ != _BASES for cls in type(datapipe).__mro__)
    return theirs


def _ignores_workers(datapipe: Any) -> bool:
    """Returns whether the pipe's own code never calls `get_worker_info`. Functions of the user, which may call
    `get_worker_info`, are not examined."""
    if not hasattr(type(datapipe), "__iter__"):
        return True
    if type(datapipe).__module__.partition(".")[0] != "torchdata":
        return False
    values = vars(datapipe)
    iterable = values.get("iterable", ())
    module = type(iterable).__module__.partition(".")[0]
    if module == "builtins":  # built-in functions, generators and iterators may run user code
        may_ask = not hasattr(type(iterable), "__len__")
    else:
        may_ask = module not in _TRUSTED_MODULES and not is_indexed_only(iterable)
    return not may_ask and not any(map(_is_iterable_dataset, map(type, values.values())))


@functools.lru_cache(maxsize=1024)  # the attributes of a pipe have few types
def _is_iterable_dataset(kind: type) -> bool:
    names = {cls.__name__ for cls in kind.__mro__}
    return "IterableDataset" in names and "IterDataPipe" not in names


def is_read_whole(datapipe: Any) -> bool:
    return bool(_whole) and datapipe in _whole


def begin_whole(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begins an iteration that receives a single worker from PyTorch's `get_worker_info()`."""
    module: Any = sys.modules.get(_WORKER)
    info = None if module is None else module._worker_info
    if info is not None and not hasattr(type(info), "_truth"):  # this process is a worker of PyTorch
        names = [name for name in ("id", "num_workers", "seed", "dataset") if hasattr(info, name)]
        module._worker_info = watched_info(module, **{name: getattr(info, name) for name in names})
    _depth.value += 1
    try:
        return _Unannounced(begin())
    finally:
        _depth.value -= 1


class _Unannounced(Iterator[Any]):
    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        _depth.value += 1
        try:
            return next(self._iterator)
        finally:
            _depth.value -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def watched_info(module: Any, **truth: Any) -> Any:
    """Returns a worker info that reports a single worker to the sources of a `sharding_filter`, and the true values to
    all other code."""
    return _watched(module.WorkerInfo)(**truth)


@functools.cache  # a worker creates its info in every epoch, and creating a class takes several microseconds
def _watched(base: Any) -> Any:
    class WorkerInfo(base):  # type: ignore[misc]
        _truth = True

        def __getattribute__(self, name: str) -> Any:
            if _depth.value:
                if name == "id":
                    return 0
                if name == "num_workers":
                    return 1
            return super().__getattribute__(name)

    return WorkerInfo
