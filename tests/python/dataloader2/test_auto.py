"""`num_workers="auto"`: what is chosen in situations built for real, and that the order of the items stays the same."""

from __future__ import annotations

import logging
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from auto_checks import auto, epochs_until, in_order_of, plain, shuffled
from pressing import interrupts_raise, pressed  # noqa: F401 - a fixture
from process_checks import nothing_is_left  # noqa: F401
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.dataloader2.services import steering
from torchdata.dataloader2.state.fixed_order import draws_random_numbers
from torchdata.datapipes.iter import FullSync, IterableWrapper, IterDataPipe

pytestmark = pytest.mark.alone


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how long an item takes a worker, and the training step, whatever they take on this machine."""

    def of(item: float, step: float = 0.0, computing: float = 1.0, in_line: float = 0.0) -> None:
        def summarised(*readings: Any) -> Any:
            return _as_if(steering_summarise(*readings), item, step, computing, in_line)

        monkeypatch.setattr(steering, "summarise", summarised)

    steering_summarise = steering.summarise
    return of


def _as_if(stats: Any, item: float, step: float, computing: float, in_line: float) -> Any:
    """Statistics as workers give them that take `item` seconds for each of their items, to a step of `step` seconds.

    `computing` is the share of these in which they have a processor, `in_line` the one in which they wait for it.
    """
    pace = max(item / max(1, len(stats.workers)), step)  # seconds from an item to the next one
    seconds, waiting = stats.items * pace, (pace - step) / pace

    def told(process: Any) -> Any:
        if process.role == "main":
            return replace(process, busy=0.0, cpu_seconds=0.0)
        took = process.items * item
        cpu = {"cpu_seconds": took * computing, "waits_for_cpu_seconds": took * in_line, "busy": 1.0}
        return replace(process, busy_seconds=took, input=0.0, **cpu)

    return replace(
        stats,
        seconds=seconds,
        items_per_second=1 / pace,
        loading=waiting,
        waiting=waiting,
        step_seconds=step,
        held_up=1 - item / len(stats.workers) / pace if stats.workers else None,
        processes=tuple(map(told, stats.processes)),
    )


def array(item: int) -> Any:
    return np.full(50_000, item)


def augment(item: Any) -> Any:
    return item * random.random()


def jitter(item: Any) -> Any:
    return item + np.random.rand()


def failing(item: int, at: int, marker: str) -> int:
    if item == at and os.path.exists(marker):
        raise KeyError(at)
    return item


def dying(item: int, at: int, marker: str) -> int:
    """Ends the process at an item once, after the file `marker` was made."""
    if item == at and os.path.exists(marker):
        os.remove(marker)
        os._exit(7)
    return item


class Silent(IterDataPipe):
    """A user's pipe that does not say that it is one to one."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source


# -- what is chosen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_where_loading_limits_there_are_more_workers_up_to_the_cores(machine_of, times, caplog, method):
    machine_of(4)
    times(item=0.1)
    caplog.set_level(logging.INFO, "torchdata")
    with auto(shuffled(60), multiprocessing_context=method) as loader:
        loader.seed(3)
        got = [list(loader) for _ in range(5)]
        assert loader.reading_service.num_workers == 4
        first, last = loader.stats().choices
        assert first.startswith('num_workers="auto": 4 workers instead of 2: loading limits: main waits 100 %'), first
        assert "there are 4 cores" in last
        assert f"chosen: {first}" in str(loader.stats())
    assert got == in_order_of(shuffled(60), 3, epochs=5)
    assert [record.getMessage() for record in caplog.records] == [first, last], "a line for each choice"


def test_without_a_log_the_choice_is_printed():
    program = "from torchdata.dataloader2.services.steering import say; say('2 workers: it is so')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250)
    assert (done.stdout, done.stderr) == ("", "torchdata: 2 workers: it is so\n")


def test_where_training_limits_there_are_fewer_workers(machine_of, times):
    machine_of(8)
    times(item=0.001, step=0.1)
    with auto(shuffled(60)) as loader:
        epochs_until(1, loader)
        (line,) = loader.stats().choices
    assert line.startswith('num_workers="auto": 1 workers instead of 2: training limits: its step takes'), line


