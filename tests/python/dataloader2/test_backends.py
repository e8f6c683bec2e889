"""Loaders behave alike with local workers, with workers on simulated machines, and with actors on two nodes of Ray."""

import functools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from backends import BACKENDS, WITH_CARRIERS, WORKERS, Carried, Spawned, on_two_nodes
from hosts import hosts_have_ended, read_here_and_there  # noqa: F401 - one is a fixture
from one_rank import Alone
from process_checks import has_exited, nothing_is_left  # noqa: F401 - one is a fixture
from ray_cluster import of_ray
from remote_pipelines import DISPATCHED, PIPELINES, array, double, failing, numbered, plain, spread, wide
from resuming import begun, continued, epochs_of, resumed, saved
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*A new process replaced it"),
    pytest.mark.filterwarnings("ignore:resuming from this state"),
    pytest.mark.filterwarnings("ignore:the main process holds .* of items, more than the memory budget"),
    *of_ray,
]

FEW = {"random", "arrays, dispatched"}
LONG = 900
with_carriers = pytest.mark.parametrize("backend", WITH_CARRIERS, indirect=True)


@pytest.fixture(scope="module")
def on_ray() -> Iterator[Spawned]:
    pytest.importorskip("ray", reason="Ray is not installed: PyPI may have no wheel of Ray for this Python")
    with on_two_nodes() as found:
        yield found


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Spawned:
    own = {"spawned processes": Spawned, "carriers": Carried}
    return own[request.param]() if request.param in own else request.getfixturevalue("on_ray")


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest, backend: Spawned) -> None:
    if not backend.is_slow:
        request.getfixturevalue("hosts_have_ended")


