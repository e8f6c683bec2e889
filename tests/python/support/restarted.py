"""Creates loaders that replace exited processes, and pipelines for these loaders."""

import random

from process_checks import MULTIPROCESSING
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


def drawing(item):
    return item, random.random()


def shared_out(items, dispatched=False):
    pipe = IterableWrapper(range(items))
    return pipe.sharding_round_robin_dispatch(MULTIPROCESSING) if dispatched else pipe.sharding_filter()


def pipeline(items, dispatched=False):
    pipe = IterableWrapper(range(items)).shuffle()
    pipe = pipe.sharding_round_robin_dispatch(MULTIPROCESSING) if dispatched else pipe.sharding_filter()
    return pipe.map(drawing).shuffle(buffer_size=20).batch(2)


def restarting(pipe, num_workers=2, *, how="restart", seed=3, **options):
    random.seed(4)
    service = MultiProcessingReadingService(num_workers, on_worker_exit=how, **options)
    loader = DataLoader2(pipe, reading_service=service)
    loader.seed(seed)
    return loader


def pids_of(loader):
    return loader.reading_service._children.pids


def undisturbed(pipe, epochs=1, **options):
    with restarting(pipe, how="error", **options) as loader:
        return [list(loader) for _ in range(epochs)]
