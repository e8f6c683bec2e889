"""Gives the three kinds of loaders with workers a common interface. Torch is imported only when a test needs it."""

import gc
import importlib
import importlib.util
import sys

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

TORCH = importlib.util.find_spec("torch") is not None

WORKERS = 2


def identity(x):
    return x


class Mapped:
    def __init__(self, function, count):
        self.function, self.count = function, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)


class Opened:
    def __init__(self, loader, close):
        self.loader, self.items, self._close = loader, iter(loader), close

    def __enter__(self):
        return self.items

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._close(self.items)


def dataloader2(method, function=identity, count=20, dispatches=False, stall_warning=60.0, **options):
    options = {"worker_prefetch_cnt": 1, "main_prefetch_cnt": 1, **options}
    pipe = IterableWrapper(range(count))
    if dispatches:
        pipe = pipe.map(function).sharding_round_robin_dispatch().map(identity)
    else:
        pipe = pipe.sharding_filter().map(function)
    service = MultiProcessingReadingService(WORKERS, method, **options)
    loader = DataLoader2(pipe, reading_service=service, stall_warning=stall_warning)
    return Opened(loader, lambda _: loader.shutdown())


def imported(name):
    """Excludes imported objects from garbage collection, because tests collect garbage often."""
    if name not in sys.modules:
        importlib.import_module(name)
        gc.collect()
        gc.freeze()
    return sys.modules[name]


def stateful(method, function=identity, count=20, **options):
    StatefulDataLoader = imported("torchdata.stateful_dataloader").StatefulDataLoader
    options |= {"num_workers": WORKERS, "collate_fn": identity, "multiprocessing_context": method}
    loader = StatefulDataLoader(Mapped(function, count), batch_size=None, **options)
    return Opened(loader, lambda items: items.shutdown())


def nodes(method, function=identity, count=20, **options):
    nodes = imported("torchdata.nodes")
    options = {"method": "process", "multiprocessing_context": method, "max_concurrent": WORKERS, **options}
    node = nodes.ParallelMapper(nodes.IterableWrapper(range(count)), function, num_workers=WORKERS, **options)
    return Opened(nodes.Loader(node), lambda _: node.shutdown())


FAMILIES = {"DataLoader2": dataloader2}
if TORCH:
    FAMILIES |= {"StatefulDataLoader": stateful, "ParallelMapper": nodes}
