"""ParallelMapper with processes sends many small items in one message."""

import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from exiting import Exiting
from process_checks import ExitsAt, nothing_is_left  # noqa: F401 - a fixture for all tests here
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.nodes import BaseNode, IterableWrapper, Loader, ParallelMapper, _processes

MANY = 1500
"""The number of items after which the node reads many items ahead."""


def mapper(source: Any, function: Any, workers: int = 1, **options: Any) -> ParallelMapper[Any]:
    source = source if isinstance(source, BaseNode) else IterableWrapper(source)
    return ParallelMapper(source, function, workers, method="process", multiprocessing_context="fork", **options)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    send = _processes.MapWorker._send

    def noting(self: Any, items: list[Any], at: int) -> None:
        counts.append(len(items) - at)
        send(self, items, at)

    monkeypatch.setattr(_processes.MapWorker, "_send", noting)
    monkeypatch.setattr(_processes, "monotonic", lambda: 0.0)
    return counts


class Drawn(BaseNode[Any]):
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


def test_small_items_are_sent_together_and_large_or_mutable_ones_are_not(together: list[int]) -> None:
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


def test_no_item_waits_for_others_to_be_sent_together() -> None:
    answered = threading.Semaphore(0)

    class Hesitant(Drawn):
        def next(self) -> Any:
            if self.drawn in (5, 6, MANY, MANY + 3):
                assert answered.acquire(timeout=120)
            return super().next()

    node = mapper(Hesitant(MANY + 10), abs, 2)
    node.reset()
    for number in range(1, MANY + 11):
        assert next(node) == number
        if number in (5, 6, MANY, MANY + 3):
            answered.release()
    node.shutdown()


def test_results_are_received_while_the_process_computes_a_later_item_of_the_message() -> None:
    answered = multiprocessing.get_context("fork").Semaphore(0)
    slow = {2, MANY, MANY + 1, MANY + 40}

    def waits(number: int) -> int:
        assert number not in slow or answered.acquire(timeout=120)
        return number

    node = mapper(range(MANY + 100), waits)
    node.reset()
    for number in range(MANY + 100):
        if number in slow:
            answered.release()
        assert next(node) == number
    node.shutdown()


def refuses(number: int) -> Any:
    raise LookupError(f"there is no {number}")


class Unloadable:
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
    node = mapper(range(2 * MANY), ExitsAt(MANY))
    node.reset()
    assert [next(node) for _ in range(MANY)] == list(range(MANY))
    with pytest.raises(WorkerExitedError):
        next(node)
    with pytest.raises(WorkerExitedError):
        list(node)
    assert max(together) > 8
    node.shutdown()


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
def test_the_third_worker_exit_is_raised_at_its_item_among_others() -> None:
    node = mapper(range(MANY + 50), ExitsAt(MANY + 5), on_worker_exit="restart")
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


def results_of(iterator: Any, count: int = 10 * MANY) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except KeyError as error:
            found.append(int(str(error).split()[-1]))
    return found


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
@pytest.mark.parametrize(("in_order", "exits"), [(True, {}), (True, {9: 1, MANY + 9: 2, 2 * MANY: 1}), (False, {})])
def test_a_run_resumes_among_many_items_as_if_never_stopped(
    in_order: bool, exits: dict[int, int], tmp_path: Path
) -> None:
    exiting = Exiting(tmp_path, exits)

    def call(item: Any) -> int:
        number = item[0] if isinstance(item, list) else item
        exiting(number)
        if number % 401 == 0:
            raise KeyError(number)
        return -int(number)

    def make() -> Loader[Any]:
        source = Drawn(2 * MANY + 50, lambda number: [number] if number % 97 == 0 else number)
        options = {"in_order": in_order, "snapshot_frequency": 5, "on_worker_exit": "restart"}
        return Loader(mapper(source, call, 2, **options))

    whole = [number if number % 401 == 0 else -number for number in range(1, 2 * MANY + 51)]
    for position in (7, MANY, 2 * MANY):
        with make() as loader, make() as again:
            iterator = iter(loader)
            head = results_of(iterator, position)
            again.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
            for rest in (results_of(iterator), results_of(iter(again))):
                assert (head + rest if in_order else sorted(head + rest)) == (whole if in_order else sorted(whole))


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
