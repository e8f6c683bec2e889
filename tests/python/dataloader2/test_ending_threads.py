"""Threads of pipes in the main process always end, and call no functions after their loader has ended."""

from __future__ import annotations

import gc
import random
import threading
import time

import pytest

from random_graphs.users import InMain
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

THREADS = {
    "prefetch": lambda pipe, function: pipe.map(function).prefetch(3),
    "two of them": lambda pipe, function: pipe.prefetch(2).map(function).prefetch(2),
    "a pool": lambda pipe, function: pipe.threadpool_map(function, max_workers=2),
}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ends", ["shutdown", "collector"])
def test_no_function_runs_in_a_thread_of_the_main_process_after_a_loader_has_ended(threads, workers, ends):
    called = []

    def function(item):
        called.append(item)
        time.sleep(0.03)
        random.random()  # such a draw would change the random numbers of other loaders
        return item

    pipe = THREADS[threads](InMain(IterableWrapper(range(200)).sharding_filter()), function)
    service = MultiProcessingReadingService(workers, "fork") if workers else None
    loader = DataLoader2(pipe, reading_service=service)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    if ends == "shutdown":
        loader.shutdown()
    del loader, iterator, pipe, service
    gc.collect()
    generator, count = random.getstate(), len(called)
    time.sleep(0.1)
    assert (random.getstate(), len(called)) == (generator, count)


@pytest.mark.parametrize("threads", THREADS)
def test_the_wait_for_a_thread_that_does_not_finish_its_item_is_bounded(threads):
    is_stuck, goes_on = threading.Event(), threading.Event()

    def function(item):
        if item > 1:
            is_stuck.set()
            goes_on.wait(120)
        return item

    loader = DataLoader2(THREADS[threads](IterableWrapper(range(9)), function))
    loader._ending.patience = 0.2  # 2 s by default
    iterator = iter(loader)
    next(iterator)
    assert is_stuck.wait(120)
    began = time.monotonic()
    try:
        loader.shutdown()
        assert 0.2 <= time.monotonic() - began < 30
    finally:
        goes_on.set()


def test_a_loader_may_be_shut_down_by_a_thread_that_reads_ahead_for_it():
    made = []

    def function(item):
        if item == 2:
            made[0].shutdown()
        return item

    with DataLoader2(IterableWrapper(range(5)).map(function).prefetch(1)) as loader:
        made.append(loader)
        loader._ending.patience = 0.2  # 2 s by default
        began = time.monotonic()
        items = []
        with pytest.raises(RuntimeError, match="shut down"):  # the shutdown came before the end of the epoch
            items += loader
        assert items == list(range(len(items)))
        with pytest.raises(RuntimeError, match="shut down"):
            iter(loader)
        assert time.monotonic() - began < 30
