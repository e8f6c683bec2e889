"""Snapshots that are larger than `snapshot_budget` are not sent, but restarts and states stay exact."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from typing import Any

import numpy as np
import pytest

from process_checks import nothing_is_left  # noqa: F401 - a fixture
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("often"),
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
]

ITEMS, BUDGET = 48, 100_000


def array(item: int) -> Any:
    return np.full(5000, item, "f8")


def holding(kind: str) -> Any:
    pipe: Any = IterableWrapper(range(ITEMS))
    if kind == "dispatched":
        return (
            pipe.map(array).shuffle(buffer_size=20).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        )
    pipe = pipe.sharding_filter().map(array)
    return pipe.in_memory_cache(size=100) if kind == "cache" else pipe.shuffle(buffer_size=20)


KINDS = ["shuffle", "cache", "dispatched"]


def loader_of(kind: str, budget: int | None = BUDGET, **options: Any) -> Any:
    service = MultiProcessingReadingService(2, snapshot_budget=budget, **options)
    loader = DataLoader2(holding(kind), reading_service=service)
    loader.seed(3)
    return loader


def numbers(items: Any) -> list[int]:
    return [int(item[0]) for item in items]


def snapshot_sizes(state: Any) -> list[int]:
    """Returns the sizes in bytes of the snapshots in a loader's state."""
    found = [len(state)] if isinstance(state, bytes) else []
    children = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return found + [size for child in children for size in snapshot_sizes(child)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_contains_no_snapshot_beyond_the_budget_and_resumes_exactly(kind: str) -> None:
    with loader_of(kind) as loader:
        expected = numbers(loader)
    with loader_of(kind) as loader:
        iterator = iter(loader)
        before = numbers(next(iterator) for _ in range(35))
        with pytest.warns(RuntimeWarning, match=r"the pipes of a worker hold \d+ MB"):
            state = loader.state_dict()
        del iterator
    assert max(snapshot_sizes(state)) <= BUDGET
    with loader_of(kind) as loader:
        loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert before + numbers(loader) == expected


@pytest.mark.parametrize("kind", ["shuffle", "dispatched"])
def test_states_contain_what_pipes_hold_after_a_state_was_requested(kind: str) -> None:
    with loader_of(kind) as loader:
        expected = numbers(loader)
    with loader_of(kind) as loader:
        iterator = iter(loader)
        next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.state_dict()
        before = numbers(next(iterator) for _ in range(35))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the size was already reported once
            state = loader.state_dict()
        del iterator
    assert max(snapshot_sizes(state)) > BUDGET
    with loader_of(kind) as loader:
        loader.load_state_dict(state)
        assert [expected[0], *before, *numbers(loader)] == expected


@pytest.mark.parametrize(("kind", "method"), [*((kind, "fork") for kind in KINDS), ("shuffle", "spawn")])
def test_a_restart_without_a_large_snapshot_repeats_the_items_exactly(kind: str, method: str) -> None:
    with loader_of(kind) as loader:
        expected = [numbers(loader), numbers(loader)]
    with loader_of(kind, on_worker_exit="restart", multiprocessing_context=method) as loader:
        for epoch in range(2):
            got = []
            for number, item in enumerate(loader):
                got.append(int(item[0]))
                if number == 30:
                    os.kill(loader.reading_service.engine_processes().pids[epoch], signal.SIGKILL)
            assert got == expected[epoch]
        assert loader.stats().restarts


def test_a_state_in_a_later_epoch_of_a_large_cache_resumes_exactly() -> None:
    with loader_of("cache") as loader:
        expected = [numbers(loader), numbers(loader)]
    with loader_of("cache") as loader:
        assert numbers(loader) == expected[0]
        iterator = iter(loader)
        before = numbers(next(iterator) for _ in range(20))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = loader.state_dict()
        del iterator
    with loader_of("cache") as loader:
        loader.load_state_dict(state)
        assert before + numbers(loader) == expected[1]


def test_a_state_between_two_epochs_neither_warns_nor_makes_workers_send_what_pipes_hold() -> None:
    with loader_of("shuffle") as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        loader.state_dict()
        list(loader)
        assert not loader.reading_service.engine_processes().stats.wants_large_snapshots()
        assert loader.reading_service.engine_processes().stats.oversized() > 0


def test_without_a_budget_each_state_contains_what_pipes_hold() -> None:
    with loader_of("shuffle", None) as loader:
        iterator = iter(loader)
        for _ in range(30):
            next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = loader.state_dict()
        del iterator
    assert max(snapshot_sizes(state)) > BUDGET


@pytest.mark.parametrize("budget", [-1, 1.5, "64"])
def test_a_budget_that_is_not_a_number_of_bytes_is_refused(budget: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="snapshot_budget"):
        MultiProcessingReadingService(2, snapshot_budget=budget)