def test_as_many_workers_as_the_training_step_asks_for(machine_of, times):
    machine_of(16)
    times(item=0.24, step=0.08)
    with auto(shuffled(60)) as loader:
        for _ in range(6):
            list(loader)
        assert loader.reading_service.num_workers == 4, "three, and a quarter of that more"
        assert len(loader.stats().choices) == 2


def test_workers_that_make_items_no_faster_are_given_up(machine_of, times):
    machine_of(8)
    times(item=0.1)
    with auto(shuffled(60)) as loader:
        epochs_until(8, loader)
        times(item=0.4)
        epochs_until(2, loader)
        assert "2 workers instead of 8: 8 workers load no faster" in loader.stats().choices[-1]


@pytest.mark.parametrize(
    ("computing", "in_line", "workers"),
    [(0.01, 0.0, 16), (0.25, 0.0, 8), (0.25, 0.5, 4), (0.5, 0.5, 2)],
    ids=["waiting", "a quarter computing", "in line for a half", "computing beside another program"],
)
def test_where_work_waits_there_are_more_workers_than_cores(machine_of, times, computing, in_line, workers):
    machine_of(2)
    times(item=0.1, computing=computing, in_line=in_line)
    with auto(shuffled(60)) as loader:
        loader.seed(3)
        got = [list(loader) for _ in range(8)]
        assert loader.reading_service.num_workers == workers
        why = "which {} keep busy" if computing > 0.01 else "more than {} are not tried"
        assert why.format(workers) in loader.stats().choices[-1]
    assert got == in_order_of(shuffled(60), 3, epochs=8)


def test_a_training_step_limits_workers_that_wait(machine_of, times):
    machine_of(2)
    times(item=0.24, step=0.08, computing=0.01)
    with auto(shuffled(60)) as loader:
        for _ in range(6):
            list(loader)
        assert loader.reading_service.num_workers == 4, "three, and a quarter of that more"


@pytest.mark.parametrize(
    ("cores", "memory", "reason"),
    [(2, 1 << 40, "there are 2 cores"), (8, 1 << 20, "of memory are left, and a worker takes")],
)
def test_what_the_machine_lacks_keeps_the_number_and_is_named(machine_of, times, cores, memory, reason):
    machine_of(cores, memory)
    times(item=0.1)
    with auto(shuffled(60)) as loader:
        for _ in range(3):
            list(loader)
        assert loader.reading_service.num_workers == 2
        (line,) = loader.stats().choices
        assert line.startswith('num_workers="auto": 2 workers: loading limits')
        assert reason in line


def test_the_memory_budget_limits_how_many_workers_there_are(machine_of, times):
    machine_of(8)
    times(item=0.1)
    pipe = IterableWrapper(range(60)).sharding_filter().map(array)
    # Items of 400 KB of which each worker may be one ahead.
    with auto(pipe, memory_budget=8 << 20, worker_prefetch_cnt=6, main_prefetch_cnt=0) as loader:
        for _ in range(5):
            list(loader)
        assert loader.reading_service.num_workers <= 3
        assert "memory budget is" in loader.stats().choices[-1]


def test_short_epochs_are_counted_together(machine_of, times):
    machine_of(4)
    times(item=0.01)  # 60 items take two workers 0.3 seconds
    with auto(shuffled(60)) as loader:
        loader.seed(5)
        got = epochs_until(4, loader, most=5)
        assert loader.reading_service.num_workers == 2
        got += epochs_until(4, loader, most=1)
        assert loader.reading_service.num_workers == 4, "it has counted for a second behind the first epoch"
    assert got == in_order_of(shuffled(60), 5, epochs=len(got))


def test_no_worker_is_replaced_while_an_epoch_runs(machine_of, times):
    machine_of(4)
    times(item=0.1)
    with auto(shuffled(400)) as loader:  # an epoch that is long enough
        for _ in loader:
            assert loader.reading_service.num_workers == 2
        next(iter(loader))
        assert loader.reading_service.num_workers == 4


# -- where the order would depend on it --------------------------------------------------------------------


def sharded() -> Any:
    return IterableWrapper(range(30)).sharding_filter()


