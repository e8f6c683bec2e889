"""`num_workers="auto"` where items come from workers more slowly than they are made: they are made in main."""

from __future__ import annotations

import os
import pickle
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from auto_checks import auto, epochs_until, in_order_of, plain, shuffled
from process_checks import nothing_is_left  # noqa: F401
from torchdata._observe.outside.attaching import attach
from torchdata._observe.stats.diagnosis import Verdict, diagnose
from torchdata.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.services import steering
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how long an item takes who makes it, and to come from a worker, whatever they take on this machine."""

    def of(made: float, comes: float = 1e-3) -> None:
        def summarised(*readings: Any) -> Any:
            stats = steering_summarise(*readings)
            each = comes if stats.workers else made

            def told(process: Any) -> Any:
                if process.role == "main":
                    return replace(process, busy=0.0, cpu_seconds=0.0)
                return replace(process, busy_seconds=process.items * made, busy=made / comes / len(stats.workers))

            processes = tuple(map(told, stats.processes))
            told_stats = replace(stats, loading=1.0, waiting=1.0, step_seconds=0.0, held_up=0.9, processes=processes)
            return replace(told_stats, seconds=stats.items * each, items_per_second=1 / each)

        monkeypatch.setattr(steering, "summarise", summarised)

    steering_summarise = steering.summarise
    return of


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_items_that_come_more_slowly_than_they_are_made_are_made_in_main(transport, method):
    transport(made=1e-5)
    with auto(shuffled(1200), multiprocessing_context=method) as loader:
        loader.seed(3)
        got = epochs_until(0, loader)
        assert loader.reading_service.num_workers == 0
        got += [list(loader) for _ in range(3)]
        assert got == in_order_of(shuffled(1200), 3, len(got))
        (line,) = loader.stats().choices
        assert line.startswith('num_workers="auto": 0 workers instead of 2 after this epoch: sending limits'), line
        stats = loader.stats()
        assert stats.items == 1200 * len(got)
        assert stats.epoch == len(got)
        assert [pipe.items_out for pipe in stats.main.pipes if pipe.name == "the worker processes"] != []
        assert {process.role for process in stats.processes} == {"main", "replaced"}
        assert len(loader) == 1200
        assert "num_workers=0" not in str(loader.diagnose())


def test_workers_come_back_if_the_work_becomes_dearer_in_main(transport):
    transport(made=1e-5)
    with auto(shuffled(1200)) as loader:
        loader.seed(4)
        got = epochs_until(0, loader)
        got += [list(loader) for _ in range(2)]
        transport(made=1.0, comes=1.0)
        got += epochs_until(2, loader)
        assert loader.reading_service.num_workers == 2
        got.append(list(loader))
        assert got == in_order_of(shuffled(1200), 4, len(got))
        assert loader.stats().items == 1200 * len(got)
        assert "2 workers instead of 0 after this epoch: an item takes the main process 1" in loader.stats().choices[1]


def slow_outside(item: Any, pid: int) -> Any:
    """Takes long in every process but one."""
    if os.getpid() != pid:
        time.sleep(0.0005)
    return item


def trained(loader: DataLoader2[Any]) -> int:
    """Reads an epoch in steps that take shorter than that, and much longer than an item which takes no time."""
    return sum(time.sleep(0.0001) is None for _ in loader)


def seen_from_outside() -> Verdict:
    """The verdict of `python -m torchdata top` and `stats` on the loader of this process."""
    (attached,) = attach(os.getpid())
    return diagnose(attached.stats())


def test_a_verdict_is_on_those_that_load_now(transport):
    transport(made=1e-5)
    pipe = IterableWrapper(range(1200)).sharding_filter().map(partial(slow_outside, pid=os.getpid()))
    with auto(pipe) as loader:
        kinds = []
        while len(kinds) < 10 and loader.reading_service.num_workers:
            trained(loader)
            kinds.append(loader.diagnose().kind)
        assert loader.reading_service.num_workers == 0
        assert kinds == ["loading"] * (len(kinds) - 1) + ["training"], loader.diagnose()
        assert seen_from_outside().kind == "training"
        earlier = loader.stats()
        assert loader.diagnose(since=earlier).kind == "too early"
        transport(made=1.0, comes=1.0)
        assert trained(loader) == 1200
        iterator = iter(loader)
        next(iterator)
        assert loader.reading_service.num_workers == 2
        said = str(loader.diagnose(since=earlier))
        assert said.startswith("It is too early to tell: 1 items were loaded; ask again"), said
        assert said.endswith("Those before them came of other processes.")
        assert str(seen_from_outside()) == said
        assert sum(time.sleep(0.0001) is None for _ in iterator) == 1199
        assert loader.diagnose().kind == seen_from_outside().kind == "loading", loader.diagnose()
        assert loader.stats().items == 1200 * (len(kinds) + 2)
        assert loader.stats(since=earlier).epochs == 2
    assert loader.diagnose().kind == "loading", "what was counted of the change stays, too"


def test_no_workers_are_advised_where_items_come_more_slowly_from_them(transport):
    transport(made=1e-5)
    with auto(shuffled(1200)) as loader:
        epochs_until(0, loader)
        list(loader)
        verdict = loader.diagnose()
        assert verdict.kind == "training" or "more slowly from workers" in verdict.text, verdict
        assert "ReadingService(" not in verdict.text
    seen = DataLoader2(IterableWrapper(range(5000)).map(plain))
    list(seen)
    stats = replace(seen.stats(), loading=0.5, seconds=5000 * 1e-6, step_seconds=5.1e-7)
    assert diagnose(stats).text.startswith("Loading limits you: it takes 50 % of the time")
    assert diagnose(stats).text.endswith("An item takes 500 ns: it would come more slowly from a worker.")
    assert "MultiProcessingReadingService(20)" in diagnose(replace(stats, seconds=5000 * 2e-5)).text
    seen.shutdown()


def test_a_sequence_of_services_moves_with_the_one_that_chooses(transport):
    transport(made=1e-5)
    several = SequentialReadingService(InProcessReadingService(2), MultiProcessingReadingService("auto", "fork"))
    with DataLoader2(shuffled(1200), reading_service=several) as loader:
        loader.seed(3)
        workers = loader.reading_service.reading_services[1]
        got: list[Any] = []
        while len(got) < 10 and workers.num_workers:
            got.append(list(loader))
        got.append(list(loader))
        assert workers.num_workers == 0
        assert {process.role for process in loader.stats().processes} == {"main", "replaced"}
        assert got == in_order_of(shuffled(1200), 3, len(got))


def test_main_and_workers_change_a_few_times_and_then_no_more(transport):
    with auto(shuffled(1100)) as loader:
        loader.seed(5)
        got: list[Any] = []
        for workers in (0, 2) * steering.MOST_CHANGES:
            transport(made=1.0 if workers else 1e-5)
            got += epochs_until(workers, loader)
            assert loader.reading_service.num_workers == workers
        transport(made=1e-5)
        got += epochs_until(0, loader)
        assert loader.reading_service.num_workers == 2
        assert got == in_order_of(shuffled(1100), 5, len(got))


def test_workers_that_cannot_come_back_leave_the_main_process(transport, monkeypatch):
    transport(made=1e-5)
    with auto(shuffled(1100)) as loader:
        loader.seed(6)
        got = epochs_until(0, loader)
        transport(made=1.0)

        def fail(*_: Any) -> Any:
            raise OSError("no more processes")

        monkeypatch.setattr(loader.reading_service._shifts, "start_others", fail)
        got += epochs_until(2, loader)
        assert loader.reading_service.num_workers == 0
        assert "keeps 0 workers: 2 could not be started (OSError: no more processes)" in loader.stats().choices[-1]
        assert got == in_order_of(shuffled(1100), 6, len(got))


@pytest.mark.parametrize("workers", [0, 2, 3, "auto"])
def test_states_from_main_go_on_with_any_number_of_workers(transport, workers):
    transport(made=1e-5)
    place = random.Random(7).randrange(1, 1100)
    with auto(shuffled(1100)) as loader:
        loader.seed(7)
        epochs_until(0, loader)
        between = pickle.dumps(loader.state_dict())
        items = iter(loader)
        first = [next(items) for _ in range(place)]
        inside = pickle.dumps(loader.state_dict())
        rest, following = list(items), list(loader)
    for state, expected in ((between, [first + rest, following]), (inside, [rest, following])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            service = MultiProcessingReadingService(workers, "fork")
        with DataLoader2(shuffled(1100), reading_service=service) as other:
            other.load_state_dict(pickle.loads(state))
            assert [list(other), list(other)] == expected


def test_states_of_workers_go_on_in_auto_that_moves_to_main_later(transport):
    transport(made=1e-5)
    with DataLoader2(shuffled(1100), reading_service=MultiProcessingReadingService(3, "fork")) as loader:
        loader.seed(8)
        items = iter(loader)
        for _ in range(100):
            next(items)
        state = loader.state_dict()
        expected = [list(items), *(list(loader) for _ in range(6))]
    with auto(shuffled(1100)) as other:
        other.load_state_dict(state)
        assert [list(other) for _ in range(7)] == expected
        assert other.reading_service.num_workers == 0


def test_a_loader_that_moved_to_main_is_paused_limited_and_left_in_the_middle(transport):
    transport(made=1e-5)
    with auto(shuffled(1100)) as loader:
        loader.seed(9)
        got = epochs_until(0, loader)
        items = iter(loader)
        items.limit(5)
        first = list(items)
        items.limit(None)
        items.resume()
        assert len(first) == 5
        assert first + list(items) == in_order_of(shuffled(1100), 9, len(got) + 1)[-1]
        next(iter(loader))
        assert list(loader) == in_order_of(shuffled(1100), 9, len(got) + 3)[-1]
