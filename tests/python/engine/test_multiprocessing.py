"""DataLoader2 over worker processes delivers the expected items in the expected order in every epoch."""

import random
import time

import numpy as np
import pytest

from process_checks import METHODS, MULTIPROCESSING, identity, loader
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService, reading_service
from torchdata.dataloader2.linter import DataPipeLintWarning
from torchdata.dataloader2.utils import process_reset_fn
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from waiting import wait_for


def sharded(n, shuffle=False):
    datapipe = IterableWrapper(range(n))
    if shuffle:
        datapipe = datapipe.shuffle(buffer_size=20)
    return datapipe.sharding_filter().map(identity)


@pytest.mark.parametrize(("count", "workers"), [(25, 3), (0, 4), (1, 4), (5, 4)])
def test_every_item_arrives_once_in_every_epoch_and_round_robin(count, workers):
    with loader(sharded(count), workers) as dl:
        for _ in range(3):
            assert list(dl) == list(range(count))


def test_a_seed_decides_the_order_with_every_start_method_and_epochs_differ():
    runs = []
    for method, seed in [*((method, 7) for method in METHODS), ("fork", 8)]:
        with loader(sharded(50, shuffle=True), multiprocessing_context=method) as dl:
            dl.seed(seed)
            runs.append([list(dl), list(dl)])
    assert runs[0] == runs[1] == runs[2] != runs[3]
    assert runs[0][0] != runs[0][1]
    assert all(sorted(epoch) == list(range(50)) for run in runs for epoch in run)


def test_without_sharding_every_worker_yields_all_items_with_a_warning():
    warned = pytest.warns(DataPipeLintWarning, match="every item is yielded 2 times")
    with warned, loader(IterableWrapper(range(5)).map(identity)) as dl:
        assert sorted(dl) == sorted([*range(5), *range(5)])


def test_global_generators_are_seeded_for_each_worker_and_epoch():
    def run(seed):
        numbers = IterableWrapper(range(8)).sharding_filter()
        with loader(numbers.map(lambda x: (x, random.random(), float(np.random.random())))) as dl:
            dl.seed(seed)
            return [list(dl), list(dl)]

    first, again, other = run(1), run(1), run(2)
    assert first == again
    assert first != other
    drawn = [(a, b) for epoch in first for _, a, b in epoch]
    assert len(set(drawn)) == len(drawn), "two workers or epochs drew the same numbers"


def settled(dl, quiet=0.3):
    read = lambda: dl.stats().workers[0].pipes[0].items_out  # noqa: E731
    value, since = read(), time.monotonic()
    while time.monotonic() - since < quiet:
        if (now := read()) != value:
            value, since = now, time.monotonic()
        time.sleep(0.01)
    return value


def test_workers_run_ahead_as_far_as_allowed_and_no_further():
    with loader(IterableWrapper(range(1000)).sharding_filter(), 1, worker_prefetch_cnt=7, main_prefetch_cnt=5) as dl:
        iterator = iter(dl)
        assert next(iterator) == 0
        wait_for(lambda: dl.stats().workers[0].pipes[0].items_out >= 13)
        assert settled(dl) == 1 + 7 + 5


def test_a_pause_stops_the_workers_and_resume_continues_at_the_same_item():
    with loader(IterableWrapper(range(60)).sharding_filter(), 1, worker_prefetch_cnt=2, main_prefetch_cnt=2) as dl:
        iterator = iter(dl)
        iterator.limit(10)
        assert list(iterator) == list(range(10))
        assert settled(dl) <= 10 + 4
        assert list(iterator) == []
        iterator.limit(None)
        iterator.resume()
        assert list(iterator) == list(range(10, 60))


