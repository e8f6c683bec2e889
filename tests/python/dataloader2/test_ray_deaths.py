"""Workers over three nodes of a Ray cluster, whose processes, actors and nodes die; and the end of main."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process_checks import is_gone
from ray_cluster import add, array, needs_ray, nodes, numbered, of_ray, plain, reading
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, RayReadingService, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
    pytest.mark.filterwarnings("ignore:going on from this state"),
    pytest.mark.filterwarnings("ignore:RayReadingService.* workers"),  # on a busy machine
    needs_ray,
    *of_ray,
]

WORKERS, NODES = 2, 2


@pytest.fixture(autouse=True, scope="module")
def machines() -> Iterator[Any]:
    """A cluster of three nodes, of which the first one takes no worker."""
    with nodes(NODES) as found:
        yield found


def remote(**options: Any) -> RayReadingService:
    options.setdefault("scheduling", "SPREAD")
    return RayReadingService(WORKERS, **options)


def about(loader: DataLoader2[Any]) -> list[Any]:
    """By worker, what is known of it; None while it is not up."""
    children = loader.reading_service.engine_processes()
    return [process.about for process in children._processes]


def expected(make: Any, seed: int, epochs: int) -> list[list[Any]]:
    with DataLoader2(make(), reading_service=MultiProcessingReadingService(WORKERS)) as loader:
        loader.seed(seed)
        return [list(map(plain, loader)) for _ in range(epochs)]


@pytest.mark.parametrize("whose", ["pid", "host"])
def test_a_worker_or_an_actor_that_is_killed_is_an_error_that_names_both(whose: str) -> None:
    pipe = IterableWrapper(range(100_000)).sharding_filter().map(reading)
    with DataLoader2(pipe, reading_service=remote()) as loader:
        got = []
        with pytest.raises(WorkerExitedError) as caught:
            for item in loader:
                got.append(item)
                if len(got) == 50:
                    dead = about(loader)[1]
                    os.kill(getattr(dead, whose), signal.SIGKILL)
        assert got == list(range(len(got)))
        assert caught.value.worker == 1
        assert caught.value.exitcode == (-signal.SIGKILL if whose == "pid" else None)
        told = str(caught.value)
        assert f"worker process 1 (pid {dead.pid} on {dead.node}, Ray actor " in told
        assert ("was killed by SIGKILL" if whose == "pid" else "Ray says: The actor died") in told
        wait_for(lambda: is_gone(dead.pid) and is_gone(dead.host))


def test_whoever_dies_another_one_goes_on_and_nothing_is_lost_or_comes_twice() -> None:
    dice = random.Random(1)

    def make() -> Any:
        return numbered(1500).map(reading).map(array)

    wanted = expected(make, 5, 2)
    with DataLoader2(make(), reading_service=remote(on_worker_exit="restart")) as loader:
        loader.seed(5)
        deaths = 0
        for epoch in wanted:
            got = []
            kill_at = dice.randrange(20, 1400)
            for item in loader:
                got.append(plain(item))
                if len(got) == kill_at:
                    dead = dice.choice([one for one in about(loader) if one is not None])
                    os.kill(getattr(dead, dice.choice(["pid", "host"])), signal.SIGKILL)
                    deaths += 1
            assert got == epoch
        assert deaths == 2


def test_a_node_that_dies_is_an_error_that_gives_ray_s_reason(machines: Any) -> None:
    doomed = add(machines, num_cpus=2, resources={"doomed": 2})
    options = {"num_cpus": 0, "resources": {"doomed": 1}}
    with DataLoader2(
        numbered(100_000).map(reading), reading_service=remote(ray_remote_args=options, scheduling=None)
    ) as loader, pytest.raises(WorkerExitedError, match="Ray says: ") as caught:  # fmt: skip
        for number, _ in enumerate(loader):
            if number == 20:
                machines.remove_node(doomed, allow_graceful=False)
    assert caught.value.worker in range(WORKERS)
    assert "Ray actor " in str(caught.value)
    import ray

    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 1 + NODES)  # else it may get the next worker


PROGRAM = """
import os, sys, time
import ray
ray.init(log_to_driver=False, logging_level="error")
from ray_cluster import double, numbered
from torchdata.dataloader2 import DataLoader2, RayReadingService
service = RayReadingService(1, ray_remote_args={"num_cpus": 0})
loader = DataLoader2(numbered(1_000_000).map(double), reading_service=service)
iterator = iter(loader)
next(iterator)
for one in loader.reading_service.engine_processes()._processes:
    print("pids", one.about.pid, one.about.host, flush=True)
print("up", flush=True)
how = sys.argv[1]
if how == "exits":
    sys.exit(0)
for _ in iterator:
    time.sleep(0.01)
"""


# With Ray's own hooks a program that is interrupted exits with code 1.
@pytest.mark.parametrize(
    ("how", "codes"), [("exits", [0]), ("interrupted", [1, -signal.SIGINT]), ("killed", [-signal.SIGKILL])]
)
def test_actors_and_workers_end_with_main(machines: Any, how: str, codes: list[int]) -> None:
    support = Path(__file__).resolve().parents[1] / "support"
    environment = {**os.environ, "RAY_ADDRESS": machines.address, "PYTHONPATH": str(support)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        lines = []
        while (line := program.stdout.readline()) not in ("up\n", ""):
            lines.append(line)
        pids = [int(pid) for line in lines if line.startswith("pids ") for pid in line.split()[1:]]
        assert len(pids) == 2
        if how == "interrupted":
            os.killpg(program.pid, signal.SIGINT)
        elif how == "killed":
            program.kill()
        assert program.wait(60) in codes
    wait_for(lambda: all(map(is_gone, pids)))
