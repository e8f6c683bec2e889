"""The common parts of the tests of `num_workers="auto"`: loaders, and what a loader with two workers gives."""

from __future__ import annotations

from typing import Any

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


def plain(item: Any) -> Any:
    return item


def shuffled(count: int) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(plain)


def auto(pipe: Any, adapters: Any = None, **options: Any) -> DataLoader2[Any]:
    options.setdefault("multiprocessing_context", "fork")
    return DataLoader2(pipe, adapters, MultiProcessingReadingService("auto", **options))


def epochs_until(workers: int, loader: DataLoader2[Any], most: int = 10) -> list[list[Any]]:
    """Epochs until one has run in so many workers."""
    got: list[list[Any]] = []
    while len(got) < most and loader.reading_service.num_workers != workers:
        got.append(list(loader))
    return got


def in_order_of(pipe: Any, seed: int, epochs: int = 1) -> list[list[Any]]:
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        loader.seed(seed)
        return [list(loader) for _ in range(epochs)]
