"""Workers behind carriers, and a dispatching process on main's machine: order, states, deaths, errors, room."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hosts import LocallyRemote, hosts_have_ended, read_here_and_there  # noqa: F401 - one is a fixture
from process_checks import MULTIPROCESSING, nothing_is_left, shared_mappings, wait_for  # noqa: F401 - one is a fixture
from ray_cluster import array, as_it_is, double, drawn, failing, many, plain, wide
from torchdata._engine.remote import worker as worker_module
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
    pytest.mark.filterwarnings("ignore:going on from this state"),
    pytest.mark.filterwarnings("ignore:the main process holds .* of items, more than the memory budget"),
]

WORKERS = 2


def dealt(count: int, before: Any = as_it_is) -> Any:
    pipe = IterableWrapper(range(count)).shuffle()
    return before(pipe).sharding_round_robin_dispatch(MULTIPROCESSING)


PIPELINES = {
    "numbers": lambda: dealt(300).map(double).batch(3),
    "arrays": lambda: dealt(80, lambda pipe: pipe.map(array)).map(np.ndarray.tolist),
    "random": lambda: dealt(120, lambda pipe: pipe.map(drawn)).map(str),
    "uneven": lambda: dealt(150).flatmap(many).map(str),
    "two passes": lambda: dealt(60).cycle(2),
    "shares left early": lambda: dealt(90).header(7),
    "fewer items than workers": lambda: dealt(1).map(double),
}


def local(**options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(WORKERS, **options)


def epochs(make: Any, service: Any, count: int = 2) -> list[list[Any]]:
    with DataLoader2(make(), reading_service=service) as loader:
        loader.seed(5)
        return [list(map(plain, loader)) for _ in range(count)]


@pytest.mark.parametrize("name", PIPELINES)
def test_items_and_their_order_are_those_of_workers_without_carriers(name: str) -> None:
    assert epochs(PIPELINES[name], LocallyRemote(WORKERS)) == epochs(PIPELINES[name], local())


def test_dealt_freely_all_items_come_once() -> None:
    (items,) = epochs(lambda: dealt(500), LocallyRemote(WORKERS, in_order=False), count=1)
    assert sorted(items) == list(range(500))


def test_more_than_there_is_room_for_is_held_back_and_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdata._engine.remote import host as host_module

    monkeypatch.setattr(host_module, "FULL", 1)
    pipe = dealt(60, lambda pipe: pipe.map(lambda x: np.full(100_000, x)))
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, memory_budget=4 << 20)) as loader:
        loader.seed(5)
        got = [(len(one), set(one.tolist())) for one in loader]
    assert sorted(got, key=str) == sorted([(100_000, {x}) for x in range(60)], key=str)


def test_a_state_goes_on_here_and_there() -> None:
    whole = [item for epoch in epochs(PIPELINES["random"], local(), 1) for item in epoch]
    dice = random.Random(7)
    assert read_here_and_there(PIPELINES["random"], len(whole), WORKERS, dice, 60) == whole


def test_an_error_where_items_are_dispatched_is_raised_behind_the_items_before_it() -> None:
    pipe = IterableWrapper(range(20)).map(failing).sharding_round_robin_dispatch(MULTIPROCESSING).map(double)
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS)) as loader:
        got = []
        with pytest.raises(LookupError, match="nothing at 7"):
            for item in loader:
                got.append(item)
    assert got == list(range(0, 14, 2))


def test_the_dispatching_process_is_seen_beside_workers_elsewhere() -> None:
    with DataLoader2(dealt(600).map(double), reading_service=LocallyRemote(WORKERS)) as loader:
        assert len(list(loader)) == 600
        wait_for(lambda: sum(worker.items for worker in loader.stats().workers) == 600)
        stats = loader.stats()
    assert stats.dispatching is not None
    assert (stats.dispatching.node, stats.dispatching.items) == (None, 600)
    for worker in stats.workers:
        assert worker.node is not None
        assert list(worker.waited_for) == ["the dispatching process"]


def test_what_goes_wrong_with_what_is_dispatched_ends_the_worker_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    carry = worker_module._Lane.carry

    def broken(lane: Any) -> Iterator[Any]:
        for number, one in enumerate(carry(lane)):
            if lane._number == 1 and number == 3:
                raise ValueError("a frame of units contradicts itself")
            yield one

    monkeypatch.setattr(worker_module._Lane, "carry", broken)
    with (
        DataLoader2(dealt(100_000), reading_service=LocallyRemote(WORKERS)) as loader,
        pytest.raises(WorkerExitedError, match="contradicts itself"),
    ):
        for _ in loader:
            pass


@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_and_whatever_is_late_nothing_is_lost_or_comes_twice(seed: int) -> None:
    dice = random.Random(seed)

    def make() -> Any:
        return dealt(900, lambda pipe: pipe.map(double)).map(wide if seed else double)

    wanted = epochs(make, local())
    service = LocallyRemote(WORKERS, worker_prefetch_cnt=100, seed=seed, on_worker_exit="restart")
    with DataLoader2(make(), reading_service=service) as loader:
        loader.seed(5)
        for epoch in wanted:
            got: list[Any] = []
            kill_at = set(dice.sample(range(10, 800), 2))
            for item in loader:
                got.append(item)
                if len(got) not in kill_at:
                    continue
                victim = dice.choice(["worker", "host", "dispatching"])
                actor = loader.reading_service.made.actors[-1 - dice.randrange(WORKERS)]
                if victim == "host":
                    actor.cut()
                elif victim == "worker" and not actor.host._child.ended:
                    os.kill(actor.host._child.pid, signal.SIGKILL)
                else:
                    os.kill(loader.reading_service.engine_processes().pids[-1], signal.SIGKILL)
            assert got == epoch
        assert len(loader.reading_service.made.actors) > WORKERS


def test_a_dispatching_process_that_hangs_is_blamed_and_not_the_workers_that_wait_for_it(tmp_path: Any) -> None:
    hung = tmp_path / "hung"

    def once(x: int) -> int:
        if x == 50 and not hung.exists():
            hung.touch()
            time.sleep(1e8)
        return x

    pipe = IterableWrapper(range(200)).map(once).sharding_round_robin_dispatch(MULTIPROCESSING).map(double)
    options = {"timeout": 2.0, "on_timeout": "restart"}
    with (
        pytest.warns(RuntimeWarning, match=r"the dispatching process \(pid \d+\) made nothing for"),
        DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, **options)) as loader,
    ):
        assert list(loader) == list(range(0, 400, 2))
