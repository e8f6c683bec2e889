"""Workers on other machines receive items from a dispatching process, with bounded memory and clear errors."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hosts import LocallyRemote, hosts_have_ended  # noqa: F401 - one is a fixture
from process_checks import MULTIPROCESSING, nothing_is_left, shared_mappings, wait_for  # noqa: F401 - one is a fixture
from remote_pipelines import double, spread
from torchdata._engine.remote import worker as worker_module
from torchdata.dataloader2 import DataLoader2, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.*A new process replaced it"),
    pytest.mark.filterwarnings("ignore:resuming from this state"),
    pytest.mark.filterwarnings("ignore:the main process holds .* of items, more than the memory budget"),
]

WORKERS = 2


def test_items_that_exceed_the_room_are_held_back_and_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdata._engine.remote import host as host_module

    monkeypatch.setattr(host_module, "FULL", 1)
    pipe = spread(60, lambda pipe: pipe.map(lambda x: np.full(100_000, x)))
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, memory_budget=4 << 20)) as loader:
        loader.seed(5)
        got = [(len(one), set(one.tolist())) for one in loader]
    assert sorted(got, key=str) == sorted([(100_000, {x}) for x in range(60)], key=str)


def test_the_dispatching_process_is_shown_together_with_workers_on_other_machines() -> None:
    with DataLoader2(spread(600).map(double), reading_service=LocallyRemote(WORKERS)) as loader:
        assert len(list(loader)) == 600
        wait_for(lambda: sum(worker.items for worker in loader.stats().workers) == 600)
        stats = loader.stats()
    assert stats.dispatching is not None
    assert (stats.dispatching.node, stats.dispatching.items) == (None, 600)
    for worker in stats.workers:
        assert worker.node is not None
        assert list(worker.waited_for) == ["the dispatching process"]


def test_errors_of_dispatched_items_end_the_worker_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    carry = worker_module._Lane.carry

    def broken(lane: Any) -> Iterator[Any]:
        for number, one in enumerate(carry(lane)):
            if lane._number == 1 and number == 3:
                raise ValueError("a frame of units is inconsistent")
            yield one

    monkeypatch.setattr(worker_module._Lane, "carry", broken)
    with (
        DataLoader2(spread(100_000), reading_service=LocallyRemote(WORKERS)) as loader,
        pytest.raises(WorkerExitedError, match="is inconsistent"),
    ):
        for _ in loader:
            pass


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
        pytest.warns(RuntimeWarning, match=r"the dispatching process \(pid \d+\) yielded nothing for"),
        DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, **options)) as loader,
    ):
        assert list(loader) == list(range(0, 400, 2))
