"""A loader's counters equal the counts that the tests make, in this process and in workers of every start method."""

import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from statistics import fmean

import numpy as np
import pytest

from families import TORCH
from process_checks import METHODS, MULTIPROCESSING, loader, nothing_is_left, wait_for  # noqa: F401
from ranks import gloo_job
from torchdata._engine import snapshots
from torchdata._native import IterationToken, StatsBoard
from torchdata._observe.stats import recorder
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting
from torchdata.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.state import load_state, save_state
from waiting import check_in_forked_child

pytestmark = pytest.mark.alone


def is_even(x):
    return x % 2 == 0


def double(x):
    return 2 * x


def big(x):
    return np.full(50_000, x, np.uint8)


def items_out(process):
    return {pipe.name: pipe.items_out for pipe in process.pipes}


def pipeline(count):
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(double).filter(is_even).batch(3)


@pytest.mark.parametrize("service", [None, InProcessReadingService(), InProcessReadingService(prefetch_cnt=4)])
@pytest.mark.parametrize("level", ["counts", "full"])
def test_every_pipe_of_this_process_is_counted_over_all_epochs(service, level):
    with DataLoader2(pipeline(100), reading_service=service, stats=level) as loader:
        for _ in range(3):
            assert len(list(loader)) == 34
        stats = loader.stats()
    assert (stats.items, stats.epoch, stats.running, stats.bytes) == (102, 3, False, 0)
    (main,) = stats.processes
    assert (main.role, main.pid) == ("main", os.getpid())
    out = items_out(main)
    assert {name: out[name] for name in list(out)[:5]} == {
        "IterableWrapper": 300,
        "Shuffler": 300,
        "ShardingFilter": 300,
        "Mapper(double)": 300,
        "Filter(is_even)": 300,
    }
    assert [pipe.items_in for pipe in main.pipes][:3] == [None, 300, 300]
    assert all((pipe.own_seconds is None) == (level == "counts") for pipe in main.pipes)


