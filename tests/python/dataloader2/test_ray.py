"""Workers on a local Ray cluster handle large items, messages, hangs and shutdown, and refuse wrong arguments."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ray_cluster import cluster, needs_ray, of_ray
from refusals import refuses
from remote_pipelines import numbered, reading
from torchdata._engine.remote.worker import RemoteWorker
from torchdata._observe.outside.stalls import StallWarning
from torchdata.dataloader2 import DataLoader2, RayReadingService
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = [pytest.mark.filterwarnings("ignore:resuming from this state"), needs_ray, *of_ray]

WORKERS = 2


@pytest.fixture(autouse=True, scope="module")
def ray() -> Iterator[Any]:
    with cluster() as found:
        yield found


def remote(workers: int = WORKERS, **options: Any) -> RayReadingService:
    options.setdefault("ray_remote_args", {"num_cpus": 0})
    return RayReadingService(workers, **options)


def test_large_arrays_are_received_complete_with_a_small_memory_budget() -> None:
    def make() -> Any:
        return IterableWrapper(range(12)).sharding_filter().map(lambda x: np.full(400_000, x))

    with DataLoader2(make(), reading_service=remote(memory_budget=8 << 20)) as loader:
        kept = list(loader)  # All items of the list together exceed the memory budget.
    assert [(len(one), int(one[0]), bool((one == one[0]).all())) for one in kept] == [
        (400_000, x, True) for x in range(12)
    ]


def test_functions_of_the_user_run_in_the_worker_and_see_its_number() -> None:
    service = remote(worker_init_fn=lambda pipe, info: pipe.map(lambda x: (info.worker_id, info.num_workers, x)))
    with DataLoader2(IterableWrapper(range(6)).sharding_filter(), reading_service=service) as loader:
        assert list(loader) == [(x % 2, 2, x) for x in range(6)]


def test_a_warning_about_workers_for_which_ray_has_no_room_names_the_command_that_shows_it() -> None:
    service = remote(1, timeout=3.0, ray_remote_args={"num_cpus": 3})  # the cluster has two processors
    with (
        DataLoader2(numbered(300), reading_service=service, stall_warning=0.5) as loader,
        pytest.warns(StallWarning, match="which has not started yet: `ray status` shows whether the cluster has free"),
        pytest.raises(TimeoutError),
    ):
        list(loader)


def test_a_ray_version_without_the_lock_for_leaving_programs_is_refused(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ray._private.worker, "_connect_or_shutdown_lock")
    with pytest.raises(ImportError, match=r"RayReadingService needs Ray 2\.49 or later, and this is \d"):
        list(DataLoader2(numbered(3), reading_service=remote(1)))


def test_workers_run_in_a_placement_group_and_in_an_environment_of_the_user_s(ray: Any) -> None:
    group = ray.util.placement_group([{"CPU": 0.5}] * WORKERS)
    ray.get(group.ready(), timeout=100)
    scheduling = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    environment = {"env_vars": {"OF_THE_USER": "yes"}}
    options = {"num_cpus": 0.5, "scheduling_strategy": scheduling, "runtime_env": environment}
    service = RayReadingService(WORKERS, ray_remote_args=options)
    pipe = IterableWrapper(range(4)).sharding_filter().map(lambda x: (x, os.environ["OF_THE_USER"]))
    with DataLoader2(pipe, reading_service=service) as loader:
        assert list(loader) == [(x, "yes") for x in range(4)]
        taken = ray.util.placement_group_table(group)["bundles_to_node_id"]
        assert len(taken) == WORKERS
    ray.util.remove_placement_group(group)


def test_statistics_name_the_node_and_the_actor_of_each_worker(ray: Any) -> None:
    with DataLoader2(numbered(3000).map(reading), reading_service=remote()) as loader:
        count = sum(1 for _ in loader)
        wait_for(lambda: sum(worker.items for worker in loader.stats().workers) == count)
        stats = loader.stats()
        actors = [one._actor.identity for one in loader.reading_service.engine_processes()._processes]
    node = ray.util.get_node_ip_address()
    assert [(worker.node, worker.actor) for worker in stats.workers] == [(node, actor) for actor in actors]
    assert all(worker.called == f"{worker.name} on node {node}" for worker in stats.workers)
    assert stats.network_bytes_per_second > 0


def test_a_shutdown_does_not_wait_for_a_worker_that_has_sent_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(RemoteWorker, "kill", lambda worker: ended.append(worker.ended))
    pipe = IterableWrapper(range(4000)).sharding_filter().map(lambda x: b"0" * 8000)
    with DataLoader2(pipe, reading_service=remote()) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)  # after two items, both workers are running
    assert ended == [True] * WORKERS


test_wrong_options_of_a_service_on_ray_are_refused_by_name = refuses(
    (lambda: RayReadingService("auto"), TypeError, "num_workers"),  # type: ignore[arg-type]
    (lambda: RayReadingService(0), ValueError, "num_workers"),
    (lambda: RayReadingService(2, on_timeout="restart"), ValueError, "on_timeout='restart' needs a timeout"),
    (lambda: RayReadingService(2, ray_remote_args={"lifetime": 1}), ValueError, "must not contain 'lifetime'"),
)


def test_a_pipeline_that_cannot_be_pickled_is_named() -> None:
    pipe = IterableWrapper(range(4)).sharding_filter().map(lambda x: x)
    pipe.lock = threading.Lock()
    with DataLoader2(pipe, reading_service=remote()) as loader, pytest.raises(TypeError, match="'lock'"):
        next(iter(loader))
