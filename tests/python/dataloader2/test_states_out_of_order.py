"""A loader without workers can finish an epoch that a loader with workers and in_order=False began."""

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from process_checks import nothing_is_left  # noqa: F401
from random_graphs.users import unpinned
from resuming import begun, continued, resumed, stopped
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone

ITEMS = 40
ALL = Counter(range(ITEMS))
first_shard_may_run = multiprocessing.get_context("fork").Event()


@pytest.fixture(autouse=True)
def running() -> None:
    first_shard_may_run.set()


calls: list[Callable[[], object]] = []


def waiting(item: int) -> int:
    if calls:
        calls.pop()()
    if item % 2 == 0:
        first_shard_may_run.wait(60)
    return item


def twice(item: int) -> int:
    return 2 * item


def pipe(function: Callable[[int], int] = waiting) -> Any:
    return IterableWrapper(range(ITEMS)).sharding_filter().map(function)


def loader(workers: int, state: Any = None, datapipe: Any = None) -> DataLoader2[Any]:
    service = MultiProcessingReadingService(workers, "fork", in_order=False) if workers else InProcessReadingService()
    return begun(DataLoader2(pipe() if datapipe is None else datapipe, reading_service=service), state)


def first(workers: int, count: int, state: Any = None, ago: int = 0) -> tuple[list[Any], Any]:
    with loader(workers, state) as reading:
        got = list(islice(reading, count))
        return got[: count - ago], reading.state_dict(items_ago=ago)


def rest_out_of_order(state: Any) -> list[Any]:
    first_shard_may_run.clear()
    with loader(2, state) as reading:
        iterator = iter(reading)
        got = [next(iterator)]
        first_shard_may_run.set()
        return got + list(iterator)


@pytest.mark.parametrize("steps", [[(5, 1)], [(5, 5)], [(5, 2), (4, 1)]])
def test_earlier_states_without_workers_resume_in_any_order(steps: list[tuple[int, int]]) -> None:
    """In each step, the test reads `count` items, and saves the loader's state from before the last `ago` items."""
    got, state = first(2, 7)
    for count, ago in steps:
        more, state = first(0, count, state, ago)
        got += more
    assert Counter(got + rest_out_of_order(state)) == ALL


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_state_saved_while_an_item_is_computed_or_at_ctrl_c_resumes_with_this_item(is_interrupted: bool) -> None:
    begin, state = first(2, 7)
    saved: list[Any] = []
    with loader(0, state) as reading:
        iterator = iter(reading)
        got = [next(iterator), next(iterator)]
        call = interrupt if is_interrupted else lambda: saved.append(reading.state_dict())
        calls.append(call)
        with contextlib.suppress(KeyboardInterrupt):
            next(iterator)
        assert not calls
        saved = saved or [reading.state_dict()]
    assert Counter(begin + got + rest_out_of_order(saved[0])) == ALL


@pytest.mark.parametrize("ago", [0, 1])
def test_states_saved_after_reading_on_after_ctrl_c_resume_in_any_order_and_lose_no_item(ago: int) -> None:
    begin, state = first(2, 7)
    with loader(0, state) as reading:
        iterator = iter(reading)
        got = [next(iterator), next(iterator)]
        calls.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        got += [next(iterator), next(iterator)]
        state = reading.state_dict(items_ago=ago)
        whole = Counter(begin + got + list(iterator))
    assert Counter(begin + got[: len(got) - ago] + rest_out_of_order(state)) == whole
    assert whole == ALL


@pytest.mark.parametrize("ago", [0, 1])
def test_a_state_from_which_batches_in_the_main_process_would_differ_is_refused(ago: int) -> None:
    batches = pipe().pin_memory(pin_memory_fn=unpinned).batch(2)
    with loader(2, datapipe=batches) as reading:
        got = list(islice(reading, 5))
        if ago:
            with pytest.raises(RuntimeError, match="save the state between two items, without items_ago"):
                reading.state_dict(items_ago=ago)
            return
        state = reading.state_dict()
    with loader(2, state, batches) as resumed:
        assert Counter(item for batch in [*got, *resumed] for item in batch) == ALL


def test_a_state_that_replays_batches_is_loaded_in_order_only() -> None:
    batches = pipe().pin_memory(pin_memory_fn=unpinned).batch(2)
    with loader(2, datapipe=batches) as reading:
        begin = list(islice(reading, 3))
        state = reading.state_dict()
    with loader(0, state, batches) as reading:
        got = list(islice(reading, 3))[:2]
        state = reading.state_dict(items_ago=1)
    with loader(2, datapipe=batches) as refusing:
        refusing.load_state_dict(state)
        with pytest.raises(ValueError, match="load it with in_order=True, or with at most 1 worker"):
            next(iter(refusing))
    with loader(1, state, batches) as resumed:
        assert Counter(item for batch in [*begin, *got, *resumed] for item in batch) == ALL


@pytest.mark.parametrize("dispatches", [False, True])
def test_a_state_saved_after_a_load_that_compares_nothing_is_loaded_with_comparing(dispatches: bool) -> None:
    def build(function: Callable[[int], int]) -> DataLoader2[Any]:
        source: Any = IterableWrapper(range(ITEMS)).map(function)
        dispatched = source.sharding_round_robin_dispatch() if dispatches else source.sharding_filter()
        return DataLoader2(dispatched, reading_service=MultiProcessingReadingService(2, "fork"))

    got, state = stopped(build(waiting), 9)
    changed = build(twice)
    changed.load_state_dict(state, strict=False)
    then, state, rest = continued(changed, 5)
    assert [*got, *then, *rest] == [*range(9), *range(18, 2 * ITEMS, 2)]
    assert resumed(build(twice), state) == [rest]
