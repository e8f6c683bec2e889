"""Map pipes that apply a function or store items: Mapper, InMemoryCacheHolder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from torchdata.datapipes._pipe.checks import check_callable, check_map_pipe
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import MapDataPipe, R, T, T_co

__all__ = ["InMemoryCacheHolder", "Mapper", "default_fn"]


def default_fn(data: Any) -> Any:
    return data


class Mapper(SameLength, MapDataPipe[T_co]):
    """Applies a function to each item when the item is requested.

    Args:
        datapipe: the pipe to read.
        fn: the function; the identity by default.

    Raises:
        TypeError: `fn` is not a function.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> SequenceWrapper([1, 2]).map(lambda n: n + 1)[1]
        3
    """

    @overload
    def __init__(self: Mapper[T], datapipe: MapDataPipe[T]) -> None: ...

    @overload
    def __init__(self: Mapper[R], datapipe: MapDataPipe[T], fn: Callable[[T], R]) -> None: ...

    def __init__(self, datapipe: MapDataPipe[Any], fn: Callable[[Any], Any] = default_fn) -> None:
        check_map_pipe("Mapper", datapipe)
        check_callable("Mapper", "fn", fn)
        self.datapipe = datapipe
        self.fn: Callable[[Any], T_co] = fn

    def __getitem__(self, index: Any) -> T_co:
        return self.fn(self.datapipe[index])

    def _getter(self, item_at: Callable[[Any], Any]) -> Callable[[Any], T_co]:
        return lambda index: self.fn(item_at(index))


class InMemoryCacheHolder(SameLength, MapDataPipe[T_co]):
    """Stores every requested item in memory, so that all earlier pipes run only once for each item.

    The items stay in memory as long as the pipe exists. The stored items are pickled with the pipe, and are part of its
    state.

    Args:
        source_dp: the pipe to read.

    Raises:
        TypeError: `source_dp` is not a map pipe.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> cached = SequenceWrapper(["a", "b"]).map(str.upper).in_memory_cache()
        >>> cached[1] is cached[1]
        True
    """

    cache: dict[Any, T_co] = state(dict, items=True, copied=True, lasts=True)

    def __init__(self, source_dp: MapDataPipe[T_co]) -> None:
        check_map_pipe("InMemoryCacheHolder", source_dp, "source_dp")
        self.source_dp = source_dp
        self.invalidate_cache()

    def invalidate_cache(self) -> None:
        """Drops the stored items."""
        self.cache: dict[Any, T_co] = {}

    def __getitem__(self, index: Any) -> T_co:
        if index not in self.cache:
            self.cache[index] = self.source_dp[index]
        return self.cache[index]
