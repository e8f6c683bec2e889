"""The contender torch.utils.data.DataLoader: an iterable dataset that shards itself by the worker's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from comparison import items


class Shared(IterableDataset[Any]):
    """Yields the items of the current worker. If `together` is greater than 1, yields lists of `together` items."""

    def __init__(self, source: range, make: Callable[[int], Any], together: int = 1) -> None:
        self.source = source
        self.make = make
        self.together = together

    def __iter__(self) -> Iterator[Any]:
        worker, make = get_worker_info(), self.make
        share = self.source[worker.id :: worker.num_workers]
        if self.together == 1:
            for n in share:
                yield make(n)
            return
        for begin in range(0, len(share), self.together):
            yield [make(n) for n in share[begin : begin + self.together]]


def loader(source: range, make: Callable[[int], Any], start_method: str, workers: int, options: dict[str, Any]) -> Any:
    more: dict[str, Any] = {}
    if "prefetch_factor" in options:
        more["prefetch_factor"] = options["prefetch_factor"]
    if options.get("numpy"):
        more["collate_fn"] = items.same
    return DataLoader(
        Shared(source, make, options.get("together", 1)),
        batch_size=None,
        num_workers=options.get("workers", workers),
        multiprocessing_context=start_method,
        persistent_workers=bool(options.get("persistent")),
        **more,
    )