@pytest.mark.parametrize("method", METHODS)
def test_dispatching_and_local_functions_work_with_every_start_method(method):
    size = 40_000
    pipe = IterableWrapper(range(20)).shuffle().sharding_round_robin_dispatch(MULTIPROCESSING)
    with loader(pipe.map(lambda x: np.full(size, x)), multiprocessing_context=method) as dl:
        dl.seed(1)
        first, second = ([int(a[0]) for a in dl] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_a_dispatched_and_a_sharded_branch_meet_in_the_workers():
    dispatched = IterableWrapper(range(10)).sharding_round_robin_dispatch(MULTIPROCESSING)
    other = IterableWrapper(range(100, 110)).sharding_filter()
    with loader(dispatched.zip(other)) as dl:
        for _ in range(2):
            assert list(dl) == [(i, 100 + i) for i in range(10)]


def test_a_second_iterator_within_an_epoch_starts_over():
    with loader(sharded(100)) as dl:
        for _ in range(5):
            iterator = iter(dl)
            assert [next(iterator) for _ in range(7)] == list(range(7))
        with pytest.raises(RuntimeError, match="invalidated"):
            old = iter(dl)
            next(old)
            next(iter(dl))
            next(old)
        assert list(dl) == list(range(100))


def test_out_of_order_items_are_delivered_when_they_are_ready_and_none_is_lost(tmp_path):
    arrival = tmp_path / "39 has come"

    def waits_at_38(x):
        if x == 38:
            wait_for(arrival.exists)
        return x

    datapipe = IterableWrapper(range(40)).sharding_filter().map(waits_at_38)
    with loader(datapipe, in_order=False) as dl:
        received = []
        for x in dl:
            received.append(x)
            if x == 39:
                arrival.touch()
        assert sorted(received) == list(range(40))
        assert received[-1] == 38


def add_epoch_seed(datapipe, worker_info, seed_generator):
    random.seed(seed_generator.generate_shared_seed())
    return datapipe


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_functions_put_into_the_module_prepare_the_graph_in_workers(method, monkeypatch):
    """Some packages replace functions of `reading_service` by copies from torchdata 0.9 with other parameters."""

    def init(datapipe, worker_info, custom_init_fn, worker_prefetch_cnt, dispatching_req_queue, dispatching_res_queue):
        from torchdata.dataloader2 import communication  # noqa: F401
        from torchdata.dataloader2.graph import find_dps, traverse_dps
        from torchdata.dataloader2.graph.cutting import _DummyIterDataPipe

        assert find_dps(traverse_dps(datapipe), _DummyIterDataPipe) == []
        assert (dispatching_req_queue, dispatching_res_queue) == (None, None)
        return custom_init_fn(datapipe, worker_info)

    def reset(datapipe, worker_info, seed_generator, **options):
        datapipe.resets = getattr(datapipe, "resets", 0) + 1
        return process_reset_fn(datapipe, worker_info, seed_generator, **options)

    monkeypatch.setattr(reading_service, "process_init_fn", init)
    monkeypatch.setattr(reading_service, "process_reset_fn", reset)
    dispatched = IterableWrapper(range(6)).sharding_round_robin_dispatch(MULTIPROCESSING)

    def numbered(datapipe, worker_info):
        return Numbered(datapipe, worker_info.worker_id)

    with loader(dispatched.map(identity), worker_init_fn=numbered, multiprocessing_context=method) as dl:
        assert list(dl) == [(0, 1, 0), (1, 1, 1), (0, 1, 2), (1, 1, 3), (0, 1, 4), (1, 1, 5)]
        assert {resets for _, resets, _ in dl} == {2}


class Numbered(IterDataPipe):
    def __init__(self, source_datapipe, number):
        self.source_datapipe, self.number = source_datapipe, number

    def __iter__(self):
        for item in self.source_datapipe:
            yield self.number, self.resets, item


def test_worker_init_fn_and_reset_fn_change_the_graph():
    init = lambda pipe, info: pipe.map(lambda x: (info.worker_id, info.num_workers, x))  # noqa: E731
    with loader(sharded(6), worker_init_fn=init, worker_reset_fn=add_epoch_seed) as dl:
        for _ in range(2):
            assert list(dl) == [(x % 2, 2, x) for x in range(6)]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"num_workers": 1.5}, TypeError, "num_workers"),
        ({"num_workers": True}, TypeError, "num_workers"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, ValueError, "multiprocessing_context"),
        ({"num_workers": 1, "worker_prefetch_cnt": -1}, ValueError, "worker_prefetch_cnt"),
        ({"num_workers": 1, "main_prefetch_cnt": "10"}, TypeError, "main_prefetch_cnt"),
        ({"num_workers": 1, "worker_init_fn": 3}, TypeError, "worker_init_fn"),
        ({"num_workers": 1, "worker_reset_fn": "f"}, TypeError, "worker_reset_fn"),
        ({"num_workers": 1, "in_order": 1}, TypeError, "in_order"),
        ({"num_workers": 1, "memory_budget": -5}, ValueError, "memory_budget"),
        ({"num_workers": 1, "timeout": -1}, ValueError, "timeout"),
        ({"num_workers": 1, "timeout": float("nan")}, ValueError, "timeout"),
    ],
)
def test_wrong_arguments_are_named(options, error, match):
    with pytest.raises(error, match=match):
        MultiProcessingReadingService(**options)


def test_a_seed_gives_any_number_of_processes_the_order_of_a_shuffle_before_the_sharding():
    epochs = []
    for workers in range(4):
        service = MultiProcessingReadingService(workers) if workers else InProcessReadingService()
        pipe = IterableWrapper(range(100)).shuffle()
        with DataLoader2(pipe.sharding_filter() if workers else pipe, reading_service=service) as dl:
            dl.seed(123)
            epochs.append([list(dl) for _ in range(2)])
    assert sorted(epochs[0][0]) == list(range(100)) != epochs[0][0]
    assert epochs == [epochs[0]] * 4
