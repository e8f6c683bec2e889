"""Functions of a reading service that are applied in the middle of an epoch in which processes are replaced."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from process_checks import MULTIPROCESSING, nothing_is_left  # noqa: F401 - a fixture
from restarted import pids_of, restarting, shared_out
from torchdata._engine import snapshots
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
]

FEW = {"worker_prefetch_cnt": 3, "main_prefetch_cnt": 4}


class Boxed:
    """An item whose bytes are not compared when it is recomputed, so a wrong item would not be noticed."""

    def __init__(self, value):
        self.value = value


class Boxing:
    """Stores with each item how often it was raised."""

    def __init__(self):
        self.by = 0

    def __call__(self, item):
        return Boxed((item, self.by))


class Raises:
    """Raises the counter of boxes by one with each call. All instances are equal."""

    def __eq__(self, other):
        return isinstance(other, Raises)

    def __hash__(self):
        return 1

    def __call__(self, graph):
        for pipe in list_dps(traverse_dps(graph)):
            if isinstance(getattr(pipe, "fn", None), Boxing):
                pipe.fn.by += 1


def apply(loader):
    loader.reading_service._children.call(Raises())


def kill(loader, index):
    os.kill(pids_of(loader)[index], signal.SIGKILL)


def places(loader, worker):
    """Returns after how many of its items each function of this epoch was applied in a worker."""
    calls = loader.reading_service._children._restarts._calls
    calls.settle(worker)
    return [place for place, *_ in calls.within(worker)]


def check(got, items, calls):
    """Checks that all items have arrived, and that items boxed later by a worker were raised at least as often."""
    got = sorted(got)
    assert [item for item, _ in got] == list(range(items))
    for worker in range(2):
        numbers = [by for _, by in got[worker::2]]
        assert numbers == sorted(numbers)
        assert numbers[-1] == calls


def read(loader):
    """Reads an epoch in which functions are applied and workers are killed."""
    for number, item in enumerate(loader):
        yield item.value
        if number in (40, 41, 120):
            apply(loader)
        if number in (60, 61, 170):
            kill(loader, number % 2)


def test_a_replacement_worker_recomputes_items_in_pipes_as_they_were_before_a_function_call(monkeypatch):
    monkeypatch.setattr(snapshots, "SECONDS", 1000.0)
    with restarting(shared_out(300).map(Boxing()).shuffle(buffer_size=30), **FEW) as loader:
        check(read(loader), 300, 3)
        assert loader.stats().restarts == 3


@pytest.mark.parametrize("seconds", [1000.0, 0.0], ids=["from the beginning", "from a snapshot"])
def test_a_replacement_worker_applies_functions_between_the_same_two_items(seconds, monkeypatch):
    monkeypatch.setattr(snapshots, "SECONDS", seconds)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    with restarting(shared_out(300).map(Boxing()), **FEW) as loader:
        got = list(read(loader))
        assert [item for item, _ in got] == list(range(300))
        for worker in range(2):
            known = places(loader, worker)
            assert 20 <= known[0] < 20 + 8
            assert [by for _, by in got[worker::2]] == [sum(place <= index for place in known) for index in range(150)]


def test_a_function_call_waits_until_items_are_recomputed(monkeypatch):
    monkeypatch.setattr(snapshots, "SECONDS", 1000.0)
    with restarting(shared_out(3000).map(Boxing()).shuffle(buffer_size=30), **FEW) as loader:
        iterator = iter(loader)
        got = [next(iterator).value for _ in range(2000)]
        for worker in (0, 1):
            kill(loader, worker)
            got.append(next(iterator).value)
            apply(loader)
        got += [item.value for item in iterator]
        check(got, 3000, 2)


def test_lasting_state_is_recomputed_with_the_functions_of_its_epoch():
    with restarting(shared_out(60).map(Boxing()).in_memory_cache(), **FEW) as loader:
        first = []
        for number, item in enumerate(loader):
            first.append(item.value)
            if number == 20:
                apply(loader)
        iterator = iter(loader)
        kill(loader, 0)
        assert [item.value for item in iterator] == first
        assert {by for _, by in first} == {0, 1}


def test_functions_between_epochs_are_applied_as_often_as_in_the_main_process():
    with restarting(shared_out(40).map(Boxing()), **FEW) as loader:
        for count in range(4):
            iterator = iter(loader)
            got = [next(iterator).value]
            kill(loader, count % 2)
            got += [item.value for item in iterator]
            assert got == [(item, count) for item in range(40)]
            apply(loader)


def graphs(where):
    """Functions are applied to dispatched items, to the workers' results, or to both."""
    before, behind = where in ("before", "both"), where in ("behind", "both")
    pipe = IterableWrapper(range(300))
    pipe = pipe.map(Boxing()) if before else pipe
    pipe = pipe.sharding_round_robin_dispatch(MULTIPROCESSING)
    return pipe.map(Boxing()) if behind else pipe


