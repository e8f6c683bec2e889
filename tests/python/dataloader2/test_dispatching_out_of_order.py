"""With in_order=False, a dispatching process still distributes items round-robin, and states and restarts are exact."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from resuming import begun, resumed, stopped
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.services.program import WorkerInfo
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.usefixtures("often")
Build = Callable[[Any], Any]

COUNT = 120
own = -1


def note(datapipe: Any, info: WorkerInfo) -> Any:
    global own
    own = info.worker_id
    return datapipe


def uneven(item: int) -> int:
    if own == 0:
        time.sleep(0.001)
    return item


BUILDS: dict[str, Build] = {
    "plain": lambda pipe: pipe.map(uneven),
    "batched": lambda pipe: pipe.map(uneven).batch(3),
    "cycled": lambda pipe: pipe.map(uneven).cycle(2),
    "filtered": lambda pipe: pipe.map(uneven).filter(lambda item: item % 7 < 2),
}


def loader(build: Build = BUILDS["plain"], workers: int = 3, count: int = COUNT, **options: Any) -> DataLoader2[Any]:
    options = {"in_order": False, "worker_init_fn": note, "worker_prefetch_cnt": 2, "main_prefetch_cnt": 0, **options}
    pipe = build(IterableWrapper(range(count)).shuffle().sharding_round_robin_dispatch())
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork", **options)))


def elements(items: list[Any]) -> Counter[int]:
    return Counter(element for item in items for element in (item if isinstance(item, list) else [item]))


def expected(build: Build) -> Counter[int]:
    return elements(list(build(IterableWrapper(range(COUNT)))))


def test_each_worker_gets_the_same_items_in_any_order_of_delivery() -> None:
    def labelled(pipe: Any) -> Any:
        return pipe.map(uneven).map(lambda item: (own, item))

    with loader(labelled, in_order=True) as strict, loader(labelled) as free:
        dispatched = list(strict)
        assert [worker for worker, _ in dispatched] == [number % 3 for number in range(COUNT)]
        assert sorted(free) == sorted(dispatched)


@pytest.mark.parametrize(("build", "workers"), [*zip(BUILDS.values(), [4, 2, 3, 1], strict=True)])
def test_a_state_of_any_moment_resumes_with_the_remaining_items(build: Build, workers: int) -> None:
    states: list[tuple[int, Any]] = []
    with loader(build, workers) as whole:
        got = []
        for item in whole:
            if len(got) % 23 == 5:
                states.append((len(got), whole.state_dict(items_ago=1)))
            got.append(item)
    assert elements(got) == expected(build)
    for at, state in (states[0], states[-1]):
        some, second = stopped(begun(loader(build, workers), state), min(4, len(got) - at))
        rest, following = resumed(loader(build, workers), second, 2)
        assert elements([*got[:at], *some, *rest]) == expected(build), at
        assert elements(following) == expected(build)


def test_a_state_of_a_later_epoch_of_a_graph_with_lasting_state_resumes_with_the_remaining_items() -> None:
    def made() -> DataLoader2[Any]:
        pipe = IterableWrapper(range(60)).in_memory_cache().sharding_round_robin_dispatch().map(uneven)
        service = MultiProcessingReadingService(3, "fork", in_order=False, worker_init_fn=note)
        return DataLoader2(pipe, reading_service=service)

    whole = made()
    assert sorted(whole) == list(range(60))
    got, state = stopped(whole, 25)
    assert sorted([*got, *resumed(made(), state)[0]]) == list(range(60))


def read(killed: DataLoader2[Any], child: int, kills: tuple[int, ...]) -> list[Any]:
    got: list[Any] = []
    for item in killed:
        got.append(item)
        if len(got) in kills:
            os.kill(killed.reading_service._children.pids[child], signal.SIGKILL)  # type: ignore[union-attr]
    return got


@pytest.mark.parametrize(("build", "child"), [*zip(BUILDS.values(), [0, -1, 1], strict=False)])
def test_nothing_is_lost_or_doubled_when_processes_exit(build: Build, child: int) -> None:
    with loader(build, on_worker_exit="restart") as killed, pytest.warns(RuntimeWarning, match="process replaced it"):
        got = read(killed, child, (10, 35))
    assert elements(got) == expected(build)


@pytest.mark.parametrize("options", [{"workers": 5}, {"workers": 2, "in_order": True}])
def test_a_state_resumes_with_another_number_of_workers_in_order(options: dict[str, Any]) -> None:
    got, state = stopped(loader(), 30)
    rest, following = resumed(loader(**options), state, 2)
    assert elements([*got, *rest]) == expected(BUILDS["plain"])
    assert sorted(following) == list(range(COUNT))


def test_a_state_saved_in_order_resumes_out_of_order() -> None:
    got, state = stopped(loader(in_order=True), 30)
    more, second = stopped(begun(loader(), state), 30)
    rest, following = resumed(loader(), second, 2)
    assert elements([*got, *more, *rest]) == expected(BUILDS["plain"])
    assert sorted(following) == list(range(COUNT))
