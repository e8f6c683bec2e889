"""Workers on other machines tolerate late and reordered calls, large items, exits of hosts, and full links."""

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts import LocallyRemote, hosts_have_ended  # noqa: F401 - one is a fixture
from process_checks import has_exited, nothing_is_left, shared_mappings, wait_for  # noqa: F401 - one is a fixture
from remote_pipelines import as_it_is, double, numbered, wide
from torchdata._engine.remote import host as host_module
from torchdata._engine.remote import worker as worker_module
from torchdata._engine.remote.host import Pulled
from torchdata._engine.workers import epochs as epochs_module
from torchdata.dataloader2 import DataLoader2, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.*A new process replaced it"),
    pytest.mark.filterwarnings("ignore:resuming from this state"),
]

WORKERS = 2


def test_a_pending_answer_keeps_no_links_open() -> None:
    class Carrier:
        rung = 0

        def ring(self) -> None:
            self.rung += 1

    carrier: Any = Carrier()
    lane = worker_module._Lane(0, None, carrier, 1, lambda: True)  # type: ignore[arg-type]
    ring = worker_module._ringing(lane)
    ring(None)
    assert carrier.rung == 1
    held = weakref.ref(carrier)
    del carrier, lane
    gc.collect()
    assert held() is None
    ring(None)


def test_results_of_a_later_pull_do_not_wait_for_an_earlier_one() -> None:
    pulls: list[Future[Pulled]] = []

    class Fake:
        def check(self) -> None: ...

        def ring(self) -> None: ...

        def take(self, most: int) -> tuple[None, list[Any]]:
            return None, []

        def pull(self, lane: int, most: int) -> Future[Pulled]:
            pulls.append(Future())
            return pulls[-1]

        def wait(self, seconds: float, messages: bool, lacks: bool) -> None:
            pulls[1].set_result(Pulled(0, None, []))  # The first call was lost, so it never returns a result.

    fake: Any = Fake()
    lane = worker_module._Lane(0, fake, fake, 1, lambda: True)
    assert next(lane.carry()).number == 0


def test_large_arrays_arrive_whole_although_the_main_process_keeps_them_all() -> None:
    pipe = IterableWrapper(range(12)).sharding_filter().map(lambda x: np.full(200_000, x))
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, memory_budget=4 << 20)) as loader:
        kept = list(loader)
    assert [(len(one), set(one.tolist())) for one in kept] == [(200_000, {x}) for x in range(12)]


def test_an_error_gives_the_reason_why_a_host_has_exited() -> None:
    pipe = IterableWrapper(range(100_000)).sharding_filter().map(double)
    with DataLoader2(pipe, reading_service=LocallyRemote(WORKERS)) as loader:
        got = []
        with pytest.raises(WorkerExitedError, match="the host reports: the host has exited") as caught:
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


HOSTING = """
import cloudpickle, os, signal, sys, time
from torchdata._engine.remote import host
from torchdata._engine.remote.host import Host, RemoteSetup
from torchdata._engine.workers.child import ChildSetup
if sys.argv[1] == "silent":
    host.SILENCE_TIMEOUT, host.POLL_INTERVAL = 1.0, 0.1
if __name__ == "__main__":
    until, write = os.pipe()
    if sys.argv[1] == "orphan" and os.fork():
        os.read(until, 1)
        os._exit(1)
    parent = os.getppid()
    empty = host.StatsBoard(1, 1, 1, False).carry_out(0)
    kind = "torchdata.dataloader2.services.program", "GraphProgram"
    numbers, nothing = (1, 1, 0, 0, 1, range(1), 1, False), [None, None, None]
    child = ChildSetup("worker process 0", *numbers, None, kind, *nothing, [0], 2, 2, 0, (1, 1))
    setup = RemoteSetup(child, 1 << 20, False, empty, False)
    made = Host(setup, cloudpickle.dumps(None))
    made.begin()
    print(os.getpid(), made._child.pid, flush=True)
    os.write(write, b"1")
    if sys.argv[1] == "orphan":
        while os.getppid() == parent:
            time.sleep(0.01)
        os.kill(made._child.pid, signal.SIGKILL)
    time.sleep(200)
"""


@pytest.mark.parametrize("kind", ["silent", "orphan"])
def test_a_host_exits_without_messages_or_if_its_parent_and_its_worker_exited(kind: str, tmp_path: Path) -> None:
    (tmp_path / "hosting.py").write_text(HOSTING)
    command = [sys.executable, str(tmp_path / "hosting.py"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        assert program.wait(100) == 1
    wait_for(lambda: all(has_exited(pid) for pid in pids))


def full(count: int = 2500) -> DataLoader2[Any]:
    service = LocallyRemote(WORKERS, worker_prefetch_cnt=count)
    return DataLoader2(IterableWrapper(range(count)).sharding_filter().map(wide), reading_service=service)


def first_of(loader: DataLoader2[Any]) -> tuple[list[Any], Iterator[Any]]:
    iterator = iter(loader)
    first = [next(iterator) for _ in range(WORKERS)]
    wait_for(lambda: all(actor.host._lanes[0].holds for actor in loader.reading_service.made.actors))
    return first, iterator


def test_a_call_is_executed_although_earlier_items_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs_module, "ANSWER_TIMEOUT", 60.0)  # limits the wait if this test fails
    with full() as loader:
        first, iterator = first_of(loader)
        loader.reading_service._pause(as_it_is)
        loader.reading_service._resume()
        assert [*first, *iterator] == [wide(x) for x in range(2500)]


@pytest.mark.parametrize("whole", [True, False], ids=["host", "worker"])
def test_an_end_is_noticed_although_earlier_items_find_no_room(whole: bool) -> None:
    with full() as loader:
        first_of(loader)
        actor = loader.reading_service.made.actors[1]
        if whole:
            actor.cut()
        else:
            os.kill(actor.host._child.pid, signal.SIGKILL)
        with pytest.raises(WorkerExitedError, match="the host has exited" if whole else "SIGKILL") as caught:
            loader.reading_service._pause(as_it_is)
    assert caught.value.worker == 1
