"""Adapters: changes that a loader makes to its copy of the pipe graph before it runs.

Adapters are functions from graph to graph, called once, in the order given to `DataLoader2`. An adapter may also
change how the reading service runs the graph.

Role: what users ask for before anything runs. Runs in the main process; an adapter owns nothing but its options.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from typing import Any, Literal

from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.settings import apply_shuffle_settings
from torchdata.dataloader2.graph.utils import has_method, put_in_place, whole
from torchdata.dataloader2.services.interface import ReadingServiceInterface, divided
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes._pipe.graph.traversal import sources_of

__all__ = [
    "Adapter",
    "CacheTimeout",
    "FullSync",
    "Headroom",
    "InvalidateCache",
    "PinMemory",
    "PrefetchPolicy",
    "ShardingPolicy",
    "Shuffle",
]


class Adapter:
    """Base class of changes to a pipe graph: `adapter(datapipe)` returns the changed graph."""

    @abstractmethod
    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Changes the graph.

        Args:
            datapipe: the last pipe of the loader's copy of the graph.

        Returns:
            The last pipe of the changed graph, which may be the same one.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(datapipe)")

    def adapt_reading_service(self, reading_service: ReadingServiceInterface) -> ReadingServiceInterface:
        """Changes the loader's copy of the reading service before it takes over the graph.

        Args:
            reading_service: the loader's copy; not called where the loader has none.

        Returns:
            The service that the loader is to use, which may be the same one.
        """
        return reading_service


class Shuffle(Adapter):
    """Switches all shufflers of the graph on or off.

    Args:
        enable: True switches them on, and appends a shuffler (with a warning) if there is none; False
            switches them off; None leaves the graph as it is.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import Shuffle
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(DataLoader2(IterableWrapper(range(4)).shuffle(), Shuffle(False)))
        [0, 1, 2, 3]
    """

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Switches the shufflers."""
        return apply_shuffle_settings(datapipe, shuffle=self.enable)


class CacheTimeout(Adapter):
    """Sets how long every `end_caching` of the graph waits for a file that another process is making.

    Args:
        timeout: seconds.

    Raises:
        ValueError: `timeout` is no positive number.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import CacheTimeout
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(["big.bin"]).on_disk_cache().map(lambda path: (path, b"...")).end_caching()
        >>> list(DataLoader2(pipe, CacheTimeout(3600)))
        ['big.bin']
    """

    def __init__(self, timeout: int | None = None) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ValueError(f"timeout should be a positive number of seconds, but got {timeout!r}")
        self.timeout = timeout

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Sets the timeout of every pipe that has one to set."""
        _tell_all(datapipe, "set_timeout", self.timeout)
        return datapipe


class InvalidateCache(Adapter):
    """Makes the loader read and make everything anew once: what the caches of the graph hold counts for nothing.

    Args:
        in_memory: whether the items of every `in_memory_cache` are forgotten.
        on_disk: whether files of every `on_disk_cache` that were written before now count as missing. They are
            replaced one by one, when it is their turn; what this loader (or another one) writes from now on is kept.

    Example:
        >>> from pathlib import Path
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import InvalidateCache
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> _ = Path("page.txt").write_text("old")
        >>> pipe = IterableWrapper(["page.txt"]).on_disk_cache().map(lambda path: (path, "new")).end_caching("t")
        >>> list(DataLoader2(pipe)), Path("page.txt").read_text()
        (['page.txt'], 'old')
        >>> list(DataLoader2(pipe, InvalidateCache())), Path("page.txt").read_text()
        (['page.txt'], 'new')
    """

    def __init__(self, in_memory: bool = True, on_disk: bool = True) -> None:
        self.in_memory = in_memory
        self.on_disk = on_disk

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Tells every cache."""
        if self.in_memory:
            _tell_all(datapipe, "invalidate_cache")
        if self.on_disk:
            _tell_all(datapipe, "set_valid_since", time.time_ns())
        return datapipe


class ShardingPolicy(Adapter):
    """Sets how every `sharding_filter` of the graph deals out the items.

    Args:
        block: items are dealt out in blocks of this many consecutive ones, so that
            `sharding_filter().batch(block)` makes the same batches for any number of workers; None deals them
            out one by one.
        enable: False switches the filters off: every worker and rank gets all items.
        splits: the number of shards of each epoch, whatever workers and ranks there are; None for one shard for each
            worker. Items, their order and batches are then the same for any number of workers and ranks, up to as many
            as there are splits, and a state that is saved inside an epoch resumes with any of them. A worker runs its
            shards in turn. Each shard has buffers of its own, and reads what stands before the `sharding_filter` by
            itself, which costs nothing if that is read by index.

    Raises:
        TypeError: `block` or `splits` is no integer.
        ValueError: `block` or `splits` is below 1, or the reading service of the loader cannot run shards.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        >>> from torchdata.dataloader2.adapter import ShardingPolicy
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(8)).sharding_filter().batch(2)
        >>> list(DataLoader2(pipe, ShardingPolicy(block=2), MultiProcessingReadingService(2)))
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    def __init__(self, block: int | None = None, enable: bool = True, splits: int | None = None) -> None:
        if block is not None:
            check_int("ShardingPolicy", "block", block, least=1)
        if splits is not None:
            check_int("ShardingPolicy", "splits", splits, least=1)
        self.block, self.enable, self.splits = block, enable, splits

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Sets the block length and the switch of every filter."""
        _tell_all(datapipe, "set_sharding_block", self.block)
        _tell_all(datapipe, "set_sharding_enabled", self.enable)
        return datapipe

    def adapt_reading_service(self, service: Any) -> Any:
        """Sets into how many shards the reading service divides an epoch."""
        return service if self.splits is None else divided(service, self.splits)


