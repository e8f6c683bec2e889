"""Threads that read ahead in the main process end with their loader, and do not disturb the next epoch."""

import gc
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from random_graphs.users import InMain, unpinned
from resuming import begun, epochs_of
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from waiting import check_in_forked_child, wait_for

THREADS = {
    "prefetch": lambda pipe, function: pipe.map(function).prefetch(3),
    "two of them": lambda pipe, function: pipe.prefetch(2).map(function).prefetch(2),
    "a pool": lambda pipe, function: pipe.threadpool_map(function, max_workers=2),
}


@pytest.mark.parametrize(
    ("threads", "workers", "ends"),
    [
        ("prefetch", 0, "collector"),
        ("two of them", 2, "shutdown"),
        ("a pool", 0, "shutdown"),
        ("prefetch", 2, "collector"),
    ],
)
def test_no_function_runs_in_a_thread_of_the_main_process_after_a_loader_has_ended(threads, workers, ends):
    called = []

    def function(item):
        called.append(item)
        time.sleep(0.03)
        random.random()
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
    is_stuck, release = threading.Event(), threading.Event()

    def function(item):
        if item > 1:
            is_stuck.set()
            release.wait(120)
        return item

    loader = DataLoader2(THREADS[threads](IterableWrapper(range(9)), function))
    loader._ending.patience = 0.2
    iterator = iter(loader)
    next(iterator)
    assert is_stuck.wait(120)
    began = time.monotonic()
    try:
        loader.shutdown()
        assert 0.2 <= time.monotonic() - began < 30
    finally:
        release.set()


def test_a_loader_may_be_shut_down_by_a_thread_that_reads_ahead_for_it():
    made = []

    def function(item):
        if item == 2:
            made[0].shutdown()
        return item

    with DataLoader2(IterableWrapper(range(5)).map(function).prefetch(1)) as loader:
        made.append(loader)
        loader._ending.patience = 0.2
        began = time.monotonic()
        items = []
        with pytest.raises(RuntimeError, match="shut down"):
            items += loader
        assert items == list(range(len(items)))
        with pytest.raises(RuntimeError, match="shut down"):
            iter(loader)
        assert time.monotonic() - began < 30


class SlowToEnd(IterDataPipe):
    def __init__(self, source: Any, marker: Path) -> None:
        self.source, self.marker = source, marker

    def __iter__(self) -> Any:
        yield from self.source
        if not self.marker.exists():
            self.marker.touch()
            time.sleep(0.3)


SERVICES: dict[str, Any] = {
    "no service": lambda: None,
    "in process": InProcessReadingService,
    "in process, ahead": lambda: InProcessReadingService(prefetch_cnt=2),
    "in workers": lambda: MultiProcessingReadingService(1, worker_prefetch_cnt=0, main_prefetch_cnt=0),
    "over workers": lambda: MultiProcessingReadingService(2),
}


def pipeline(service: str, marker: Path) -> Any:
    pipe: Any = IterableWrapper(range(6)).shuffle().sharding_filter()
    if service == "over workers":  # the main process runs all pipes after `pin_memory`
        pipe = pipe.pin_memory(pin_memory_fn=unpinned).shuffle()
    return SlowToEnd(pipe, marker).cycle(2).prefetch(10)


@pytest.mark.alone
@pytest.mark.parametrize("service", SERVICES)
def test_a_thread_of_an_abandoned_epoch_takes_no_seeds_of_the_next_one(service: str, tmp_path: Path) -> None:
    marker = tmp_path / "written"
    pipe = pipeline(service, marker)

    def loader() -> DataLoader2[Any]:
        return begun(DataLoader2(pipe, reading_service=SERVICES[service]()))

    marker.touch()
    expected = epochs_of(loader(), 3)
    marker.unlink()
    with loader() as made:
        reading = iter(made)
        got = [next(reading) for _ in range(4)]
        wait_for(marker.exists)  # At 10 items, the thread is about to begin the second repetition of `cycle`.
        assert got == expected[0][:4]
        assert [list(made), list(made)] == expected[1:]


def test_a_thread_that_ends_an_epoch_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        recorder, ends, begins = loader._recorder, threading.Event(), threading.Event()
        end, begin = recorder.end, recorder.begin

        def end_slowly() -> None:
            end()
            if not ends.is_set():
                ends.set()
                begins.wait(0.5)  # No thread may begin an epoch during this wait.

        def begin_and_report(*arguments: Any) -> None:
            begin(*arguments)
            begins.set()

        first = iter(loader)
        monkeypatch.setattr(recorder, "end", end_slowly)
        monkeypatch.setattr(recorder, "begin", begin_and_report)
        reader = threading.Thread(target=lambda: list(first))
        reader.start()
        wait_for(ends.is_set)
        second = iter(loader)
        reader.join()
        assert list(second) == list(range(10))


def test_an_older_iterator_reads_nothing_of_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        first, shown, position = iter(loader), [], loader._run.position
        next(first)
        drop = position.drop

        def read_and_drop(item: Any) -> None:
            def read() -> None:
                with pytest.raises(RuntimeError, match="another iterator has been created"):
                    shown.append(next(first))

            reader = threading.Thread(target=read)
            reader.start()
            reader.join()
            drop(item)

        monkeypatch.setattr(position, "drop", read_and_drop)
        second = iter(loader)
        assert not shown
        assert list(second) == list(range(10))


def test_a_forked_child_does_not_wait_for_a_state_that_a_thread_of_its_parent_takes() -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        iterator.limit(100)
        holds, over = threading.Event(), threading.Event()

        def hold() -> None:
            with loader._run.held:
                holds.set()
                over.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        wait_for(holds.is_set)

        def check() -> None:
            assert list(iterator) == list(range(1, 10))
            assert loader.state_dict()

        try:
            check_in_forked_child(check, 20)
        finally:
            over.set()
            holder.join()
