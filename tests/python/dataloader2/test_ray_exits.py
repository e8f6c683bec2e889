"""Workers run on three nodes of a Ray cluster. Each test kills processes, actors, nodes or the main process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process_checks import has_exited
from ray_cluster import add, join, needs_ray, nodes, of_ray, raylet_of
from remote_pipelines import numbered, reading
from torchdata._engine.remote import worker as worker_module
from torchdata.dataloader2 import DataLoader2, RayReadingService, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*A new process replaced it"),
    pytest.mark.filterwarnings("ignore:resuming from this state"),
    needs_ray,
    *of_ray,
]

WORKERS, NODES = 2, 2
#: Settings that make Ray remove an unresponsive node after some seconds instead of a minute.
PROMPT = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture(autouse=True, scope="module")
def machines() -> Iterator[Any]:
    with nodes(NODES, **PROMPT) as found:
        yield found


def remote(**options: Any) -> RayReadingService:
    options.setdefault("ray_remote_args", {"scheduling_strategy": "SPREAD"})
    return RayReadingService(WORKERS, **options)


def about(loader: DataLoader2[Any]) -> list[Any]:
    children = loader.reading_service.engine_processes()
    return [process.about for process in children._processes]


@pytest.mark.parametrize("process", ["pid", "host"])
def test_an_error_names_the_killed_worker_and_its_actor(process: str) -> None:
    pipe = IterableWrapper(range(100_000)).sharding_filter().map(reading)
    with DataLoader2(pipe, reading_service=remote()) as loader:
        got = []
        with pytest.raises(WorkerExitedError) as caught:
            for item in loader:
                got.append(item)
                if len(got) == 50:
                    victim = about(loader)[1]
                    os.kill(getattr(victim, process), signal.SIGKILL)
        assert got == list(range(len(got)))
        assert caught.value.worker == 1
        assert caught.value.exitcode == (-signal.SIGKILL if process == "pid" else None)
        text = str(caught.value)
        assert f"worker process 1 (pid {victim.pid} on {victim.node}, Ray actor " in text
        assert ("was killed by SIGKILL" if process == "pid" else "Ray reports: The actor died") in text
        wait_for(lambda: has_exited(victim.pid) and has_exited(victim.host))


@pytest.mark.parametrize("how", ["node", "stopped raylet"])
def test_an_error_gives_ray_s_reason_for_a_lost_node(machines: Any, how: str) -> None:
    doomed = add(machines, num_cpus=2, resources={how: 2})
    options = {"num_cpus": 0, "resources": {how: 1}}
    service = remote(ray_remote_args=options, worker_prefetch_cnt=20)
    with (
        DataLoader2(numbered(1_000_000).map(reading), reading_service=service) as loader,
        pytest.raises(WorkerExitedError, match="Ray reports: ") as caught,
    ):
        for number, _ in enumerate(loader):
            if number > 20:
                time.sleep(0.01)  # a suspended raylet is detected after some seconds, while its workers continue
            if number == 20:
                node = about(loader)[0].node
                if how == "node":
                    machines.remove_node(doomed, allow_graceful=False)
                else:
                    os.kill(raylet_of(doomed), signal.SIGSTOP)
    assert caught.value.worker in range(WORKERS)
    assert re.search(rf"on {node}, Ray actor \w+\)", str(caught.value))
    if how == "stopped raylet":
        machines.remove_node(doomed, allow_graceful=False)
    import ray

    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 1 + NODES)


def test_an_actor_that_is_stopped_is_found_by_the_timeout_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "ANSWERED", 1.0)
    stopped: list[Any] = []

    def read(loader: DataLoader2[int]) -> Iterator[int]:
        for number, item in enumerate(loader):
            yield item
            if number == 100:
                # A worker has a longer timeout until it has sent its first item, so the test waits for this item.
                wait_for(lambda: loader.stats().workers[0].items)
                stopped.append(about(loader)[0])
                os.kill(stopped[0].host, signal.SIGSTOP)

    pipe = IterableWrapper(range(1200)).sharding_filter().map(reading)
    service = remote(timeout=3.0, on_timeout="restart", worker_prefetch_cnt=20)
    with (
        pytest.warns(RuntimeWarning, match=r"on .*, Ray actor \w+\) yielded nothing for .*, in an unknown state"),
        DataLoader2(pipe, reading_service=service) as loader,
    ):
        assert list(read(loader)) == list(range(1200))
    wait_for(lambda: has_exited(stopped[0].pid) and has_exited(stopped[0].host))


@pytest.mark.parametrize(("on_worker_exit", "comes_back"), [("error", False), ("restart", True)])
def test_a_program_that_has_left_the_cluster_gets_an_error(
    machines: Any, on_worker_exit: str, comes_back: bool
) -> None:
    import ray

    def leave() -> None:
        ray.shutdown()
        if comes_back:
            join(machines)

    with DataLoader2(numbered(1_000_000).map(reading), reading_service=remote(on_worker_exit=on_worker_exit)) as loader:
        with pytest.raises(WorkerExitedError, match="the program has left the cluster"):
            for number, _ in enumerate(loader):
                if number == 20:
                    leave()
        began_one = ray.is_initialized() and not comes_back
    if not comes_back:
        join(machines)
    assert not began_one


PROGRAM = """
import dataclasses, os, sys, threading, time
import ray
how = sys.argv[1]
if how == "loses":
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    print("head", ray._private.worker._global_node.all_processes["gcs_server"][0].process.pid)
else:
    ray.init(log_to_driver=False, logging_level="error")