@pytest.mark.parametrize(
    ("pipe", "options", "words"),
    [
        (lambda: sharded().batch(3), {}, "the `ShardingFilter` deals out blocks of 1, and Batcher makes batches of 3"),
        (lambda: sharded().batch(3), {}, "The adapter ShardingPolicy(block=3) helps the next run"),
        (lambda: sharded().shuffle(), {}, "Shuffler, which stands behind the sharding"),
        (lambda: Silent(sharded()), {}, "Silent, which stands behind the sharding"),
        (lambda: sharded().map(augment), {}, "Mapper(augment) draws random numbers"),
        (lambda: IterableWrapper(range(30)).map(jitter).sharding_filter(), {}, "Mapper(jitter) draws random numbers"),
        (lambda: IterableWrapper(range(30)).map(plain), {}, "no `sharding_filter`"),
        (lambda: FullSync(sharded()), {}, "the ranks of a distributed job"),
        (sharded, {"in_order": False}, "in_order=False takes whatever item is ready first"),
        (sharded, {"worker_init_fn": lambda pipe, info: pipe}, "worker_init_fn may make each worker another one"),
    ],
)
def test_where_the_order_depends_on_the_number_it_says_why_and_keeps_two(pipe, options, words):
    with warnings.catch_warnings(), auto(pipe(), **options) as loader:
        warnings.simplefilter("ignore")  # of items that all workers yield
        if "FullSync" not in repr(loader):
            list(loader)
        else:
            loader.reading_service.initialize(pipe())
        (line,) = loader.reading_service._steering.choices
        assert line.startswith(
            'num_workers="auto" keeps 2 workers: the order of the items would depend on their number: '
        )
        assert words in line
        assert loader.reading_service.num_workers == 2


class Transform:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self, item: Any) -> Any:
        return [part(item) for part in self.parts]


def calls_another(item: Any) -> Any:
    return augment(item)


def drawn_by_default(item: Any, dice: Any = random.Random(3)) -> Any:  # noqa: B008 - what the test is about
    return dice.random()


def test_functions_that_draw_random_numbers_are_known_by_their_code():
    generator = np.random.default_rng(1)
    for draws in (
        augment,
        jitter,
        calls_another,
        partial(calls_another),
        Transform(plain, augment),
        drawn_by_default,
        random.choice,
        np.random.shuffle,
        lambda item: generator.normal(),
        lambda item: [random.random() for _ in range(item)],
    ):
        assert draws_random_numbers(draws), draws
    for draws_not in (plain, array, Transform(plain), partial(plain), str, len, np.sum):
        assert not draws_random_numbers(draws_not), draws_not


# -- the order stays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batches", "dispatched"])
def test_batches_and_dispatched_items_are_divided_among_others_too(machine_of, times, kind):
    machine_of(4)
    times(item=0.1)

    pipe = IterableWrapper(range(90)).shuffle()
    divided = pipe.sharding_filter().batch(3) if kind == "batches" else pipe.sharding_round_robin_dispatch()
    adapters = [ShardingPolicy(block=3)] if kind == "batches" else None
    with auto(divided, adapters) as loader:
        loader.seed(1)
        got = epochs_until(4, loader)
        assert loader.reading_service.num_workers == 4
        stats = loader.stats()
        assert stats.items == sum(map(len, got))
        assert sum(process.role == "replaced" for process in stats.processes) == 2 + (kind == "dispatched")
    with DataLoader2(divided, adapters, MultiProcessingReadingService(2, "fork")) as fixed:
        fixed.seed(1)
        assert [list(fixed) for _ in got] == got


def test_items_that_are_held_stay_what_they_are_when_their_worker_is_replaced(machine_of, times):
    machine_of(4)
    times(item=0.1)
    with auto(IterableWrapper(range(60)).sharding_filter().map(array)) as loader:
        epochs = epochs_until(4, loader)
        assert loader.reading_service.num_workers == 4
    assert all((item == number).all() for held in epochs for number, item in enumerate(held))


# -- states, lengths, words --------------------------------------------------------------------------------


