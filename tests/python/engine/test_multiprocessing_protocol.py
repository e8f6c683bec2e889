"""The main process, workers and the dispatching process exchange messages without hanging or losing items."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import torchdata
from handlers import handling
from process_checks import MULTIPROCESSING, loader, nothing_is_left, wait_for  # noqa: F401
from random_graphs.users import Passing, unpinned
from torchdata.dataloader2 import DataLoader2
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


def dispatched(items):
    return IterableWrapper(items, deepcopy=False).sharding_round_robin_dispatch(MULTIPROCESSING)


def in_turn(shares):
    shares = [list(share) for share in shares]
    for index in range(max(map(len, shares))):
        yield from (share[index] for share in shares if index < len(share))


class Paced(IterDataPipe):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __iter__(self):
        for number in range(self.count):
            time.sleep(self.seconds)
            yield number


def slow_tenth(number):
    if number % 10 == 0:
        time.sleep(0.05)
    return number


class HeldUp:
    def __init__(self, path, number):
        self.path, self.number = path, number

    def __call__(self, number):
        while number == self.number and not self.path.exists():
            time.sleep(0.01)
        time.sleep(0.002)
        return number


def test_the_main_process_keeps_sleeping_while_other_workers_than_the_next_one_send(tmp_path):
    release = tmp_path / "go on"
    pipe = IterableWrapper(range(200)).sharding_filter().map(HeldUp(release, 0))
    with loader(pipe, 4, worker_prefetch_cnt=20) as dl:
        items = []
        thread = threading.Thread(target=lambda: items.extend(dl))
        thread.start()
        wait_for(lambda: [worker.items for worker in dl.stats().workers][1:] == [23, 23, 23])
        woken = dl.stats().wake_ups
        release.touch()
        thread.join()
    assert items == list(range(200))
    assert woken < 23, "few items wake the main process"


def test_abandoned_epochs_leave_nothing_in_the_next():
    with loader(dispatched(range(40)).map(slow_tenth)) as dl:
        for _ in range(10):
            next(iter(dl))
        assert list(dl) == list(range(40))


def test_a_worker_whose_items_are_all_dropped_delays_no_other():
    with loader(dispatched(range(200)).filter(lambda number: number % 2 == 0)) as dl:
        assert list(dl) == list(range(0, 200, 2))


class EndsAtOnce(Passing):
    def __iter__(self):
        for number in self.source:
            yield number
            if number == 0:
                return


def test_a_worker_that_leaves_its_share_does_not_delay_other_workers():
    with loader(EndsAtOnce(dispatched(range(500)))) as dl:
        for _ in range(3):
            assert sorted(dl) == [0, *range(1, 500, 2)]


def test_items_beyond_the_budget_are_kept_with_a_warning_that_explains_it():
    pipe = (
        dispatched(range(200))
        .filter(lambda number: number % 2 == 0)
        .map(lambda number: np.full(60_000, number, np.uint8))
    )
    with loader(pipe, memory_budget=1 << 20) as dl:
        with pytest.warns(RuntimeWarning, match=r"worker process 1 must yield the next item.*worker process 0"):
            first = [int(array[0]) for array in dl]
        assert first == list(range(0, 200, 2))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_dispatched_items_can_be_read_again_in_the_same_epoch(workers):
    shares = [[*range(w, 10, workers)] * 3 for w in range(workers)]
    with loader(dispatched(range(10)).cycle(3), workers) as dl:
        for _ in range(2):
            assert list(dl) == list(in_turn(shares))


def test_passes_that_are_left_early_start_again():
    with loader(dispatched(range(1000)).header(2).cycle(3)) as dl:
        assert list(dl) == [0, 1, 2, 3] * 3


def test_a_shuffle_before_the_sharding_is_complete_and_another_one_in_every_pass():
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter().cycle(3)
    with loader(pipe, 3) as dl:
        epochs = [list(dl) for _ in range(2)]
    for epoch in epochs:
        passes = [sorted(epoch[start : start + 60]) for start in (0, 60, 120)]
        assert passes == [list(range(60))] * 3
        assert epoch[:60] != epoch[60:120] != epoch[120:]


def fail_at_five(number):
    if number == 5:
        raise ValueError("five")
    return number


def test_an_error_in_one_pass_is_raised_while_other_workers_request_the_next():
    pipe = IterableWrapper(range(10)).map(fail_at_five).sharding_round_robin_dispatch(MULTIPROCESSING).cycle(2)
    with loader(pipe, 3, worker_prefetch_cnt=0, main_prefetch_cnt=0) as dl:
        for _ in range(2):
            received = []
            with pytest.raises(ValueError, match="five"):
                for number in dl:
                    received.append(number)
            assert received[:5] == [0, 1, 2, 3, 4]


class Endless(IterDataPipe):
    def __iter__(self):
        number = 0
        while True:
            yield number
            number += 1


def test_passes_over_an_endless_source_end_when_all_have_left():
    pipe = Endless().sharding_round_robin_dispatch(MULTIPROCESSING).header(3).cycle(2)
    with loader(pipe) as dl:
        for _ in range(2):
            assert list(dl) == list(range(6)) * 2


def mark(datapipe):
    with open(os.environ["CALLS"], "a") as file:
        print(os.getpid(), file=file)
    return datapipe


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("window", [0, 4])
def test_functions_that_are_called_in_the_middle_of_an_epoch_leave_it_running(dispatch, window, tmp_path, monkeypatch):
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    source = dispatched(range(60)) if dispatch else IterableWrapper(range(60)).sharding_filter()
    pipe = source.flatmap(lambda number: [number] * (number % 3))
    workers = 2
    shares = [[n for n in range(w, 60, workers) for _ in range(n % 3)] for w in range(workers)]
    with loader(pipe, workers, worker_prefetch_cnt=window, main_prefetch_cnt=window) as dl:
        service = dl.reading_service
        iterator = iter(dl)
        received = [next(iterator) for _ in range(5)]
        service._pause(mark)
        service._resume(mark)
        received += [next(iterator) for _ in range(5)]
        service._limit(3, lambda datapipe, _count: mark(datapipe))
        received += list(iterator)
        assert received == list(in_turn(shares))
        assert list(dl) == received
    children = workers + dispatch
    # `mark` is called three times in each child, and once in the main process.
    assert len((tmp_path / "calls").read_text().split()) == 3 * children + 1


def fail(datapipe):
    raise KeyError("called")


def test_a_function_that_fails_when_it_is_called_fails_the_epoch_that_runs():
    with loader(IterableWrapper(range(100)).sharding_filter()) as dl:
        iterator = iter(dl)
        next(iterator)
        dl.reading_service._pause(fail)
        dl.reading_service._resume()
        with pytest.raises(KeyError, match="called"):
            list(iterator)


def in_arena(number):
    array = torchdata.empty((50, 100), "int64")
    array[:] = number
    return array


@pytest.mark.parametrize("threads", ["prefetch", "threadpool_map"])
def test_threads_of_a_worker_make_arrays_in_shared_memory(threads):
    pipe = IterableWrapper(range(60)).sharding_filter()
    pipe = pipe.map(in_arena).prefetch(8) if threads == "prefetch" else pipe.threadpool_map(in_arena)
    with loader(pipe) as dl:
        assert [int(array[0, 0]) for array in dl] == list(range(60))


@pytest.mark.parametrize("window", [0, 10])
def test_reading_ahead_in_the_main_process_takes_no_items_of_the_epoch_after_a_break(window):
    pipe = IterableWrapper(range(120)).sharding_filter().map(slow_tenth).pin_memory(pin_memory_fn=unpinned)
    with loader(pipe, worker_prefetch_cnt=window) as dl:
        for taken in range(12):
            iterator = iter(dl)
            assert [next(iterator) for _ in range(taken)] == list(range(taken))
        assert list(dl) == list(range(120))


def test_an_epoch_cannot_begin_during_the_wait_for_an_item_and_the_loop_continues():
    errors = []
    with loader(Paced(4, 0.3).sharding_filter()) as dl:

        def begin(_signal, _frame):
            if dl.stats().main.waits_for is None:  # the signal was handled before the main process began to wait
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                return
            try:
                iter(dl)
            except RuntimeError as error:
                errors.append(str(error))

        with handling(begin, signal.SIGALRM), pytest.raises(RuntimeError, match="this epoch was ended"):
            iterator = iter(dl)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            list(iterator)
        assert "leave the loop first" in errors[0]
        assert sorted(dl) == list(range(4))


class ExitsAfterItems(IterDataPipe):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            if number == 1:
                time.sleep(0.3)
            yield number
        os._exit(3)


@pytest.mark.parametrize("busy", ["a signal handler", "a thread"])
def test_an_exit_while_the_main_process_is_busy_raises_an_error_after_all_sent_items(busy):
    received = []
    # A thread that keeps the main process from running other Python code for a long time.
    thread = threading.Thread(target=lambda: sum(x * x for x in range(3 * 10**6)))
    with handling(lambda *_: time.sleep(0.7), signal.SIGALRM), loader(ExitsAfterItems(3), 1) as dl:
        iterator = iter(dl)
        received.append(next(iterator))
        if busy == "a thread":
            thread.start()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(WorkerExitedError, match="worker process 0"):
            for number in iterator:
                received.append(number)
        if busy == "a thread":
            thread.join()
    assert received == [0, 1, 2]


@contextlib.contextmanager
def stopped_worker(**options):
    with loader(IterableWrapper(range(1000)).sharding_filter(), **options) as dl:
        next(iter(dl))
        pid = dl.reading_service._children.pids[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
            for _ in range(5000):
                iter(dl)
                dl._reset_iter = True  # simulates that an item was requested
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_command_to_a_stopped_worker_ends_at_the_timeout():
    with pytest.raises(TimeoutError, match="worker process 1"), stopped_worker(timeout=0.5):
        pass


def test_a_command_to_a_stopped_worker_ends_when_the_worker_exits():
    with pytest.raises(WorkerExitedError, match="worker process 1"), stopped_worker() as pid:
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()


main_pid = os.getpid()
interruptions = 0


def rebuilt(number):
    global interruptions
    if os.getpid() == main_pid and number % 5 == 0 and interruptions % 2 == 0:
        interruptions += 1
        raise KeyboardInterrupt
    interruptions += number % 5 == 0
    return Delicate(number)


class Delicate:
    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return rebuilt, (self.number,)


@pytest.mark.parametrize("dispatch", [False, True])
def test_an_item_whose_decoding_was_interrupted_is_decoded_again(dispatch):
    source = dispatched(range(40)) if dispatch else IterableWrapper(range(40)).sharding_filter()
    with loader(source.map(Delicate), worker_prefetch_cnt=1, main_prefetch_cnt=0) as dl:
        received, interrupted = [], 0
        iterator = iter(dl)
        while True:
            try:
                received.append(next(iterator).number)
            except KeyboardInterrupt:
                interrupted += 1
            except StopIteration:
                break
        assert received == list(range(40))
        assert interrupted == 8
    assert isinstance(dl, DataLoader2)
