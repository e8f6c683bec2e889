"""Workers behind carriers whose calls are late and overtake each other: order, states, deaths, nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts import LocallyRemote, hosts_have_ended, read_here_and_there  # noqa: F401 - one is a fixture
from one_rank import Alone
from process_checks import is_gone, nothing_is_left, shared_mappings, wait_for  # noqa: F401 - one is a fixture
from ray_cluster import PIPELINES, array, as_it_is, double, failing, numbered, wide
from torchdata._engine.remote import host as host_module
from torchdata._engine.workers import epochs as epochs_module
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
    WorkerExitedError,
)
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
    pytest.mark.filterwarnings("ignore:going on from this state"),
]

WORKERS = 2


def epochs(make: Any, service: Any, count: int = 2) -> list[list[Any]]:
    with DataLoader2(make(), reading_service=service) as loader:
        loader.seed(5)
        return [list(loader) for _ in range(count)]


def local() -> MultiProcessingReadingService:
    return MultiProcessingReadingService(WORKERS)


@pytest.mark.parametrize("name", PIPELINES)
def test_items_and_their_order_are_those_of_workers_without_carriers(name: str) -> None:
    assert epochs(PIPELINES[name], LocallyRemote(WORKERS)) == epochs(PIPELINES[name], local())


def test_large_arrays_come_whole_though_main_keeps_them_all() -> None:
    pipe = IterableWrapper(range(12)).sharding_filter().map(lambda x: np.full(200_000, x))
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, memory_budget=4 << 20)) as loader:
        kept = list(loader)
    assert [(len(one), set(one.tolist())) for one in kept] == [(200_000, {x}) for x in range(12)]


def test_a_loader_goes_on_from_random_moments_with_and_without_carriers() -> None:
    dice = random.Random(3)
    whole = [item for epoch in epochs(PIPELINES["random"], local()) for item in epoch]
    assert read_here_and_there(PIPELINES["random"], len(whole), WORKERS, dice, 80) == whole


def test_an_epoch_that_is_left_in_the_middle_does_not_hold_up_the_next_one() -> None:
    def taken(service: Any) -> list[Any]:
        with DataLoader2(numbered(3000).map(array), reading_service=service) as loader:
            loader.seed(1)
            parts = []
            for count in (5, 1, 40):
                iterator = iter(loader)
                parts.append([int(next(iterator)[0]) for _ in range(count)])
            return parts

    assert taken(LocallyRemote(WORKERS)) == taken(local())


def test_out_of_order_all_items_come() -> None:
    (items,) = epochs(lambda: numbered(300), LocallyRemote(WORKERS, in_order=False), count=1)
    assert sorted(items) == list(range(300))


def test_a_state_goes_on_with_another_number_of_workers() -> None:
    def make() -> Any:
        return IterableWrapper(range(100)).sharding_filter()

    with DataLoader2(make(), reading_service=MultiProcessingReadingService(3)) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(17)]
        state = loader.state_dict()
    with DataLoader2(make(), reading_service=LocallyRemote(2)) as loader:
        loader.load_state_dict(state)
        assert sorted([*first, *loader]) == list(range(100))


def test_ranks_have_remote_workers_each() -> None:
    def service(workers: Any) -> SequentialReadingService:
        return SequentialReadingService(DistributedReadingService(process_group=Alone()), workers)

    make = PIPELINES["numbers"]
    assert epochs(make, service(LocallyRemote(WORKERS))) == epochs(make, service(local()))


def test_an_error_is_raised_behind_the_items_before_it() -> None:
    pipe = IterableWrapper(range(20)).sharding_filter().map(failing)
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS)) as loader:
        got = []
        with pytest.raises(LookupError, match="nothing at 7"):
            for item in loader:
                got.append(item)
    assert got == list(range(7))


def test_a_host_that_is_gone_is_an_error_with_the_reason_that_is_told() -> None:
    pipe = IterableWrapper(range(100_000)).sharding_filter().map(double)
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS)) as loader:
        got = []
        with pytest.raises(WorkerExitedError, match="it is told: the host is gone") as caught:
            for item in loader:
                got.append(item)
                if len(got) == 100:
                    loader.reading_service.made.actors[1].cut()
    assert caught.value.worker == 1
    assert got == list(range(0, 2 * len(got), 2))


def test_versions_that_differ_are_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = host_module.versions()
    monkeypatch.setattr(host_module, "versions", lambda: {**ours, "Python": "3.9.1", "torchdata-rs": "0.0.1"})
    with (
        DataLoader2(numbered(10), reading_service=LocallyRemote(1)) as loader,
        pytest.raises(WorkerExitedError) as caught,
    ):
        list(loader)
    for name, there in (("Python", "3.9.1"), ("torchdata-rs", "0.0.1")):
        assert f"{name} is {ours[name]} here and {there} there" in str(caught.value)


DEAF = """
import cloudpickle, sys, time
from torchdata._engine.remote import host
from torchdata._engine.remote.host import Host, RemoteSetup
host.DEAF, host.LOOK = 1.0, 0.1
if __name__ == "__main__":
    empty = host.StatsBoard(1, 1, 1, False).carry_out(0)
    kind = "torchdata.dataloader2.services.program", "GraphProgram"
    setup = RemoteSetup("worker process 0", 0, 1, kind, (1.0, 10.0), 1 << 20, False, empty, None, 0)
    made = Host(setup, cloudpickle.dumps(None))
    print(made._child.pid, flush=True)
    made.begin()
    time.sleep(200)
