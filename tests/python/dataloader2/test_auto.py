"""`num_workers="auto"`: what is chosen in situations built for real, and that the order of the items stays the same."""

from __future__ import annotations

import logging
import os
import pickle
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pressing import interrupts_raise, pressed  # noqa: F401 - a fixture
from process_checks import nothing_is_left  # noqa: F401
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.dataloader2.services import steering
from torchdata.dataloader2.services.fixed_order import draws_random_numbers
from torchdata.datapipes.iter import FullSync, IterableWrapper, IterDataPipe

pytestmark = pytest.mark.alone


def waiting(item: Any, seconds: float = 0.01) -> Any:
    time.sleep(seconds)
    return item


class Pausing:
    """A function of items that pauses at each, until a file is there.

    So there are items enough for a choice however late that comes, and those behind it take no time.
    """

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "hurry"

    def __call__(self, item: Any) -> Any:
        if not self.marker.exists():
            time.sleep(0.005)
        return item

    def hurry(self) -> None:
        self.marker.touch()

    def pause(self) -> None:
        self.marker.unlink()


@pytest.fixture
def pausing(tmp_path):
    return Pausing(tmp_path)


def hurrying(loader: Any, pausing: Pausing, workers: int) -> Iterator[Any]:
    """The items of an epoch, those at once that come when there are so many workers."""
    for item in loader:
        if loader.reading_service.num_workers == workers:
            pausing.hurry()
        yield item


def until_it_chooses(loader: DataLoader2[Any]) -> None:
    for _ in loader:
        if loader.stats().choices:
            break


def plain(item: Any) -> Any:
    return item


def array(item: int) -> Any:
    time.sleep(0.01)
    return np.full(50_000, item)


def augment(item: Any) -> Any:
    return item * random.random()


def jitter(item: Any) -> Any:
    return item + np.random.rand()


def failing(item: int, at: int) -> int:
    if item == at:
        raise KeyError(at)
    return item


def dying(item: int, at: int) -> int:
    if item == at:
        os._exit(7)
    return item