def raised(item):
    """Returns (number, how often it was raised before the dispatch, and after it), where it was boxed."""
    value, *by = item.value
    return (*raised(value), *by) if isinstance(value, Boxed) else (value, *by)


@pytest.mark.parametrize(
    ("where", "victims", "seconds"),  # from the beginning, or from a snapshot
    [
        ("before", (0, 1, 0), 1000.0),
        ("before", (2, 2, 2), 0.0),
        ("behind", (1, 2, 0), 1000.0),
        ("behind", (0, 1, 0), 0.0),
        ("both", (2, 2, 2), 1000.0),
        ("both", (1, 2, 0), 0.0),
    ],
    ids=str,
)
def test_with_a_dispatching_process_all_workers_apply_functions_between_the_same_two_items(
    where, victims, seconds, monkeypatch
):
    monkeypatch.setattr(snapshots, "SECONDS", seconds)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    got = []
    with restarting(graphs(where), **FEW) as loader:
        for number, item in enumerate(loader):
            got.append(raised(item))
            if number in (40, 41, 120):
                apply(loader)
            if number in (60, 130, 170):
                kill(loader, victims[(60, 130, 170).index(number)])
        assert loader.stats().restarts == 9
        known = [places(loader, index) for index in range(3)]
    assert [item for item, *_ in got] == list(range(300))
    if where != "behind":
        assert 40 <= known[2][0] < 40 + 40
        assert [by for _, by, *_ in got] == [sum(place <= index for place in known[2]) for index in range(300)]
    if where != "before":
        for worker in range(2):
            assert 20 <= known[worker][0] < 20 + 8
            by = [by for *_, by in got[worker::2]]
            assert by == [sum(place <= index for place in known[worker]) for index in range(150)]


@pytest.mark.parametrize("victim", [0, 2])
def test_functions_in_a_later_pass_of_what_is_dispatched_meet_that_pass_again(victim):
    """The dispatching process restarts its item count in each pass."""
    with restarting(graphs("before").cycle(3), **FEW) as loader:
        got = []
        for number, item in enumerate(loader):
            got.append(raised(item))
            if number in (50, 420):
                apply(loader)
            if number in (500, 800):
                kill(loader, victim)
        known = places(loader, 2)
    first, number, second = known[0], 1 + (known[1] >> 32), known[1] & (1 << 32) - 1
    assert 50 <= first < 300
    assert number == 2
    assert got[:300] == [(item, int(first <= item)) for item in range(300)]
    assert got[300:600] == [(item, 1 + int(second <= item)) for item in range(300)]
    assert got[600:] == [(item, 2) for item in range(300)]


def test_an_error_reports_a_dispatching_process_that_exits_before_it_obeys_a_command(monkeypatch):
    with restarting(shared_out(3000, dispatched=True).map(Boxing()), **FEW) as loader:
        iterator = iter(loader)
        assert [next(iterator).value for _ in range(20)][-1] == (19, 0)
        os.kill(pids_of(loader)[2], signal.SIGSTOP)
        threading.Timer(0.3, kill, (loader, 2)).start()
        with pytest.raises(WorkerExitedError, match="the dispatching process .*in the middle of this epoch") as caught:
            apply(loader)
        assert (caught.value.worker, caught.value.exitcode) == (None, -signal.SIGKILL)


def test_a_worker_that_exits_while_the_others_receive_a_command_is_replaced():
    with restarting(shared_out(3000, dispatched=True).map(Boxing()), **FEW) as loader:
        iterator = iter(loader)
        got = [next(iterator).value for _ in range(20)]
        os.kill(pids_of(loader)[1], signal.SIGSTOP)
        threading.Timer(0.3, kill, (loader, 1)).start()
        apply(loader)
        got += [item.value for item in iterator]
        check(got, 3000, 1)
