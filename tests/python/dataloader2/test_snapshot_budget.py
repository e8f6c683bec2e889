"""Workers do not send large snapshots or the items of large caches. Restarts and states stay exact."""

import functools
import itertools
import os
import random
import signal
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from process_checks import nothing_is_left  # noqa: F401 - a fixture
from resuming import begun, continued, resumed, saved, stopped
from torchdata._plain_pickles import seal, unseal
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.state.layout import opened, sealed
from torchdata.dataloader2.state.position import Content, Filled
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import save_generators

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("often"),
    pytest.mark.filterwarnings("ignore:.*A new process replaced it"),
    pytest.mark.filterwarnings("ignore:the pipes of a worker hold"),
]

ITEMS, EPOCHS, BUDGET = 8, 3, 100_000
POSITIONS = range(ITEMS + 1)


def array(item: int) -> Any:
    return np.full(5000, item, "f8")


def drawing(item: Any) -> Any:
    return array(item) + random.random() + np.random.random()


def added(item: Any) -> Any:
    return item + random.random() + np.random.random()


def changed(item: Any) -> Any:
    item[-1] += 1
    return item


def unrepeatable(item: int) -> Any:
    return array(item) + os.getpid()


def named(item: int) -> dict[str, Any]:
    return {"array": array(item), "name": f"{item} of process {os.getpid()}"}


def mapped(function: Any) -> Any:
    return IterableWrapper(range(ITEMS)).shuffle().sharding_filter().map(function)


CACHES: dict[str, Any] = {
    "last": lambda: mapped(array).in_memory_cache(),
    "dropped": lambda: mapped(array).in_memory_cache(size=0.09),
    "random": lambda: mapped(drawing).in_memory_cache().map(added).shuffle(buffer_size=2),
    "changed": lambda: mapped(array).in_memory_cache().map(changed),
    "threads": lambda: mapped(array).prefetch(2).in_memory_cache().prefetch(2),
    "two": lambda: mapped(array).in_memory_cache().map(added).in_memory_cache(),
    "unrepeatable": lambda: mapped(unrepeatable).in_memory_cache(),
    "unrepeatable names": lambda: mapped(named).in_memory_cache(),
}
KINDS = [*CACHES][:6]


def loader_of(kind: str, workers: int, budget: int | None = BUDGET, **options: Any) -> Any:
    service: Any = InProcessReadingService()
    if workers:
        service = MultiProcessingReadingService(workers, snapshot_budget=budget, **options)
    return begun(DataLoader2(CACHES[kind](), reading_service=service))


def contents(items: Any) -> list[Any]:
    return [(float(item[0]), float(item[-1]), float(item.sum())) for item in items]


def snapshot_sizes(state: Any) -> list[int]:
    found = [len(state)] if isinstance(state, bytes) else []
    children = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return found + [size for child in children for size in snapshot_sizes(child)]


@functools.cache
def expected(kind: str, workers: int) -> list[list[Any]]:
    with loader_of(kind, workers, None) as loader:
        return [contents(loader) for _ in range(EPOCHS + 1)]


def size_in_main(loader: Any) -> int:
    found = loader.reading_service.engine_processes().collector.positions()
    return sum(len(snapshot[3]) for _, snapshot in found[0] if snapshot is not None)


@pytest.mark.parametrize(("kind", "workers"), [*zip(KINDS, itertools.cycle([1, 2]), strict=False)])
def test_a_worker_that_is_killed_at_any_position_of_any_epoch_is_replaced_exactly(kind: str, workers: int) -> None:
    for position in POSITIONS[KINDS.index(kind) % 4 :: 4]:
        with loader_of(kind, workers, on_worker_exit="restart") as loader:
            for epoch in range(EPOCHS):
                got = []
                iterator = iter(loader)
                for number in POSITIONS:
                    if number == position:
                        os.kill(loader.reading_service.engine_processes().pids[epoch % workers], signal.SIGKILL)
                    got += contents(itertools.islice(iterator, 1))
                assert got == expected(kind, workers)[epoch], (position, epoch)


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, 0) for kind in KINDS), *zip(KINDS, itertools.cycle([2, 1]), strict=False)]
)
def test_a_state_of_any_epoch_resumes_exactly(kind: str, workers: int) -> None:
    saving = max(workers, 1)
    states = {}
    with loader_of(kind, saving) as loader:
        for epoch in range(EPOCHS):
            iterator = iter(loader)
            for position in POSITIONS:
                if position in (KINDS.index(kind), ITEMS):
                    states[epoch, position] = saved(loader)
                next(iterator, None)
    whole = expected(kind, saving)
    for (epoch, position), state in states.items():
        with loader_of(kind, workers) as loader:
            loader.load_state_dict(state)
            assert contents(loader) == whole[epoch][position:], (epoch, position)
            assert contents(loader) == whole[epoch + 1], (epoch, position)


