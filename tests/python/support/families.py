"""The three families of loaders that start worker processes, with a common interface for tests of processes.

Two of the families need PyTorch, and are left out if PyTorch is not installed. Spawned workers import this module, so
this module imports torch only when a family needs torch.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

TORCH = importlib.util.find_spec("torch") is not None

#: The number of workers that each family starts.
WORKERS = 2


def identity(x):
    return x


class Mapped:
    """A dataset of numbers with a function that is applied in the workers."""

    def __init__(self, function, count):
        self.function, self.count = function, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)


class Opened:
    """The items of a loader, and a function that shuts the loader down."""

    def __init__(self, loader, close):
        self._iterator = iter(loader)
        self._close = close

    def __enter__(self):
        return self._iterator

    def __exit__(self, *_):
        self._close(self)


def dataloader2(method, function=identity, count=20):
    service = MultiProcessingReadingService(WORKERS, method, worker_prefetch_cnt=1, main_prefetch_cnt=1)
    loader = DataLoader2(IterableWrapper(range(count)).sharding_filter().map(function), reading_service=service)
    return Opened(loader, lambda _: loader.shutdown())


def imported(name):
    """Imports a module. Objects of the import are excluded from garbage collection, because tests collect often."""
    if name not in sys.modules:
        importlib.import_module(name)
        gc.collect()
        gc.freeze()
    return sys.modules[name]


def stateful(method, function=identity, count=20):
    StatefulDataLoader = imported("torchdata.stateful_dataloader").StatefulDataLoader
    loader = StatefulDataLoader(
        Mapped(function, count),
        batch_size=None,
        num_workers=WORKERS,
        collate_fn=identity,
        multiprocessing_context=method,
    )
    return Opened(loader, lambda opened: opened._iterator.shutdown())


def nodes(method, function=identity, count=20):
    nodes = imported("torchdata.nodes")
    node = nodes.ParallelMapper(
        nodes.IterableWrapper(range(count)),
        function,
        num_workers=WORKERS,
        method="process",
        multiprocessing_context=method,
        max_concurrent=WORKERS,
    )
    return Opened(nodes.Loader(node), lambda _: node.shutdown())


FAMILIES = {"DataLoader2": dataloader2}
if TORCH:
    FAMILIES |= {"StatefulDataLoader": stateful, "ParallelMapper": nodes}
