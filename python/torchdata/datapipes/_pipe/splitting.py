"""Keeping sources that divide their items among workers by themselves from doing so if a `sharding_filter` does.

Role: such sources ask `torch.utils.data.get_worker_info()` which worker they are in. Before a filter that divides among
workers, such an iterable would yield a part, of which the filter would keep only a part. So while one of
them is asked for an item, torch says in that thread that it is the only worker. Runs in workers of this package and of
torch. The
answer of torch is an object of this package there; everybody else reads the truth in it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from torchdata.datapipes._pipe.datasets import is_indexed_only

__all__ = ["begin_whole", "is_read_whole", "read_whole", "watched_info"]

_WORKER = "torch.utils.data._utils.worker"

#: Where the bases of our pipes are.
_BASES = "torchdata.datapipes.datapipe"

#: Libraries whose iterables never call `get_worker_info`.
_INNOCENT = frozenset({"itertools", "numpy", "pandas", "polars", "pyarrow", "torchdata"})

#: The pipes that a filter reads and that might ask.
_whole: WeakSet[Any] = WeakSet()


class _Depth(threading.local):
    """The number of iterators that currently run in this thread and must not see the worker."""

    value = 0


_depth = _Depth()


def read_whole(datapipes: Iterable[Any]) -> bool:
    """Makes the next iterations of pipes that might yield a worker's share alone yield all.

    Args:
        datapipes: all pipes that a `sharding_filter` reads from.

    Returns:
        Whether there are pipes of torch's class among them, whose reader has to see to it.
    """
    theirs = False
    for datapipe in datapipes:
        if not _never_asks(datapipe):
            _whole.add(datapipe)
            theirs = theirs or all(cls.__module__ != _BASES for cls in type(datapipe).__mro__)
    return theirs


def _never_asks(datapipe: Any) -> bool:
    """Whether a pipe certainly does not call `get_worker_info` itself; functions of users do not count."""
    if not hasattr(type(datapipe), "__iter__"):
        return True
    if type(datapipe).__module__.partition(".")[0] != "torchdata":
        return False
    values = vars(datapipe)
    iterable = values.get("iterable", ())
    module = type(iterable).__module__.partition(".")[0]
    if module == "builtins":  # of these, functions, generators and iterators run code of the user's
        asks = not hasattr(type(iterable), "__len__")
    else:
        asks = module not in _INNOCENT and not is_indexed_only(iterable)
    return not asks and not any(_is_iterable_dataset(value) for value in values.values())


def _is_iterable_dataset(value: Any) -> bool:
    names = {cls.__name__ for cls in type(value).__mro__}
    return "IterableDataset" in names and "IterDataPipe" not in names


def is_read_whole(datapipe: Any) -> bool:
    """Whether `begin_whole` is to begin its iteration."""
    return bool(_whole) and datapipe in _whole


def begin_whole(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The iterator that a function creates. Neither of them sees the worker."""
    module: Any = sys.modules.get(_WORKER)
    info = None if module is None else module._worker_info
    if info is not None and not hasattr(type(info), "_truth"):  # in a worker of torch's own
        names = [name for name in ("id", "num_workers", "seed", "dataset") if hasattr(info, name)]
        module._worker_info = watched_info(module, **{name: getattr(info, name) for name in names})
    _depth.value += 1
    try:
        return _Untold(begin())
    finally:
        _depth.value -= 1


class _Untold(Iterator[Any]):
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
    """The `WorkerInfo` for torch to return: the truth, but pipes that a filter reads see this as the only worker.

    Args:
        module: `torch.utils.data._utils.worker`.
        **truth: `id`, `num_workers`, `seed` and `dataset`.
    """
    base: Any = module.WorkerInfo

    class WorkerInfo(base):  # type: ignore[misc]
        _truth = True

        def __getattribute__(self, name: str) -> Any:
            if _depth.value:
                if name == "id":
                    return 0
                if name == "num_workers":
                    return 1
            return super().__getattribute__(name)

    return WorkerInfo(**truth)
