"""ParallelMapper with processes sends many small items in one message.

The results are the same as with one item in each message.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="nodes need PyTorch")

from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from torchdata.dataloader2.error import WorkerExitedError  # noqa: E402
from torchdata.nodes import BaseNode, IterableWrapper, Loader, ParallelMapper, _processes  # noqa: E402

MANY = 1500
"""The number of items after which the node reads many items ahead."""


def mapper(source: Any, function: Any, workers: int = 1, **options: Any) -> ParallelMapper[Any]:
    source = source if isinstance(source, BaseNode) else IterableWrapper(source)
    return ParallelMapper(source, function, workers, method="process", multiprocessing_context="fork", **options)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list, to which each message appends the number of its items. The clock is stopped, so that each call
    seems to take no time.
    """
    counts: list[int] = []
    send = _processes.MapWorker._send

    def noting(self: Any, items: list[Any], at: int) -> None:
        counts.append(len(items) - at)
        send(self, items, at)

    monkeypatch.setattr(_processes.MapWorker, "_send", noting)
    monkeypatch.setattr(_processes, "monotonic", lambda: 0.0)
    return counts


class Drawn(BaseNode[Any]):
    """A node that yields consecutive numbers across epochs, so that the numbers show how far the node was read."""

    def __init__(self, size: int, kind: Any = int) -> None:
        super().__init__()
        self.size, self.kind, self.drawn = size, kind, 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.left = self.size
        if initial_state is not None:
            self.drawn, self.left = initial_state["drawn"], initial_state["left"]

    def next(self) -> Any:
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.drawn += 1
        return self.kind(self.drawn)

    def get_state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "left": self.left}


def test_small_items_go_together_and_large_or_mutable_ones_do_not(together: list[int]) -> None:
    node = mapper(range(2 * MANY), abs)
    assert list(node) == list(range(2 * MANY))
    assert max(together) > 8
    node.shutdown()
    together.clear()
    one = [1]
    node = mapper([one] * MANY, lambda item: item.append(2) or item)
    assert list(node) == [[1, 2]] * MANY
    assert set(together) == {1}
    node.shutdown()


def test_no_item_waits_for_others_to_go_with() -> None:
    came = threading.Semaphore(0)

    class Hesitant(Drawn):
        def next(self) -> Any:
            if self.drawn in (5, 6, MANY, MANY + 3):
                assert came.acquire(timeout=120)
            return super().next()

    node = mapper(Hesitant(MANY + 10), abs, 2)
    node.reset()
    for number in range(1, MANY + 11):
        assert next(node) == number
        if number in (5, 6, MANY, MANY + 3):
            came.release()
    node.shutdown()


def test_results_come_while_the_process_is_at_a_later_item_of_the_message() -> None:
    came = multiprocessing.get_context("fork").Semaphore(0)
    slow = {2, MANY, MANY + 1, MANY + 40}

    def waits(number: int) -> int:
        assert number not in slow or came.acquire(timeout=120)
        return number

    node = mapper(range(MANY + 100), waits)
    node.reset()
    for number in range(MANY + 100):
        if number in slow:
            came.release()
        assert next(node) == number
    node.shutdown()


def refuses(number: int) -> Any:
    raise LookupError(f"there is no {number}")