def local(workers: int = WORKERS, **options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(workers, "fork", **options)


def epochs(make: Any, service: Any, count: int = 2) -> list[list[Any]]:
    loader = begun(DataLoader2(make(), reading_service=service), seed=5)
    return [list(map(plain, epoch)) for epoch in epochs_of(loader, count)]


@functools.cache
def of_forked_workers(make: Any, count: int = 2) -> list[list[Any]]:
    return epochs(make, local(), count)


@pytest.mark.parametrize("made_of", [PIPELINES, DISPATCHED], ids=["own sources", "dispatched"])
def test_items_and_their_order_are_the_same_as_with_forked_workers(backend: Spawned, made_of: dict[str, Any]) -> None:
    for name, make in made_of.items():
        if backend.has_all or name in FEW:
            assert epochs(make, backend.service()) == of_forked_workers(make), name


@with_carriers
def test_out_of_order_each_dispatched_item_is_computed_once_in_one_process_of_this_machine(backend: Spawned) -> None:
    def make() -> Any:
        return spread(40, lambda pipe: pipe.map(lambda x: (os.getpid(), os.getppid()))).map(lambda x: (*x, os.getpid()))

    (items,) = epochs(make, backend.service(in_order=False), count=1)
    assert len(items) == 40
    assert {parent for _, parent, _ in items} == {os.getpid()}
    assert (len({maker for maker, _, _ in items}), len({worker for _, _, worker in items})) == (1, WORKERS)


@with_carriers
def test_ranks_have_workers_each(backend: Spawned) -> None:
    def service(workers: Any) -> SequentialReadingService:
        return SequentialReadingService(DistributedReadingService(process_group=Alone()), workers)

    make = PIPELINES["numbers"]
    assert epochs(make, service(backend.service()), 1) == epochs(make, service(local()), 1)


@with_carriers
@pytest.mark.parametrize("make", [PIPELINES["random"], DISPATCHED["random, dispatched"]], ids=["own", "dispatched"])
def test_a_loader_resumes_from_random_moments_in_this_and_other_processes(backend: Spawned, make: Any) -> None:
    (whole,) = of_forked_workers(make, 1)
    least, most = (30, 60) if backend.is_slow else (10, 60)
    assert read_here_and_there(make, len(whole), [backend.service, local], random.Random(3), least, most) == whole


@with_carriers
def test_a_state_resumes_exactly_with_other_numbers_of_workers(backend: Spawned) -> None:
    make = PIPELINES["random"]
    _, state, rest = continued(begun(DataLoader2(make(), reading_service=backend.service(2))), 17)
    with DataLoader2(make(), reading_service=local(3)) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        head = [next(iterator) for _ in range(5)]
        state = saved(loader)
        assert head + list(iterator) == rest
        assert len(list(loader)) == 100
        assert len(loader.worker_pids()) == 3
    [tail] = resumed(DataLoader2(make(), reading_service=backend.service(1)), state)
    assert head + tail == rest


@functools.cache
def _long(dispatches: bool, function: Any) -> Any:
    def make() -> Any:
        pipe = spread(LONG, lambda pipe: pipe.map(double)) if dispatches else numbered(LONG)
        return pipe.map(function)

    return make


@pytest.mark.parametrize("dispatches", [False, True], ids=["own sources", "dispatched"])
def test_no_item_is_lost_or_repeated_whichever_process_exits(backend: Spawned, dispatches: bool) -> None:
    victims = [victim for victim in backend.victims if dispatches or victim != "dispatching"]
    rng, make = random.Random(dispatches), _long(dispatches, wide)
    wanted = of_forked_workers(make)
    service = backend.service(worker_prefetch_cnt=100, on_worker_exit="restart")
    with begun(DataLoader2(make(), reading_service=service), seed=5) as loader:
        for epoch in wanted:
            got: list[Any] = []
            kill_at = set(rng.sample(range(10, LONG - 100), 2))
            pause_at = set() if dispatches else {at + rng.randrange(3) for at in kill_at}
            for item in loader:
                got.append(item)
                if len(got) in pause_at:
                    loader.reading_service._pause()
                    loader.reading_service._resume()
                if len(got) in kill_at:
                    backend.kill(loader, rng.choice(victims), rng)
            assert got == epoch


@with_carriers
def test_an_error_of_a_function_is_raised_after_the_earlier_items_and_names_the_function(backend: Spawned) -> None:
    pipe = IterableWrapper(range(20)).sharding_filter().map(failing)
    with DataLoader2(pipe, reading_service=backend.service()) as loader:
        got = []
        with pytest.raises(LookupError, match="nothing at 7") as caught:
            got.extend(loader)
    assert got == list(range(7))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "in failing" in text
    assert "worker process 1" in text


@with_carriers
def test_an_error_in_the_dispatching_process_is_raised_after_the_earlier_items(backend: Spawned) -> None:
    with DataLoader2(
        spread(20, lambda pipe: pipe.map(failing), shuffles=False).map(double), reading_service=backend.service()
    ) as loader:
        got = []
        with pytest.raises(LookupError, match="nothing at 7"):
            got.extend(loader)
    assert got == list(range(0, 14, 2))


@with_carriers
def test_an_abandoned_epoch_does_not_delay_the_next_one(backend: Spawned) -> None:
    def taken(service: Any) -> list[Any]:
        with DataLoader2(numbered(3000).map(array), reading_service=service) as loader:
            loader.seed(1)
            parts = []
            for count in (5, 1, 40):
                iterator = iter(loader)
                parts.append([int(next(iterator)[0]) for _ in range(count)])
            return parts

    assert taken(backend.service()) == taken(local())


@with_carriers
def test_no_process_outlives_a_dropped_loader(backend: Spawned) -> None:
    pipe = IterableWrapper(range(4000)).sharding_filter().map(lambda x: (os.getpid(), os.getppid()))
    loader = DataLoader2(pipe, reading_service=backend.service())
    iterator = iter(loader)
    pids = {pid for _ in range(WORKERS) for pid in next(iterator)} - {os.getpid()}
    del loader, iterator
    wait_for(lambda: all(map(has_exited, pids)))