from remote_pipelines import double, numbered
from torchdata._engine.remote.host import Pushed
from torchdata.dataloader2 import DataLoader2, RayReadingService, WorkerExitedError
service = RayReadingService(1, ray_remote_args={"num_cpus": 0})
loader = DataLoader2(numbered(1_000_000).map(double), reading_service=service)
iterator = iter(loader)
next(iterator)
for one in loader.reading_service.engine_processes()._processes:
    print("pids", one.about.pid, one.about.host, flush=True)
print("up", flush=True)
if how == "exits":
    sys.exit(0)
if how == "leaves":
    worker = ray._private.worker.global_worker
    class Lingering:  # Ray exits the process if a thread calls Ray after this shutdown
        def __getattr__(self, name):
            return getattr(core, name)
        def shutdown_driver(self):
            core.shutdown_driver()
            time.sleep(3)
    def slowly(error):
        calls.set()
        time.sleep(1.5)
        return Pushed, tuple(getattr(error, field.name) for field in dataclasses.fields(Pushed))
    calls, Pushed.__reduce__ = threading.Event(), slowly
    core, worker.core_worker = worker.core_worker, Lingering()
    while not calls.is_set():
        next(iterator)
    ray.shutdown()
try:
    for _ in iterator:
        time.sleep(0.01)
except WorkerExitedError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("how", "codes", "message"),
    [
        ("exits", [0], ""),
        ("interrupted", [1, -signal.SIGINT], ""),
        ("killed", [-signal.SIGKILL], ""),
        ("loses", [1], "Failed to connect to GCS"),
        ("leaves", [1], "the program has left the cluster"),
    ],
)
def test_actors_and_workers_end_with_main(machines: Any, how: str, codes: list[int], message: str) -> None:
    support = Path(__file__).resolve().parents[1] / "support"
    environment = {**os.environ, "RAY_ADDRESS": machines.address, "PYTHONPATH": str(support)}
    if how == "loses":
        del environment["RAY_ADDRESS"]
        environment["RAY_gcs_rpc_server_reconnect_timeout_s"] = "3"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        lines = []
        while (line := program.stdout.readline()) not in ("up\n", ""):
            lines.append(line.split())
        pids = [int(pid) for name, *rest in lines if name == "pids" for pid in rest]
        assert len(pids) == 2
        if how == "interrupted":
            os.killpg(program.pid, signal.SIGINT)
        elif how == "killed":
            program.kill()
        elif how == "loses":
            os.kill(next(int(pid) for name, pid, *_ in lines if name == "head"), signal.SIGKILL)
        _, message = program.communicate(timeout=100)
        assert program.returncode in codes
        assert message in message
    wait_for(lambda: all(map(has_exited, pids)))
