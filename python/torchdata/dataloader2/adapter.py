"""Adapters: changes that a loader makes to its copy of the pipe graph before it runs.

An adapter is a function that takes a graph and returns the changed graph. `DataLoader2` calls its adapters once, in the
given order, in the main process. An adapter can also change how the reading service runs the graph.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.settings import apply_shuffle_settings, call_all
from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.services.sequential import divided
from torchdata.datapipes._pipe.checks import check_optional_int

__all__ = ["Adapter", "CacheTimeout", "ShardingPolicy", "Shuffle"]


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
            The last pipe of the changed graph, possibly `datapipe` itself.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(datapipe)")

    def adapt_reading_service(self, reading_service: ReadingServiceInterface) -> ReadingServiceInterface:
        """Changes the loader's copy of the reading service before the service takes over the graph.

        Args:
            reading_service: the loader's copy of the service. A loader without a reading service does not call this
                method.

        Returns:
            The service that the loader uses, possibly unchanged.
        """
        return reading_service


class Shuffle(Adapter):
    """Switches all shufflers of the graph on or off.

    Args:
        enable: True (the default) switches all shufflers on, and appends a shuffler (with a warning) if there is none.
            False switches them off. None leaves the graph unchanged.

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
        timeout: the number of seconds. `timeout` has no default, and None raises an error.

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
        """Calls `set_timeout` of every pipe that has a method of this name."""
        call_all(datapipe, "set_timeout", self.timeout)
        return datapipe


class ShardingPolicy(Adapter):
    """Sets how every `sharding_filter` of the graph distributes the items.

    Args:
        block: the number of consecutive items per block. With blocks, `sharding_filter().batch(block)` yields the same
            batches for any number of workers; `block=None` distributes single items.
        enable: False disables the filters, so that every worker and rank gets all items; True by default.
        splits: the number of shards of each epoch, independent of workers and ranks; None for one shard per worker.
            With `splits`, the items, their order and the batches are the same for any number of workers, and for any
            number of ranks up to `splits`. The numbers of workers and ranks may change when an epoch resumes. A worker
            with several shards takes one item of each shard in turn. The buffers of pipes after the `sharding_filter`
            exist once for each shard. The pipes before the `sharding_filter` run once for all shards of a worker, and
            draw the same random numbers in all workers. The guide lists exceptions.

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
        self.block = check_optional_int("ShardingPolicy", "block", block, least=1)
        self.enable = enable
        self.splits = check_optional_int("ShardingPolicy", "splits", splits, least=1)

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """Sets the number of consecutive items per block in every `sharding_filter` of the graph, and enables or
        disables these filters."""
        call_all(datapipe, "set_sharding_block", self.block)
        call_all(datapipe, "set_sharding_enabled", self.enable)
        return datapipe

    def adapt_reading_service(self, service: Any) -> Any:
        """Sets the number of shards of an epoch in the reading service `service`, and returns the service.

        Raises:
            ValueError: the service cannot run shards.
        """
        return service if self.splits is None else divided(service, self.splits)
