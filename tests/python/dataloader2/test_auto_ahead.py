"""With `"auto"`, a thread reads further ahead to avoid waiting, and less far ahead if items are large."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from process_checks import nothing_is_left  # noqa: F401
from torchdata import _machine as machine
from torchdata._native import ReadAheadQueue
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import PrefetchPolicy
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.threads.depth import bytes_of

pytestmark = pytest.mark.alone


def unsteady(item: int) -> int:
    """Returns most items immediately, and delays some consecutive items, with an average delay of 2 ms per item."""
    time.sleep(0.03 if item % 32 < 2 else 0.0)
    return item


def wide(item: int) -> Any:
    unsteady(item // 2)
    return np.full(1 << 18, item)


def test_a_thread_reads_further_ahead_if_that_saves_waiting():
    pace = 0.0025  # seconds per item (more on a slow machine)

    def unsteady(item: int) -> int:
        time.sleep(12 * pace if item % 32 < 2 else 0.0)
        return item

    pipe = IterableWrapper(range(640)).map(unsteady).prefetch("auto")
    reading, got = iter(pipe), []
    for item in reading:
        got.append(item)
        began = time.monotonic()
        time.sleep(0.0025)
        pace = time.monotonic() - began
    assert got == list(range(640))
    assert pipe._data is not None
    assert pipe._data.queue.capacity >= 16


def test_only_items_after_the_stop_of_a_source_are_missing():
    queue = ReadAheadQueue("a test", 2)

    def make(after: float) -> threading.Thread:
        def run() -> None:
            slot = queue.reserve()
            time.sleep(after)
            queue.put(slot, 1)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    for _ in range(5):  # the consumer always waits, so the thread never has to stop
        thread = make(0.01)
        queue.pop()
        thread.join()
        assert not queue.has_lacked()
    lacked = False
    deadline = time.monotonic() + 20
    while not lacked:
        assert time.monotonic() < deadline
        for thread in (make(0), make(0)):
            thread.join()
        thread = make(0.01)  # blocks because the queue is full, unless the thread is late
        time.sleep(0.01)
        for _ in range(3):
            queue.pop()
        thread.join()
        lacked = queue.has_lacked()
    assert not queue.has_lacked(), "it is said once"


def test_large_items_keep_a_thread_from_reading_far_ahead(monkeypatch):
    monkeypatch.setattr(machine, "memory_left", lambda: 16 * 3 * (8 << 18))  # the thread may buffer three items
    pipe = IterableWrapper(range(300)).map(wide).prefetch("auto")
    for _ in pipe:
        time.sleep(0.0015)
    assert pipe._data is not None
    assert pipe._data.queue.capacity <= 3


def test_the_size_of_an_item_is_that_of_what_it_holds():
    assert bytes_of(np.zeros(1000)) == 8000
    assert bytes_of({"a": np.zeros(10, np.uint8), "b": [np.zeros(5, np.uint8), (np.zeros(1, np.uint8),)]}) == 16
    assert 10_000 < bytes_of(b"x" * 10_000) < 10_100


def test_prefetch_policy_passes_auto_on_to_threads_and_leaves_workers_as_they_are():
    service = MultiProcessingReadingService(2, worker_prefetch_cnt=7)
    loader = DataLoader2(IterableWrapper(range(3)).prefetch(4), PrefetchPolicy("auto"), service)
    assert loader.datapipe.buffer_size == "auto"
    assert (loader.reading_service.main_prefetch_cnt, loader.reading_service.worker_prefetch_cnt) == (10, 7)
    loader = DataLoader2(IterableWrapper(range(3)).prefetch(4), PrefetchPolicy("auto", worker=3), service)
    assert (loader.reading_service.main_prefetch_cnt, loader.reading_service.worker_prefetch_cnt) == (10, 3)
    for wrong in ("many", 2.5, None):
        with pytest.raises(TypeError, match="count"):
            PrefetchPolicy(wrong)
        with pytest.raises(TypeError, match="num_workers"):
            MultiProcessingReadingService(wrong)
    for count in ("worker_prefetch_cnt", "main_prefetch_cnt"):
        with pytest.raises(TypeError, match=count):
            MultiProcessingReadingService(2, **{count: "auto"})