class PrefetchPolicy(Adapter):
    """Sets how many items are read ahead, by every prefetching pipe of the graph and by the reading service.

    Args:
        count: the number of items; 0 removes the `prefetch` pipes and makes the service read nothing ahead. "auto"
            is passed on to `prefetch` pipes, which begin with few items, and leaves the counts of workers as they are.
        worker: the number for each worker of the service, where it is to differ from `count`.

    Raises:
        TypeError: a count is no integer.
        ValueError: a count is negative.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import PrefetchPolicy
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> loader = DataLoader2(IterableWrapper(range(3)).prefetch(10), PrefetchPolicy(0))
        >>> loader.datapipe
        IterableWrapper
    """

    def __init__(self, count: int | Literal["auto"], worker: int | None = None) -> None:
        if count != "auto":
            check_int("PrefetchPolicy", "count", count, least=0)
        if worker is not None:
            check_int("PrefetchPolicy", "worker", worker, least=0)
        self.count = count
        self.worker = count if worker is None else worker

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Sets the buffer size of prefetching pipes, or removes those that do nothing but prefetch."""
        from torchdata.datapipes.iter import Prefetcher

        for pipe in whole(datapipe).breadth_first():
            if not isinstance(pipe, Prefetcher):
                continue
            if self.count == "auto" or self.count > 0:
                pipe.buffer_size = self.count
            elif type(pipe) is Prefetcher:
                (source,) = sources_of(pipe)
                datapipe = put_in_place(whole(datapipe), pipe, source)
            else:
                pipe.buffer_size = 1  # the pipe has another task besides, which the graph still needs
        return datapipe

    def adapt_reading_service(self, reading_service: ReadingServiceInterface) -> ReadingServiceInterface:
        """Sets the counts of the service, if it knows such."""
        if hasattr(reading_service, "set_prefetch_counts"):
            reading_service.set_prefetch_counts(main=self.count, worker=self.worker)
        return reading_service


class FullSync(Adapter):
    """Ends the graph in the pipe `FullSync`, where it does not yet: all ranks end their epochs together.

    Args:
        timeout: seconds that one rank waits for the others at each item.

    Example:
        >>> from torchdata.dataloader2.adapter import FullSync
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> FullSync(timeout=60)(IterableWrapper(range(3)))
        FullSync
    """

    def __init__(self, timeout: float = 30 * 60) -> None:
        self.timeout = timeout

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Appends the pipe."""
        from torchdata.datapipes.iter import FullSync as Pipe

        return datapipe if isinstance(datapipe, Pipe) else Pipe(datapipe, self.timeout)


class PinMemory(Adapter):
    """Ends the graph in the pipe `PinMemory`, where it does not yet: batches are copied to pinned memory ahead of use.

    Args:
        device: the CUDA device that the memory is pinned for; None for the current one.

    Example:
        >>> from torchdata.dataloader2.adapter import PinMemory
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> PinMemory("cuda:0").device
        'cuda:0'
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Appends the pipe."""
        from torchdata.datapipes.iter import PinMemory as Pipe

        return datapipe if isinstance(datapipe, Pipe) else Pipe(datapipe, device=self.device)


class Headroom(Adapter):
    """Serves the first items again and again, from memory: how fast could the program be if loading cost nothing?

    Compare the time of a step with and without it. Items are the same objects each time, so a program that changes them
    finds them changed.

    Args:
        items: how many items are loaded, once, and kept.
        length: how many items an epoch has; None for as many as the pipeline has, or if that is not known, 100 for
            each kept one.

    Raises:
        TypeError: a count is no integer.
        ValueError: `items` is below 1, or `length` is negative.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import Headroom
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(DataLoader2(IterableWrapper(range(7)), Headroom(items=3)))
        [0, 1, 2, 0, 1, 2, 0]
    """

    def __init__(self, items: int, length: int | None = None) -> None:
        self.items = check_int("Headroom", "items", items, least=1)
        self.length = None if length is None else check_int("Headroom", "length", length, least=0)

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Appends the pipe."""
        from torchdata.dataloader2._headroom import ServedAgain

        length = self.length
        if length is None:  # before workers take the graph, whose items are not counted beforehand
            with contextlib.suppress(TypeError):
                length = len(datapipe)
        return ServedAgain(datapipe, self.items, length)


def _tell_all(datapipe: DataPipe, method: str, *values: Any) -> None:
    for pipe in whole(datapipe).breadth_first():
        if has_method(pipe, method):
            getattr(pipe, method)(*values)