@pytest.mark.parametrize(("kind", "workers"), [("last", 2), ("dropped", 1), ("random", 2), ("threads", 1), ("two", 2)])
def test_neither_the_main_process_nor_a_state_contains_the_cached_items(kind: str, workers: int) -> None:
    with loader_of(kind, workers) as loader, warnings.catch_warnings():
        for epoch in range(EPOCHS):
            warnings.simplefilter("error" if epoch and kind == "last" else "ignore")
            iterator = iter(loader)
            for number in range(ITEMS):
                next(iterator)
                assert size_in_main(loader) <= BUDGET, number
                assert sum(snapshot_sizes(loader.state_dict())) <= BUDGET, number
            assert next(iterator, None) is None


def test_cached_items_that_were_changed_are_part_of_states_which_report_their_size() -> None:
    with loader_of("changed", 1) as loader:
        list(loader)
        next(iter(loader))
        assert size_in_main(loader) <= BUDGET
        list(loader)
        iterator = iter(loader)
        next(iterator)
        assert size_in_main(loader) > BUDGET
        with pytest.warns(RuntimeWarning, match=r"the pipes of a worker hold \d+ MB"):
            assert sum(snapshot_sizes(loader.state_dict())) > BUDGET
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.state_dict()


def test_without_a_budget_states_contain_the_cached_items() -> None:
    loader = loader_of("unrepeatable", 1, None)
    first = contents(loader)
    _, later = stopped(loader, 1)
    assert sum(snapshot_sizes(later)) > BUDGET
    assert contents(resumed(loader_of("unrepeatable", 1, None), later)[0]) == first[1:]


def state_of(kind: str, position: int) -> dict[str, Any]:
    loader = loader_of(kind, 1)
    list(loader)
    return stopped(loader, position)[1]


@pytest.mark.parametrize("position", [0, 3])
def test_recomputed_items_that_differ_from_the_cached_items_are_an_error_with_a_remedy(position: int) -> None:
    state = state_of("unrepeatable names", position)
    with pytest.raises(RuntimeError, match="its cache were recomputed.*snapshot_budget"):
        resumed(loader_of("unrepeatable names", 1), state)
    [rest] = resumed(loader_of("unrepeatable names", 1), state, strict=False)
    assert len(rest) == ITEMS - position


def test_recomputed_arrays_that_differ_from_the_cached_arrays_cause_a_warning(capfd: Any) -> None:
    state = state_of("unrepeatable", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # The worker writes its warning to standard error.
        warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)
        assert len(resumed(loader_of("unrepeatable", 1), state)[0]) == ITEMS
    assert "contain other numbers than the cached items" in capfd.readouterr().err


GENERATORS = save_generators()
SEEDS = SeedGenerator(3).exported()
START = sealed(Content([], GENERATORS))


@pytest.mark.parametrize(
    "filled",
    [
        Filled(b"no seeds"),
        Filled(SEEDS, b"no snapshot"),
        Filled(SEEDS, None, "no checksum"),  # type: ignore[arg-type]
        Filled(SEEDS, sealed(Content([], GENERATORS, filled=Filled(SEEDS, START)))),
        (SEEDS, None),
        7,
    ],
)
def test_a_snapshot_with_a_wrong_description_of_the_filled_cache_is_refused(filled: Any) -> None:
    snapshot = unseal(sealed(Content([], GENERATORS, filled=Filled(SEEDS, START, 5))), "it")
    assert opened(seal(snapshot), "it").filled == Filled(SEEDS, START, 5)
    snapshot["filled"] = tuple(filled) if isinstance(filled, tuple) else filled
    with pytest.raises(ValueError, match=r"it|seed"):
        opened(seal(snapshot), "it")