@pytest.mark.parametrize("method", METHODS)
def test_workers_count_what_they_read_make_and_send(method):
    with loader(pipeline(100), 3, multiprocessing_context=method) as dl:
        for _ in range(2):
            assert len(list(dl)) == 34
        stats = dl.stats()
        assert [p.name for p in stats.processes] == ["main", *(f"worker process {i}" for i in range(3))]
        assert stats.items == 68
        for worker, share in zip(stats.workers, (34, 33, 33), strict=True):
            assert (worker.items, worker.in_flight) == (2 * -(-share // 3), 0)
            assert items_out(worker) == {
                "IterableWrapper": 200,
                "Shuffler": 200,
                "ShardingFilter": 2 * share,
                "Mapper(double)": 2 * share,
                "Filter(is_even)": 2 * share,
                "Batcher": 2 * -(-share // 3),
            }
            assert worker.pid != os.getpid()
        assert {"worker process 0", "worker process 1", "worker process 2"} == set(stats.waited_for)
        pids = [worker.pid for worker in stats.workers]
    after = dl.stats()
    assert [worker.pid for worker in after.workers] == pids, "earlier counts are kept"
    assert {process.state for process in after.processes} == {"ended"}


def test_bytes_memory_and_copies_are_counted_for_the_items():
    kept = []
    with loader(IterableWrapper(range(40)).sharding_filter().map(big), 1, memory_budget=1 << 20) as dl:
        for item in dl:
            kept.append(item)
            stats = dl.stats()
            assert stats.shared_memory <= stats.shared_memory_peak <= stats.shared_memory_limit == 1 << 20
        assert stats.shared_memory_peak >= 500_000
    stats = dl.stats()
    assert 40 * 50_000 < stats.bytes < 40 * 50_200 + 50_000, "states travel with the items"
    # The test keeps all items, and ten items fill half of the memory budget, so most items are copied or fragmented.
    assert stats.copies + stats.fragments >= 25
    assert stats.copied_bytes == 50_000 * stats.copies
    assert [int(item[0]) for item in kept] == list(range(40))
    with loader(IterableWrapper(range(5)).sharding_filter().map(big), 1, memory_budget=0) as dl:
        assert len(list(dl)) == 5
        stats = dl.stats()
    assert stats.fragments >= 5
    assert stats.shared_memory_limit == stats.copies == 0


def slowly(x):
    time.sleep(0.01)
    return x


def test_a_waiting_main_process_reports_the_worker_it_waits_for():
    for _ in range(20):
        with loader(IterableWrapper(range(60)).sharding_filter().map(slowly), 2) as dl:
            times = [time.perf_counter() for _ in dl]
            slow = dl.stats()
        if max(np.diff(times)) < 0.04:  # A longer gap means that the machine paused a process.
            break
    assert slow.waiting > 0.7
    assert slow.loading >= slow.waiting
    assert slow.waiting_seconds == pytest.approx(sum(slow.waited_for.values()), rel=0.01)
    assert all(worker.busy > 0.6 for worker in slow.workers)


def test_workers_that_wait_for_room_are_reported_as_such():
    pipe = IterableWrapper(range(20)).sharding_filter()
    for _ in range(20):
        steps, waits = [], []
        with loader(pipe, 2, worker_prefetch_cnt=1, main_prefetch_cnt=0) as dl:
            asked = time.perf_counter()
            for _ in dl:
                begun = time.perf_counter()
                time.sleep(0.03)
                waits.append(begun - asked)
                asked = time.perf_counter()
                steps.append(asked - begun)
            fast = dl.stats()
        if max(waits[1:]) < 0.01:  # A longer wait means that the machine paused a worker.
            break
    assert fast.waiting < 0.3
    assert fast.held_up > 0.5
    assert fast.step_seconds == pytest.approx(fmean(steps), rel=0.3)


def test_with_dispatching_each_leg_is_counted_also_since_earlier_statistics():
    pipe = IterableWrapper(range(40)).map(double).sharding_round_robin_dispatch(MULTIPROCESSING)
    with loader(pipe.map(double), 2) as dl:
        assert sorted(dl) == list(range(0, 160, 4))
        before = dl.stats()
        for _ in range(2):
            assert sorted(dl) == list(range(0, 160, 4))
        since, stats = dl.stats(before), dl.stats()
    assert (since.items, sum(worker.items for worker in since.workers)) == (80, 80)
    assert since.seconds < stats.seconds
    assert stats.dispatching is not None
    assert (stats.items, stats.dispatching.items) == (120, 120)
    assert items_out(stats.dispatching)["Mapper(double)"] == 120
    for worker in stats.workers:
        assert (worker.items, items_out(worker)["DispatchedSource"]) == (60, 60)
        assert set(worker.waited_for) == {"the dispatching process"}


def test_items_that_are_read_ahead_are_kept():
    with DataLoader2(IterableWrapper(range(100)).map(double).prefetch(7)) as dl:
        iterator = iter(dl)
        for _ in range(10):
            next(iterator)
        wait_for(lambda: dl.stats().prefetched == 7)
        stats = dl.stats()
        (prefetcher,) = (pipe for pipe in stats.pipes if pipe.name == "Prefetcher")
        assert (prefetcher.buffered_items, prefetcher.capacity) == (7, 7)
        assert (prefetcher.items_in, prefetcher.items_out) == (17, 10)
        assert stats.prefetch_limit == 7
        assert len(list(iterator)) == 90  # The pipe's thread has ended after the last item.


def test_the_time_of_a_pipe_excludes_its_source():
    took = {"two": 0.0, "one": 0.0}  # A sleep takes longer on a busy machine, so the test sums the actual times.

    def sleeps(name, seconds):
        begun = time.perf_counter()
        time.sleep(seconds)
        took[name] += time.perf_counter() - begun

    def two(x):
        sleeps("two", 0.01)
        return x

    def one(x):
        sleeps("one", 0.005)
        return x

    with DataLoader2(IterableWrapper(range(3000)).map(str), stats="full") as dl:
        list(dl)  # Another pipeline runs in this thread, and the counters time only some of its calls.
    with DataLoader2(IterableWrapper(range(50)).map(two).map(one).batch(5), stats="full") as dl:
        begun = time.perf_counter()
        for _ in dl:
            pass
        whole = time.perf_counter() - begun
        stats = dl.stats()
    own = {pipe.name: pipe for pipe in stats.pipes}
    slow, fast, batcher = own["Mapper(two)"], own["Mapper(one)"], own["Batcher"]
    # Only bounds are checked, because another program may delay this process during some of the measurements.
    assert took["two"] <= slow.own_seconds <= whole - took["one"]
    assert took["one"] <= fast.own_seconds <= whole - took["two"]
    assert batcher.own_seconds <= whole - took["two"] - took["one"]
    assert slow.own_seconds + fast.own_seconds + batcher.own_seconds <= whole
    assert 0.008 < slow.p50 <= slow.p99
    assert slow.location.endswith(f"{os.path.basename(__file__)}:{two.__code__.co_firstlineno}")
    assert slow.share == pytest.approx(slow.own_seconds / sum(pipe.own_seconds for pipe in stats.pipes))


class HandedOn(IterDataPipe):
    def __init__(self, source_datapipe, first):
        self.source_datapipe = source_datapipe
        self.first = first

    def __iter__(self):
        source = iter(self.source_datapipe)
        yield from islice(source, self.first)
        rest = []
        thread = threading.Thread(target=rest.extend, args=(source,))
        thread.start()
        thread.join()
        yield from rest


def test_a_pipe_that_a_thread_reads_on_is_timed_there_too():
    took = []

    def waits(x):
        begun = time.perf_counter()
        if x >= 300:
            time.sleep(0.001)
        took.append(time.perf_counter() - begun)
        return x

    with DataLoader2(HandedOn(IterableWrapper(range(700)).map(waits), 300), stats="full") as dl:
        assert list(dl) == list(range(700))
        own = {pipe.name: pipe.own_seconds for pipe in dl.stats().pipes}
    assert own["Mapper(waits)"] >= sum(took[-200:])


def test_statistics_are_plain_values_and_a_table():
    with loader(pipeline(30)) as dl:
        assert dl.stats().items == 0
        assert "epoch 0" in str(dl.stats())
        list(dl)
        stats = dl.stats()
        plain = json.loads(json.dumps(stats.as_dict()))
        assert plain["items"] == stats.items
        assert plain["processes"][1]["pipes"][3]["name"] == "Mapper(double)"
        table = str(stats)
        assert "worker process 1" in table
        assert "Mapper(double)" in table
        with pytest.raises(AttributeError):
            stats.items = 5
    service = SequentialReadingService(MultiProcessingReadingService(2))
    with DataLoader2(pipeline(30), reading_service=service) as dl:
        list(dl)
        assert len(dl.stats().workers) == 2


def test_an_argument_or_an_environment_variable_selects_the_counters(monkeypatch):
    with pytest.raises(ValueError, match='stats must be "counts" or "full"'):
        DataLoader2(IterableWrapper([1]), stats="all")
    with pytest.raises(ValueError, match="stall_warning"):
        DataLoader2(IterableWrapper([1]), stall_warning=0)
    monkeypatch.setenv("TORCHDATA_STATS", "full")
    with DataLoader2(IterableWrapper([1])) as dl:
        assert list(dl) == [1]
        assert dl.stats().full
    with DataLoader2(IterableWrapper([1]), stats="counts") as dl:
        assert list(dl) == [1]
        assert not dl.stats().full
    monkeypatch.setenv("TORCHDATA_STATS", "some")
    with pytest.raises(ValueError, match="TORCHDATA_STATS"):
        DataLoader2(IterableWrapper([1]))


def test_a_forked_child_that_continues_to_read_does_not_change_its_parents_counters():
    with DataLoader2(IterableWrapper(range(1000)).map(double), stats="full") as dl:
        iterator = iter(dl)
        for _ in range(10):
            next(iterator)
        check_in_forked_child(lambda: [next(iterator) for _ in range(500)])
        assert [pipe.items_out for pipe in dl.stats().pipes] == [10, 10]
        assert next(iterator) == 20


def test_state_that_is_loaded_does_not_count_as_items():
    pipe = IterableWrapper(range(20)).map(double)
    with DataLoader2(pipe) as dl:
        iterator = iter(dl)
        assert [next(iterator) for _ in range(5)] == [0, 2, 4, 6, 8]
        tokens = [one.__dict__["_iteration_token"] for one in (dl.datapipe, dl.datapipe.datapipe)]
        tokens[0].arm(100)
        assert [pipe.items_out for pipe in dl.stats().pipes] == [5, 5]
        assert tokens[0].yielded == 100


@pytest.mark.skipif(not TORCH, reason="ranks on gloo need torch")
def test_each_rank_counts_its_own_share(tmp_path):
    body = """
    def main(rank):
        from torchdata._observe.measuring import rank_of
        pipe = IterableWrapper(range(18)).sharding_filter().map(identity)
        service = SequentialReadingService(DistributedReadingService(20), MultiProcessingReadingService(2, "fork"))
        with DataLoader2(pipe, reading_service=service) as loader:
            taken = len(list(loader)) + len(list(loader))
            stats = loader.stats()
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            alone = len(list(loader)), loader.stats().items
        return rank_of(loader), taken, stats.items, [w.items for w in stats.workers], alone, len(stats.pipes)
    """
    with gloo_job(tmp_path, body) as job:
        for number, (rank, taken, items, by_worker, alone, pipes) in enumerate(job.outcomes()):
            assert rank == number, "metrics have the rank as a label"
            assert taken == items == 16
            assert all(worker >= 8 for worker in by_worker)
            assert alone == (9, 9)
            assert pipes == 2 + 2 * 3


class Odd(IterDataPipe):
    def __init__(self, source_datapipe, every):
        self.source_datapipe = source_datapipe
        self.every = every

    def __iter__(self):
        for number, item in enumerate(self.source_datapipe):
            if number % self.every == 0:
                yield item


def test_counts_are_correct_for_random_graphs_with_random_histories():
    for seed in range(12):
        _random_history(seed)


def _random_history(seed):
    rng = random.Random(seed)
    count, workers, every = rng.randrange(0, 200), rng.randrange(0, 4), rng.randrange(1, 5)
    level = rng.choice(["counts", "full"])
    pipe = IterableWrapper(range(count)).sharding_filter()
    size = rng.choice([None, 1, 4])
    pipe = Odd(pipe, every)
    pipe = pipe.batch(size) if size else pipe
    if rng.random() < 0.3:
        pipe = pipe.prefetch(rng.randrange(1, 10))
    service = None
    if workers:
        ahead, in_order = rng.randrange(0, 12), rng.random() < 0.7
        service = MultiProcessingReadingService(workers, "fork", worker_prefetch_cnt=ahead, in_order=in_order)
    epochs, got, whole = rng.randrange(1, 5), 0, True
    with DataLoader2(pipe, reading_service=service, stats=level) as dl:
        for _ in range(epochs):
            limit = rng.randrange(0, 30) if rng.random() < 0.4 else None
            taken = sum(1 for _ in islice(dl, limit))
            whole = whole and taken != limit
            got += taken
            assert dl.stats().items == got, seed
        stats = dl.stats()
    assert stats.items == got, seed
    parts = max(1, workers)
    for number, process in enumerate(stats.workers if workers else [stats.main]):
        share = len(range(number, count, parts))
        odd = -(-share // every)
        truth = [count, share, odd] + ([-(-odd // size)] if size else [])
        out = [pipe.items_out for pipe in process.pipes][: len(truth)]
        if whole:
            assert out == [epochs * one for one in truth], (seed, process.name)
        else:
            assert all(mine <= epochs * one for mine, one in zip(out, truth, strict=False)), (seed, process.name)
        if workers:
            assert not whole or process.items == process.pipes[-1].items_out, seed


class Counted(IterDataPipe):
    def __init__(self, count, log):
        self.count, self.log, self.at = count, log, 0

    def __iter__(self):
        for at in range(self.at, self.count):
            self.at = at
            yield at
        self.at = 0

    def state_dict(self):
        with open(self.log, "a") as log:
            log.write("x")
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"] + 1


@pytest.mark.parametrize("dispatched", [False, True])
def test_each_snapshot_that_a_child_sends_is_counted(dispatched, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)  # takes a snapshot after each item
    log = tmp_path / "taken"
    pipe = Counted(60, str(log))
    pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
    with loader(pipe.map(double)) as dl:
        assert len(list(dl)) == 60
        stats = dl.stats()
    by_process = {process.name: process.snapshots for process in stats.processes}
    taken = by_process["the dispatching process"] if dispatched else stats.snapshots
    assert taken == len(log.read_text()) >= 60
    assert by_process["main"] == 0
    assert stats.snapshots == sum(by_process.values())


def test_pipes_that_share_one_slot_of_a_board_are_counted_separately_for_their_states() -> None:
    counting = Counting(StatsBoard(1, 1, PIPES, False), MAIN_PAGE)
    before, now = (IterableWrapper(range(9)).enumerate() for _ in range(2))
    counting.bind(before)
    former = iter(before)
    next(former)
    counting.bind(now)
    iterator = iter(now)
    assert next(iterator) == (0, 0)
    assert [next(former) for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]
    load_state(fresh := IterableWrapper(range(9)).enumerate(), save_state(now))
    assert list(fresh) == [(i, i) for i in range(1, 9)]
    assert list(former) == [(i, i) for i in range(4, 9)]


def test_another_thread_may_ask_while_the_loader_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = IterableWrapper(range(5))
    shown: list[int] = []
    stop_answering = recorder.stop_answering

    def ask(board: StatsBoard, page: int) -> None:
        thread = threading.Thread(target=lambda: shown.append(loader.stats().epochs))
        thread.start()
        thread.join()
        stop_answering(board, page)

    loader = DataLoader2(pipe)
    assert list(loader) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(recorder, "stop_answering", ask)
    loader.shutdown()
    assert shown == [1]


def test_threads_can_assign_a_counter_and_begin_epochs_at_the_same_time() -> None:
    """Without Python's lock, threads must not free a counter that another thread is using."""
    boards = [StatsBoard(1, 1, 2, True) for _ in range(2)]
    for board in boards:
        board.adopt(0, 1, 0)

    def assign(board: StatsBoard, token: IterationToken) -> None:
        for _ in range(300):
            board.bind(0, [(token, "pipe", "", None, 0, 0)], 0)

    def begin(token: IterationToken) -> list[int]:
        return [token.begin()[0] for _ in range(300)]

    for _ in range(5):
        token = IterationToken()
        with ThreadPoolExecutor(6) as threads:
            assigned = [threads.submit(assign, board, token) for board in boards * 2]
            begun = [threads.submit(begin, token) for _ in range(2)]
        assert [call.result() for call in assigned] == [None] * 4
        assert sorted(begun[0].result() + begun[1].result()) == list(range(1, 601))
