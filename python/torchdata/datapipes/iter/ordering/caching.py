"""The pipe that stores items in memory: InMemoryCacheHolder."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torchdata.datapipes._pipe.checks import check_source, wrong_type
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import IterDataPipe, T_co, token_of
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter

__all__ = ["InMemoryCacheHolder"]


_MEGABYTE = 1024 * 1024


class InMemoryCacheHolder(IterDataPipe[T_co]):
    """Stores its items in memory, so that all earlier pipes run only in the first epoch.

    The first complete epoch fills the cache, and later epochs yield the same objects. If the items need more memory
    than `size`, later epochs read the first items from the source instead of the cache. If `size` is given, the source
    should yield its items in the same order in every epoch.

    Every process has its own cache, which is copied and pickled with the pipe. If an earlier `sharding_filter` changes
    the process's share of the data, the cache is filled again. States contain the cache, so a state is as large as the
    cache. With worker processes, states leave out a cache that exceeds the `snapshot_budget`. A loader that resumes
    from a state without the cache recomputes the cached items first.

    Args:
        source_dp: the pipe to read.
        size: the limit in megabytes (of 2**20 bytes); None (the default) for no limit. Arrays, tensors, text, bytes and
            containers are measured with their content, and all other objects by `sys.getsizeof`.

    Raises:
        TypeError: `size` is not a number.
        ValueError: `size` is negative.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> cached = IterableWrapper(range(3)).map(lambda n: [n]).in_memory_cache()
        >>> first, second = list(cached), list(cached)
        >>> all(a is b for a, b in zip(first, second))
        True
    """

    cache: list[T_co] | None = state(items=True, copied=True, lasts=True)
    #: How many of the source's first items are not cached, because all items together would exceed `size`. Items that
    #: are not cached are read from the source in each epoch.
    _given_up: int = state(0, copied=True, lasts=True)
    #: For each earlier `sharding_filter`: its settings when the cache was filled, such as the number of shards.
    _shares: tuple[Any, ...] = state(tuple, copied=True, lasts=True)
    #: The items that the running epoch has stored.
    _filling: deque[T_co] = state(deque, items=True)
    _bytes: int = state(0)  # the total size of the items in `_filling`
    _filling_given_up: int = state(0)  # the number of items that were dropped from `_filling`
    _serving: bool = state(False)

    def __init__(self, source_dp: Iterable[T_co], size: float | None = None) -> None:
        name = type(self).__name__
        self.source_dp = check_source(name, source_dp, "source_dp")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, (int, float)):
                raise wrong_type(name, "size", "a number of megabytes", size)
            if not size >= 0:
                raise ValueError(f"{name}: size must be a number of megabytes, but got {size!r}")
        self.size = None if size is None else size * _MEGABYTE
        self.invalidate_cache()

    def invalidate_cache(self) -> None:
        """Drops the stored items. The next epoch reads all items from the source."""
        self.cache: list[T_co] | None = None
        self._given_up, self._shares = 0, ()

    def reset(self) -> None:
        """Drops the items that an incomplete epoch has stored."""
        super().reset()
        self._serving = bool(self.cache) and self._shares == self._current_shares()

    def _current_shares(self) -> tuple[Any, ...]:
        return tuple(
            (pipe.num_of_instances, pipe.instance_id, pipe._block, pipe._sharding_enabled)
            for pipe in Graph(self.source_dp)
            if isinstance(pipe, ShardingFilter) and pipe.num_of_instances > 1
        )

    def __iter__(self) -> Iterator[T_co]:
        done = token_of(self).yielded  # 0, unless the iteration resumes from a loaded state
        cached: list[T_co] = self.cache or []
        if self._serving and done >= self._given_up:
            return islice(cached, done - self._given_up, None)
        source = iter(self.source_dp)
        return chain(islice(source, self._given_up - done), cached) if self._serving else self._fill(source)

    def _fill(self, source: Iterator[T_co]) -> Iterator[T_co]:
        shares, limit = self._current_shares(), self.size
        filling = self._filling
        for item in source:
            filling.append(item)
            if limit is not None:
                self._bytes += size_of(item)
                while filling and self._bytes > limit:
                    self._bytes -= size_of(filling.popleft())
                    self._filling_given_up += 1
                if not filling:
                    self._bytes = 0  # items that user code has modified may be smaller now
            yield item
        self.cache, self._given_up, self._shares = list(filling), self._filling_given_up, shares
        self._filling = deque()

    def __len__(self) -> int:
        try:
            return len(self.source_dp)  # type: ignore[arg-type]
        except TypeError:
            if self.cache:
                return self._given_up + len(self.cache)
            raise TypeError(
                f"{type(self).__name__} instance doesn't have valid length until the cache is loaded."
            ) from None

    def _sources_in_use(self) -> list[Any]:
        from_cache = self._serving and token_of(self).yielded >= self._given_up
        return [] if from_cache else [self.source_dp]


def size_of(item: Any) -> int:
    """Returns the size of an item in bytes. An object that occurs twice in the item counts twice."""
    total, waiting = 0, [item]
    while waiting:
        obj = waiting.pop()
        total += sys.getsizeof(obj)
        if isinstance(obj, dict):
            waiting += obj.keys()
            waiting += obj.values()
        elif isinstance(obj, (list, tuple, set, frozenset, deque)):
            waiting += obj
        elif not isinstance(obj, (int, float, str, bytes, bytearray)):
            total += _buffer_size(obj)
    return total


def _buffer_size(obj: Any) -> int:
    """Returns the size of an array's or tensor's memory, which `sys.getsizeof` may not include."""
    size = getattr(obj, "nbytes", None)
    return size if isinstance(size, int) and sys.getsizeof(obj) < size else 0