class Silent(IterDataPipe):
    """A user's pipe that does not say that it is one to one."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source


def slowly(count: int, seconds: float = 0.01) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(partial(waiting, seconds=seconds))


def auto(pipe: Any, adapters: Any = None, **options: Any) -> DataLoader2[Any]:
    options.setdefault("multiprocessing_context", "fork")
    return DataLoader2(pipe, adapters, MultiProcessingReadingService("auto", **options))


def until_there_are(workers: int, loader: DataLoader2[Any], step: float = 0.0) -> list[Any]:
    """The items of an epoch until there are so many workers, and some of theirs."""
    got, left = [], 50
    for item in loader:
        got.append(item)
        time.sleep(step)
        left -= loader.reading_service.num_workers == workers
        if not left:
            break
    return got


def in_order_of(pipe: Any, seed: int, epochs: int = 1) -> list[list[Any]]:
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        loader.seed(seed)
        return [list(loader) for _ in range(epochs)]


# -- what is chosen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_where_loading_limits_there_are_more_workers_up_to_the_cores(machine_of, caplog, method):
    machine_of(4)
    caplog.set_level(logging.INFO, "torchdata")
    expected = in_order_of(slowly(4000, 0.0), 3)[0]
    with auto(slowly(4000), multiprocessing_context=method) as loader:
        loader.seed(3)
        got = until_there_are(4, loader)
        assert got == expected[: len(got)]
        assert loader.reading_service.num_workers == 4
        first, *others = loader.stats().choices
        assert first.startswith('num_workers="auto": 4 workers instead of 2: loading limits: main waits'), first
        assert all("there are 4 cores" in line for line in others)
        assert len(others) <= 1
        assert f"chosen: {first}" in str(loader.stats())
    assert [record.getMessage() for record in caplog.records] == [first, *others], "a line for each choice"


def test_without_a_log_the_choice_is_printed():
    program = "from torchdata.dataloader2.services.steering import say; say('2 workers: it is so')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "torchdata: 2 workers: it is so\n")


def test_where_training_limits_there_are_fewer_workers(machine_of):
    machine_of(8)
    with auto(slowly(20_000, 0.0005)) as loader:
        until_there_are(1, loader, step=0.01)
        assert loader.reading_service.num_workers == 1
        line = loader.stats().choices[-1]  # the only one, unless the machine stood still for a while
        assert line.startswith('num_workers="auto": 1 workers instead of '), line
        assert ": training limits: its step takes" in line


def test_as_many_workers_as_the_training_step_asks_for(machine_of):
    machine_of(16)
    with auto(slowly(500, 0.024)) as loader:
        for _ in loader:
            time.sleep(0.008)
        # 24 ms an item and 8 ms a step ask for 3; a little more evens out what is not regular.
        assert 3 <= loader.reading_service.num_workers <= 6, loader.stats().choices


@pytest.mark.parametrize(
    ("cores", "memory", "reason"),
    [(2, 1 << 40, "there are 2 cores"), (8, 1 << 20, "of memory are left, and a worker takes")],
)
def test_what_the_machine_lacks_keeps_the_number_and_is_named(machine_of, cores, memory, reason):
    machine_of(cores, memory)
    with auto(slowly(5000)) as loader:
        until_it_chooses(loader)
        assert loader.reading_service.num_workers == 2
        (line,) = loader.stats().choices
        assert line.startswith('num_workers="auto": 2 workers: loading limits')
        assert reason in line


def test_the_memory_budget_limits_how_many_workers_there_are(machine_of):
    machine_of(8)
    pipe = IterableWrapper(range(5000)).sharding_filter().map(array)
    # Items of 400 KB of which each worker may be one ahead.
    with auto(pipe, memory_budget=8 << 20, worker_prefetch_cnt=6, main_prefetch_cnt=0) as loader:
        until_it_chooses(loader)
        assert loader.reading_service.num_workers <= 3
        assert "memory budget is" in loader.stats().choices[-1]


def test_epochs_shorter_than_the_look_are_chosen_for_between_them(machine_of):
    machine_of(4)
    expected = in_order_of(slowly(40, 0.0), 5, epochs=14)
    with auto(slowly(40)) as loader:
        loader.seed(5)
        assert [list(loader) for _ in range(14)] == expected
        assert loader.reading_service.num_workers == 4


# -- where the order would depend on it --------------------------------------------------------------------


def sharded() -> Any:
    return IterableWrapper(range(30)).sharding_filter()


@pytest.mark.parametrize(
    ("pipe", "options", "words"),
    [
        (lambda: sharded().batch(3), {}, "the `ShardingFilter` deals out blocks of 1, and Batcher makes batches of 3"),
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
    for draws_not in (plain, waiting, array, Transform(plain), partial(waiting, seconds=1), str, len, np.sum):
        assert not draws_random_numbers(draws_not), draws_not


# -- the order stays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batches", "dispatched"])
def test_batches_and_dispatched_items_change_hands_too(machine_of, pausing, kind):
    machine_of(4)
    pipe = IterableWrapper(range(6000)).shuffle()
    if kind == "batches":
        pipe = pipe.sharding_filter().map(pausing).batch(3)
    else:
        pipe = pipe.sharding_round_robin_dispatch().map(pausing)
    adapters = [ShardingPolicy(block=3)] if kind == "batches" else None
    pausing.hurry()
    with DataLoader2(pipe, adapters, MultiProcessingReadingService(2, "fork")) as fixed:
        fixed.seed(1)
        expected = list(fixed)
    pausing.pause()
    with auto(pipe, adapters) as loader:
        loader.seed(1)
        assert list(hurrying(loader, pausing, 4)) == expected
        assert loader.reading_service.num_workers == 4
        stats = loader.stats()
        assert stats.items == len(expected)
        assert sum(process.role == "replaced" for process in stats.processes) == 2 + (kind == "dispatched")


def test_items_that_are_held_stay_what_they_are_when_their_worker_is_replaced(machine_of):
    machine_of(4)
    with auto(IterableWrapper(range(5000)).sharding_filter().map(array)) as loader:
        held = until_there_are(4, loader)
        assert loader.reading_service.num_workers == 4
        assert all((item == number).all() for number, item in enumerate(held))
    assert all((item == number).all() for number, item in enumerate(held))


# -- states, lengths, words --------------------------------------------------------------------------------


def test_a_state_says_how_many_workers_there_were_and_auto_goes_on_with_them(machine_of, pausing):
    machine_of(3)
    pipe = IterableWrapper(range(6000)).shuffle().sharding_filter().map(pausing)
    pausing.hurry()
    expected = in_order_of(pipe, 9, epochs=2)
    pausing.pause()
    with auto(pipe) as loader:
        loader.seed(9)
        got = until_there_are(3, loader)
        assert loader.reading_service.num_workers == 3
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        older = pickle.loads(pickle.dumps(loader.state_dict(items_ago=len(got) - 10)))
    pausing.hurry()
    assert state["iteration_state"]["processes"] == [3, False, True]
    for workers in ("auto", 1, 5):
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork")) as other:
            other.load_state_dict(state)
            reading = iter(other)
            assert other.reading_service.num_workers == (3 if workers == "auto" else workers)
            assert [*got, *reading] == expected[0]
            assert list(other) == expected[1]
    with auto(pipe) as other:
        other.load_state_dict(older)
        assert list(other) == expected[0][10:]


def test_length_and_words_do_not_depend_on_what_is_chosen(machine_of):
    machine_of(4)
    with auto(slowly(800)) as loader:
        assert len(loader) == 800
        assert "num_workers='auto'" in repr(loader)
        list(loader)
        assert len(loader) == 800
        assert "num_workers='auto'" in repr(loader)


def test_what_is_counted_over_all_workers_adds_up(machine_of):
    machine_of(4)
    with auto(slowly(5000)) as loader:
        reading = iter(loader)
        for _ in range(20):
            next(reading)
        early = loader.stats()
        count = 20
        while loader.reading_service.num_workers < 4 or count < 600:
            next(reading)
            count += 1
        stats = loader.stats()
    assert (stats.items, loader.stats(since=early).items) == (count, count - 20)
    assert [worker.worker for worker in stats.workers] == [0, 1, 2, 3]
    replaced = [process for process in stats.processes if process.role == "replaced"]
    assert [process.worker for process in replaced] == [0, 1]
    made = sum(process.items for process in (*stats.workers, *replaced))
    # What the first two had ready when others took over was made once more, and those have something ready, too.
    assert count <= made <= count + sum(process.window + 1 for process in (*stats.workers, *replaced))
    assert stats.restarts == 0


# -- errors and ends ---------------------------------------------------------------------------------------


def test_an_error_behind_a_change_ends_the_epoch_and_not_the_loader(machine_of, pausing):
    machine_of(4)
    pipe = IterableWrapper(range(6000)).sharding_filter().map(pausing).map(partial(failing, at=5000))
    with auto(pipe) as loader:
        for _ in range(2):
            got = []
            with pytest.raises(KeyError):
                for item in hurrying(loader, pausing, 4):
                    got.append(item)
            assert got == list(range(5000))
        assert loader.reading_service.num_workers == 4


def test_a_worker_that_dies_behind_a_change_is_noticed(machine_of, pausing):
    machine_of(4)
    pipe = IterableWrapper(range(6000)).sharding_filter().map(pausing).map(partial(dying, at=5000))
    with auto(pipe) as loader:
        with pytest.raises(WorkerExitedError):
            list(hurrying(loader, pausing, 4))
        assert loader.reading_service.num_workers == 4


# Ctrl-C between the opening of a file and its `with` leaves it to the collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_it_looks_loses_no_item(interrupts_raise, monkeypatch):  # noqa: F811
    monkeypatch.setattr(steering, "ENOUGH", 1e9)  # it looks all the time, and never chooses
    monkeypatch.setattr(steering, "PATIENCE", 1e9)
    count = 1_500_000
    presses = seed = 0
    with auto(IterableWrapper(range(count)).sharding_filter()) as loader:
        while presses < 50:  # who presses may be late on a busy machine
            assert seed < 30, "Ctrl-C hardly ever came"
            got, more = pressed(iter(loader), seed)
            presses, seed = presses + more, seed + 1
            assert len(got) == count
            assert got == list(range(count))


def test_leaving_the_loop_while_others_start_leaves_nothing_behind(machine_of):
    machine_of(4)
    for items in (170, 190, 210, 230):
        with auto(slowly(2000)) as loader:
            for number, _ in enumerate(loader):
                if number == items:
                    break


def test_workers_that_cannot_be_started_leave_those_that_there_are(machine_of, monkeypatch, pausing):
    from torchdata.dataloader2.services.shifts import Shifts

    def refuse(*_: Any) -> Any:
        raise OSError("no room for another process")

    machine_of(4)
    monkeypatch.setattr(Shifts, "start_others", refuse)
    got = []
    with auto(IterableWrapper(range(3000)).sharding_filter().map(pausing)) as loader:
        for item in loader:
            got.append(item)
            if loader.stats().choices:
                pausing.hurry()
        (line,) = loader.stats().choices
    assert got == list(range(3000))
    assert line.startswith('num_workers="auto" keeps 2 workers: 4 could not be started (OSError: no room')


def dying_once(item: int, at: int, marker: str) -> int:
    if item == at and not os.path.exists(marker):
        open(marker, "x").close()
        os._exit(7)
    return item


@pytest.mark.parametrize("at", [30, 5000])
def test_workers_that_die_before_or_behind_a_change_are_started_again(machine_of, pausing, tmp_path, at):
    machine_of(4)
    dying_at = partial(dying_once, at=at, marker=str(tmp_path / "died"))
    pipe = IterableWrapper(range(6000)).sharding_filter().map(pausing).map(dying_at)
    with warnings.catch_warnings(), auto(pipe, on_worker_exit="restart") as loader:
        warnings.simplefilter("ignore")  # which says that one has died
        assert list(hurrying(loader, pausing, 4)) == list(range(6000))
        stats = loader.stats()
        assert loader.reading_service.num_workers == 4, stats.choices
        assert (stats.restarts, stats.items) == (1, 6000)
        assert list(loader) == list(range(6000))