"""


def test_a_host_that_hears_nothing_from_main_ends_itself_and_its_worker(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    command = [sys.executable, str(tmp_path / "deaf.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert program.wait(100) == 1
    wait_for(lambda: is_gone(pid))


# -- no room in main ---------------------------------------------------------------------------------------------------


def full(count: int = 2500) -> DataLoader2[Any]:
    """A loader whose workers are further ahead than its link has room for."""
    service = LocallyRemote(WORKERS, worker_prefetch_cnt=count)
    return DataLoader2(IterableWrapper(range(count)).sharding_filter().map(wide), reading_service=service)


def first_of(loader: DataLoader2[Any]) -> tuple[list[Any], Iterator[Any]]:
    """The first items, when the hosts hold back others; and the iterator."""
    iterator = iter(loader)
    first = [next(iterator) for _ in range(WORKERS)]
    wait_for(lambda: all(actor.host._lanes[0].holds for actor in loader.reading_service.made.actors))
    return first, iterator


def test_a_call_is_obeyed_though_there_is_no_room_for_the_items_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs_module, "OBEDIENCE", 60.0)  # else it is waited for very long, should this fail
    with full() as loader:
        first, iterator = first_of(loader)
        loader.reading_service._pause(as_it_is)
        loader.reading_service._resume()
        assert [*first, *iterator] == [wide(x) for x in range(2500)]


@pytest.mark.parametrize("whole", [True, False], ids=["host", "worker"])
def test_an_end_is_noticed_though_there_is_no_room_for_the_items_before(whole: bool) -> None:
    with full() as loader:
        first_of(loader)
        actor = loader.reading_service.made.actors[1]
        if whole:
            actor.cut()
        else:
            os.kill(actor.host._child.pid, signal.SIGKILL)
        with pytest.raises(WorkerExitedError, match="the host is gone" if whole else "SIGKILL") as caught:
            loader.reading_service._pause(as_it_is)
    assert caught.value.worker == 1


@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_and_whatever_is_late_nothing_is_lost_or_comes_twice(seed: int) -> None:
    dice = random.Random(seed)

    def make() -> Any:
        return numbered(1200).map(wide if seed else double)

    wanted = epochs(make, local())
    with DataLoader2(
        make(), reading_service=LocallyRemote(WORKERS, worker_prefetch_cnt=500, seed=seed, on_worker_exit="restart")
    ) as loader:
        loader.seed(5)
        for epoch in wanted:
            got: list[Any] = []
            kill_at = set(dice.sample(range(10, 900), 2))
            call_at = {at + dice.randrange(3) for at in kill_at}
            for item in loader:
                got.append(item)
                if len(got) in call_at:
                    loader.reading_service._pause(as_it_is)
                    loader.reading_service._resume()
                if len(got) in kill_at:
                    actor = loader.reading_service.made.actors[-1 - dice.randrange(WORKERS)]
                    if dice.random() < 0.5:
                        actor.cut()
                    elif not actor.host._child.ended:
                        os.kill(actor.host._child.pid, signal.SIGKILL)
            assert got == epoch
        assert len(loader.reading_service.made.actors) > WORKERS