def long_loader(**options: Any) -> Any:
    """Returns a loader of a long epoch, so that its workers are still running when the first item is read."""
    pipe: Any = IterableWrapper(range(40)).sharding_filter().map(drawing).in_memory_cache().map(added)
    options |= {"worker_prefetch_cnt": 1, "main_prefetch_cnt": 1, "snapshot_budget": BUDGET}
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, **options)))


def test_a_cache_that_a_later_epoch_fills_is_recomputed_exactly() -> None:
    with long_loader() as loader:
        next(iter(loader))
        expected = [contents(loader) for _ in range(3)]
    with long_loader(on_worker_exit="restart") as loader:
        next(iter(loader))
        for epoch in range(3):
            got = []
            for number, item in enumerate(loader):
                got += contents([item])
                if number == 15:
                    os.kill(loader.reading_service.engine_processes().pids[epoch % 2], signal.SIGKILL)
                if epoch:
                    assert size_in_main(loader) <= BUDGET
            assert got == expected[epoch]
        before, state, after = continued(loader, 7)
    assert sum(snapshot_sizes(state)) <= BUDGET
    assert contents(resumed(long_loader(), state)[0]) == contents(after)
    assert len(before) + len(after) == 40


def held_loader(kind: str, **options: Any) -> Any:
    pipe: Any = IterableWrapper(range(48))
    if kind == "dispatched":
        pipe = pipe.map(array).shuffle(buffer_size=20).sharding_round_robin_dispatch()
    else:
        pipe = pipe.sharding_filter().map(array).shuffle(buffer_size=20)
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, snapshot_budget=BUDGET, **options)))


def numbers(items: Any) -> list[int]:
    return [int(item[0]) for item in items]


@pytest.mark.parametrize("kind", ["shuffle", "dispatched"])
def test_a_state_contains_no_snapshot_beyond_the_budget_and_resumes_exactly(kind: str) -> None:
    with held_loader(kind) as loader:
        expected = numbers(loader)
    with pytest.warns(RuntimeWarning, match=r"the pipes of a worker hold \d+ MB"):
        before, state = stopped(held_loader(kind), 35)
    assert max(snapshot_sizes(state)) <= BUDGET
    assert numbers(before + resumed(held_loader(kind), state)[0]) == expected


@pytest.mark.parametrize("kind", ["shuffle", "dispatched"])
def test_states_contain_what_pipes_hold_after_a_state_was_requested(kind: str) -> None:
    with held_loader(kind) as loader:
        expected = numbers(loader)
    with held_loader(kind) as loader:
        iterator = iter(loader)
        next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.state_dict()
        before = numbers(next(iterator) for _ in range(35))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = loader.state_dict()
    assert max(snapshot_sizes(state)) > BUDGET
    assert [expected[0], *before, *numbers(resumed(held_loader(kind), state)[0])] == expected


@pytest.mark.parametrize(("kind", "method"), [("shuffle", "spawn"), ("dispatched", "fork")])
def test_a_restart_without_a_large_snapshot_repeats_the_items_exactly(kind: str, method: str) -> None:
    with held_loader(kind) as loader:
        expected = [numbers(loader), numbers(loader)]
    with held_loader(kind, on_worker_exit="restart", multiprocessing_context=method) as loader:
        for epoch in range(2):
            got = []
            for number, item in enumerate(loader):
                got.append(int(item[0]))
                if number == 30:
                    os.kill(loader.reading_service.engine_processes().pids[epoch], signal.SIGKILL)
            assert got == expected[epoch]
        assert loader.stats().restarts


def test_a_state_between_two_epochs_neither_warns_nor_makes_workers_send_what_pipes_hold() -> None:
    with held_loader("shuffle") as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        loader.state_dict()
        list(loader)
        assert not loader.reading_service.engine_processes().stats.wants_large_snapshots()
        assert loader.reading_service.engine_processes().stats.oversized() > 0


@pytest.mark.parametrize("budget", [-1, 1.5, "64"])
def test_a_budget_that_is_not_a_number_of_bytes_is_refused(budget: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="snapshot_budget"):
        MultiProcessingReadingService(2, snapshot_budget=budget)