def test_a_state_says_how_many_workers_there_were_and_auto_goes_on_with_them(machine_of, times):
    machine_of(3)
    times(item=0.1)
    with auto(shuffled(90)) as loader:
        loader.seed(9)
        epochs = epochs_until(3, loader)
        assert loader.reading_service.num_workers == 3
        reading = iter(loader)
        got = [next(reading) for _ in range(50)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        older = pickle.loads(pickle.dumps(loader.state_dict(items_ago=40)))
    *_, this, following = in_order_of(shuffled(90), 9, epochs=len(epochs) + 2)
    assert state["iteration_state"]["processes"] == [3, False, True]
    for workers in ("auto", 1, 5):
        with DataLoader2(shuffled(90), reading_service=MultiProcessingReadingService(workers, "fork")) as other:
            other.load_state_dict(state)
            reading = iter(other)
            assert other.reading_service.num_workers == (3 if workers == "auto" else workers)
            assert [*got, *reading] == this
            assert list(other) == following
    with auto(shuffled(90)) as other:
        other.load_state_dict(older)
        assert list(other) == this[10:]


def test_length_and_words_do_not_depend_on_what_is_chosen(machine_of, times):
    machine_of(4)
    times(item=0.1)
    with auto(shuffled(60)) as loader:
        for _ in range(2):
            assert len(loader) == 60
            assert "num_workers='auto'" in repr(loader)
            epochs_until(4, loader)


def test_what_is_counted_over_all_workers_adds_up(machine_of, times):
    machine_of(4)
    times(item=0.1)
    with auto(shuffled(60)) as loader:
        list(loader)
        early = loader.stats()
        epochs = epochs_until(4, loader)
        stats, later = loader.stats(), loader.stats(since=early)
    assert (stats.items, later.items) == (60 + 60 * len(epochs), 60 * len(epochs))
    assert [worker.worker for worker in stats.workers] == [0, 1, 2, 3]
    replaced = [process for process in stats.processes if process.role == "replaced"]
    assert [process.worker for process in replaced] == [0, 1]
    assert sum(process.items for process in (*stats.workers, *replaced)) == stats.items
    assert stats.restarts == 0


# -- errors and ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [failing, dying])
def test_an_error_behind_a_change_is_noticed(machine_of, times, ends, tmp_path):
    machine_of(4)
    times(item=0.1)
    marker = str(tmp_path / "changed")
    pipe = IterableWrapper(range(60)).sharding_filter().map(partial(ends, at=50, marker=marker))
    with auto(pipe) as loader:
        epochs_until(4, loader)
        open(marker, "x").close()
        got = []
        with pytest.raises(KeyError if ends is failing else WorkerExitedError):
            for item in loader:
                got.append(item)
        assert got == list(range(len(got)))
        assert loader.reading_service.num_workers == 4
        if ends is failing:
            os.remove(marker)
            assert list(loader) == list(range(60))


def test_ctrl_c_while_workers_change_leaves_whole_epochs(machine_of, times, interrupts_raise):  # noqa: F811
    machine_of(4)
    times(item=0.1)
    changed = 0
    for seed in range(8):
        with auto(IterableWrapper(range(400)).sharding_filter().map(plain)) as loader:
            list(loader)
            got, _ = pressed(iter(loader), seed)
            assert got == list(range(400))
            assert list(loader) == list(range(400))
            changed += loader.reading_service.num_workers != 2
    assert changed


def test_workers_that_cannot_be_started_leave_those_that_there_are(machine_of, times, monkeypatch):
    from torchdata.dataloader2.services.shifts import Shifts

    def refuse(*_: Any) -> Any:
        raise OSError("no room for another process")

    machine_of(4)
    times(item=0.1)
    monkeypatch.setattr(Shifts, "start_others", refuse)
    with auto(IterableWrapper(range(60)).sharding_filter()) as loader:
        assert [list(loader) for _ in range(3)] == [list(range(60))] * 3
        (line,) = loader.stats().choices
    assert line.startswith('num_workers="auto" keeps 2 workers: 4 could not be started (OSError: no room')


def test_workers_that_die_behind_a_change_are_started_again(machine_of, times, tmp_path):
    machine_of(4)
    times(item=0.1)
    marker = tmp_path / "changed"
    pipe = IterableWrapper(range(60)).sharding_filter().map(partial(dying, at=50, marker=str(marker)))
    with warnings.catch_warnings(), auto(pipe, on_worker_exit="restart") as loader:
        warnings.simplefilter("ignore")  # which says that one has died
        epochs = epochs_until(4, loader)
        marker.touch()
        assert [*epochs, list(loader)] == [list(range(60))] * (len(epochs) + 1)
        stats = loader.stats()
        assert loader.reading_service.num_workers == 4, stats.choices
        assert (stats.restarts, stats.items) == (1, 60 * len(epochs) + 60)
