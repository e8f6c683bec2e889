"""Adapters: changes that a loader makes to its copy of the pipe graph before it runs.

An adapter is a function from graph to graph. `DataLoader2` calls its adapters once, in the given order. An adapter may
also change how the reading service runs the graph. Runs in the main process; an adapter owns only its options.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.settings import apply_shuffle_settings
from torchdata.dataloader2.graph.utils import has_method, put_in_place, whole
from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.services.sequential import divided
from torchdata.datapipes._pipe.checks import check_int, check_source
from torchdata.datapipes._pipe.graph.traversal import sources_of
from torchdata.datapipes.datapipe import IterDataPipe

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
    """Base class of adapters: `adapter(datapipe)` returns the changed graph.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.dataloader2.adapter import Adapter
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> class Shortened(Adapter):
        ...     def __call__(self, datapipe):
        ...         return datapipe.header(2)
        >>> list(DataLoader2(IterableWrapper(range(5)), Shortened()))
        [0, 1]
    """

    @abstractmethod
    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Changes the graph.

        Args:
            datapipe: the last pipe of the loader's copy of the graph.

        Returns:
            The last pipe of the changed graph, possibly unchanged.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(datapipe)")

    def adapt_reading_service(self, reading_service: ReadingServiceInterface) -> ReadingServiceInterface:
        """Changes the loader's copy of the reading service before the service takes over the graph.

        Args:
            reading_service: the loader's copy of the service. This method is not called for a loader without a service.

        Returns:
            The service that the loader uses, possibly unchanged.
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
    """Sets how long each `end_caching` of the graph waits for a file that another process is computing.

    Args:
        timeout: seconds.

    Raises:
        ValueError: `timeout` is not a positive number.

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
        """Sets the timeout of every pipe that has a timeout."""
        _tell_all(datapipe, "set_timeout", self.timeout)
        return datapipe


class InvalidateCache(Adapter):
    """Makes the loader ignore the present content of the caches once, and read and compute everything again.

    Args:
        in_memory: whether the items of every `in_memory_cache` are dropped; True by default.
        on_disk: whether files of every `on_disk_cache` that were written before now count as missing; True by default.
            The files are replaced one by one. Files that any loader writes from now on are kept.

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
        """Invalidates every cache."""
        if self.in_memory:
            _tell_all(datapipe, "invalidate_cache")
        if self.on_disk:
            _tell_all(datapipe, "set_valid_since", time.time_ns())
        return datapipe


class ShardingPolicy(Adapter):
    """Sets how every `sharding_filter` of the graph distributes the items.

    Args:
        block: the number of consecutive items per block. With blocks, `sharding_filter().batch(block)` makes the same
            batches for any number of workers; None distributes single items.
        enable: False disables the filters, so that every worker and rank gets all items.
        splits: the number of shards of each epoch, independent of workers and ranks; None for one shard per worker.
            Items, their order and batches are then the same for any number of workers and ranks up to the number of
            splits, and a state that is saved within an epoch resumes with any of them. A worker runs its shards in
            turn. Each shard has its own buffers, and itself reads the pipes before the `sharding_filter`, which costs
            nothing if these are read by index.

    Raises:
        TypeError: `block` or `splits` is not an integer.
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
        """Sets the number of shards of an epoch in the reading service."""
        return service if self.splits is None else divided(service, self.splits)


class PrefetchPolicy(Adapter):
    """Sets how many items every prefetching pipe of the graph and the reading service read ahead.

    Args:
        count: the number of items; 0 removes the `prefetch` pipes and makes the service read nothing ahead. "auto" is
            passed to `prefetch` pipes, which start with few items, and does not change the counts of workers.
        worker: the number for each worker of the service; None (the default) for `count`.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is negative.

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
        """Sets the buffer size of prefetching pipes, or removes pipes that do nothing except prefetch."""
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
                pipe.buffer_size = 1  # the pipe has another task, which the graph still needs
        return datapipe

    def adapt_reading_service(self, reading_service: ReadingServiceInterface) -> ReadingServiceInterface:
        """Sets the prefetch counts of the service, if it has any."""
        if hasattr(reading_service, "set_prefetch_counts"):
            reading_service.set_prefetch_counts(main=self.count, worker=self.worker)
        return reading_service


class FullSync(Adapter):
    """Appends the pipe `FullSync` if the graph does not end with it, so that all ranks end their epochs together.

    Args:
        timeout: seconds that a rank waits for all other ranks at each item.

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
    """Appends the pipe `PinMemory` if the graph does not end with it: batches are copied to pinned memory before they
    are used.

    Args:
        device: the CUDA device to pin memory for; None (the default) for the current device.

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
    """Repeats the first items from memory, to measure how fast the program would be if loading cost nothing.

    Compare the time of a training step with and without it. The items are the same objects each time, so changes to
    them stay.

    Args:
        items: number of items that are loaded once and kept.
        length: number of items in an epoch; None (the default) for the length of the pipeline, or 100 for each kept
            item if the length is not known.

    Raises:
        TypeError: a number is not an integer.
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
        length = self.length
        if length is None:  # before the graph is moved to workers, because its items are not counted in advance
            with contextlib.suppress(TypeError):
                length = len(datapipe)
        return _ServedAgain(datapipe, self.items, length)


#: Items of an epoch by kept item, if the source does not know its length.
_ROUNDS = 100


class _ServedAgain(IterDataPipe[Any]):
    """Reads some items, and then yields these same objects repeatedly.

    Args:
        source_datapipe: the pipe to read.
        items: the number of items that are read, once.
        length: the number of items of an epoch; None for the length of the source, or 100 for each kept item if that
            length is not known.
    """

    item_attributes = frozenset({"_kept"})

    def __init__(self, source_datapipe: Any, items: int, length: int | None = None) -> None:
        check_source("Headroom", source_datapipe, "source_datapipe")
        self.source_datapipe = source_datapipe
        self.items = check_int("Headroom", "items", items, least=1)
        self.length = None if length is None else check_int("Headroom", "length", length, least=0)
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        if len(self._kept) < self.items:
            self._kept = []
            for item in self.source_datapipe:
                self._kept.append(item)
                if len(self._kept) == self.items:
                    break
        kept, left = self._kept, len(self)
        while kept and left > 0:
            yield from kept[:left]
            left -= len(kept)

    def __len__(self) -> int:
        if self.length is not None:
            return self.length
        try:
            return len(self.source_datapipe)
        except TypeError:
            return _ROUNDS * self.items

    def is_replicable(self) -> bool:
        """Returns False, because items are kept in the main process."""
        return False

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_kept": []}


def _tell_all(datapipe: DataPipe, method: str, *values: Any) -> None:
    for pipe in whole(datapipe).breadth_first():
        if has_method(pipe, method):
            getattr(pipe, method)(*values)