class Unloadable:
    """An object that can be pickled, but raises an error when it is unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return refuses, (self.number,)


def test_a_result_that_cannot_be_loaded_raises_an_error_at_its_position() -> None:
    node = mapper(range(MANY + 200), lambda number: Unloadable(number) if number % 50 == 7 else number, 2)
    node.reset()
    for number in range(MANY + 200):
        if number % 50 == 7:
            with pytest.raises(LookupError, match=f"there is no {number}$"):
                next(node)
        else:
            assert next(node) == number
    node.shutdown()


def test_no_result_is_lost_with_a_process_that_exits(together: list[int]) -> None:
    def dies(number: int) -> int:
        if number == MANY:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    node = mapper(range(2 * MANY), dies)
    node.reset()
    assert [next(node) for _ in range(MANY)] == list(range(MANY))
    with pytest.raises(WorkerExitedError):
        next(node)
    with pytest.raises(WorkerExitedError):
        list(node)
    assert max(together) > 8
    node.shutdown()


@pytest.mark.filterwarnings("ignore:.*Another process:RuntimeWarning")
def test_the_third_worker_exit_is_raised_at_its_item_among_others() -> None:
    def dies(number: int) -> int:
        if number == MANY + 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    node = mapper(range(MANY + 50), dies, on_worker_exit="restart")
    node.reset()
    assert [next(node) for _ in range(MANY + 5)] == list(range(MANY + 5))
    with pytest.raises(WorkerExitedError) as caught:
        next(node)
    assert caught.value.item == MANY + 5
    assert list(node) == list(range(MANY + 6, MANY + 50))
    node.shutdown()


@pytest.mark.parametrize(
    ("options", "kind", "most"), [({}, lambda number: [number], 4), ({"max_concurrent": 1}, int, 1)]
)
def test_read_ahead_is_bounded_by_the_size_of_items_and_by_its_argument(options: Any, kind: Any, most: int) -> None:
    source = Drawn(400, kind)
    node = mapper(source, lambda item: item, 2, **options)
    node.reset()
    for number in range(400):
        next(node)
        assert source.drawn <= number + 1 + most
    node.shutdown()


class Plan:
    """The plan of a run, drawn from a seed. The plan determines which epochs are left early, and which items are small.

    Args:
        seed: the seed that determines the run.
        deaths: whether processes exit.
    """

    def __init__(self, seed: int, deaths: bool) -> None:
        chance = random.Random(seed)
        self.size = chance.choice([50, 400, 1200])
        self.ends = [chance.randint(1, self.size) for _ in range(3)]
        self.large = {chance.randint(1, 3 * self.size) for _ in range(chance.choice([0, 1, 30]))}
        self.failing = {chance.randint(1, 3 * self.size) for _ in range(chance.choice([0, 1, 9]))}
        self.dying = {chance.randint(1, self.size) for _ in range(3 * deaths)}
        self.workers = chance.choice([1, 2, 3])
        self.options = {
            "in_order": chance.random() < 0.8,
            "snapshot_frequency": chance.choice([1, 1, 5, 100]),
            "on_worker_exit": "restart",
        }
        self.stop = chance.randrange(2), chance.random()
        self.long = chance.choice([0.0, 0.0005, 0.01])
        #: The number of processes that have exited, in memory that all processes share.
        self.died = multiprocessing.get_context("fork").Array("b", 3 * self.size + 1)

    def item(self, number: int) -> Any:
        return [number] if number in self.large else number

    def call(self, item: Any) -> Any:
        number = item[0] if isinstance(item, list) else item
        if number in self.dying and not self.died[number]:
            self.died[number] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        if number in self.failing:
            raise KeyError(number)
        return -number

    def loader(self) -> Loader[Any]:
        return Loader(mapper(Drawn(self.size, self.item), self.call, self.workers, **self.options))

    def part(self, iterator: Any, count: int) -> list[Any]:
        """Returns the next `count` results or errors, or fewer if the epoch ends."""
        found: list[Any] = []
        while len(found) < count:
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except KeyError as error:
                found.append(f"error {str(error).split()[-1]}")
        return found if self.options["in_order"] else sorted(found, key=str)


@pytest.mark.filterwarnings("ignore:.*Another process:RuntimeWarning")
@pytest.mark.parametrize("deaths", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 112])
def test_random_runs_resume_from_any_position_as_if_never_stopped(
    seed: int, deaths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(seed, deaths)
    monkeypatch.setattr(_processes, "_LONG", plan.long)
    loader = plan.loader()
    epochs, (stop, share) = [], plan.stop
    # Epochs without a fixed order are read to their ends, because their first items differ between runs.
    ends = plan.ends if plan.options["in_order"] else [plan.size + 1] * 3
    for epoch, end in enumerate(ends):
        iterator = iter(loader)
        before = int(share * end)
        found = plan.part(iterator, before)
        if epoch == stop:
            state = pickle.dumps(loader.state_dict())
        epochs.append((found, plan.part(iterator, end - before)))
    loader.root.shutdown()
    first, rest = epochs[stop]
    if plan.options["in_order"]:
        whole = [f"error {number}" if number in plan.failing else -number for number in range(1, plan.size + 1)]
        assert [*epochs[0][0], *epochs[0][1]] == whole[: ends[0]]
    again = plan.loader()
    again.load_state_dict(pickle.loads(state))
    iterator = iter(again)
    assert plan.part(iterator, len(rest)) == rest
    if len(first) + len(rest) <= plan.size and ends[stop] > plan.size:
        assert plan.part(iterator, 1) == []
    for end, (before, behind) in zip(ends[stop + 1 :], epochs[stop + 1 :], strict=True):
        assert sorted(plan.part(iter(again), end), key=str) == sorted([*before, *behind], key=str)
    again.root.shutdown()


@pytest.mark.parametrize("wrong", [5, [1], [1, -1], ["1", 2], [1, 2**70]])
def test_a_damaged_growth_is_refused(wrong: Any) -> None:
    node = mapper(range(100), abs)
    node.reset()
    assert [next(node) for _ in range(50)] == list(range(50))
    state = node.state_dict()
    inner = state["it_state"]
    assert inner["read_ahead"][0] == 50
    with pytest.raises(ValueError, match="read_ahead"):
        node.reset({**state, "it_state": {**inner, "read_ahead": wrong}})
    node.reset({**state, "it_state": {key: value for key, value in inner.items() if key != "read_ahead"}})
    assert next(node) == 50
    node.shutdown()
