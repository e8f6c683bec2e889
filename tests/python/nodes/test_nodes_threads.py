"""Nodes with threads raise errors at the correct position, have exact states, and always end their threads."""

import gc
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torchdata.nodes as tn
from node_sources import Epochs, fails_at_three, numbers, outcomes
from thread_checks import no_thread_is_left, threads  # noqa: F401 - a fixture for all tests here
from torchdata.nodes._read_ahead import ReadSource
from torchdata.nodes.base_node import is_repeatable
from waiting import check_in_forked_child, wait_for


class Gate(tn.BaseNode[int]):
    def __init__(self, closed_at: int) -> None:
        super().__init__()
        self.closed_at, self.opened, self.arrived = closed_at, threading.Event(), threading.Event()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.number = 0 if initial_state is None else initial_state["number"]

    def next(self) -> int:
        if self.number == self.closed_at:
            self.arrived.set()
            assert self.opened.wait(120)
        self.number += 1
        return self.number - 1

    def get_state(self) -> dict[str, Any]:
        return {"number": self.number}


THREADED: list[Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]]] = [
    lambda source: tn.Prefetcher(source, 3),
    lambda source: tn.ParallelMapper(source, abs, 3),
    lambda source: tn.ParallelMapper(source, abs, 3, in_order=False),
    lambda source: tn.ParallelMapper(source, abs, 2, prebatch=2),
]
each_kind = pytest.mark.parametrize("kind", THREADED, ids=["prefetch", "parallel", "out of order", "prebatch"])


def test_no_more_items_are_taken_ahead_than_requested() -> None:
    for make, most in (
        (lambda source: tn.Prefetcher(source, 3), 3),
        (lambda source: tn.ParallelMapper(source, abs, 2), 4),
        (lambda source: tn.ParallelMapper(source, abs, 2, max_concurrent=1), 1),
    ):
        source = Gate(closed_at=-1)
        node = make(source)
        for yielded in range(1, 6):
            assert next(node) == yielded - 1
            wait_for(lambda source=source, wanted=yielded + most: source.number == wanted)
        node.shutdown()


def test_results_out_of_order_are_received_as_soon_as_they_are_ready() -> None:
    slow = threading.Event()

    def first_waits(number: int) -> int:
        if number == 0:
            assert slow.wait(120)
        return number

    node = tn.ParallelMapper(numbers(6), first_waits, 2, in_order=False)
    ready = [next(node) for _ in range(5)]
    assert ready == [1, 2, 3, 4, 5]
    state = pickle.loads(pickle.dumps(node.state_dict()))
    slow.set()
    assert list(node) == [0]
    node.reset(state)
    assert list(node) == [0]


def test_several_threads_call_the_function_at_once_and_one_at_a_time_reads_the_source() -> None:
    meeting, reading = threading.Barrier(3), threading.Lock()

    def read(number: int) -> int:
        assert reading.acquire(blocking=False), "two threads read the source"
        time.sleep(0.001)
        reading.release()
        return number

    def meet(number: int) -> int:
        meeting.wait(120)
        return number

    assert list(tn.ParallelMapper(tn.Mapper(numbers(9), read), meet, 3)) == list(range(9))


@pytest.mark.parametrize(
    "node",
    [
        tn.Prefetcher(tn.Mapper(numbers(6), fails_at_three), 2),
        tn.ParallelMapper(numbers(6), fails_at_three, 3),
        tn.ParallelMapper(tn.Mapper(numbers(6), fails_at_three), abs, 3),
        tn.ParallelMapper(numbers(6), fails_at_three, 2, prebatch=4),
    ],
    ids=["prefetch", "function", "source", "prebatch"],
)
def test_an_error_is_raised_at_its_position_with_its_traceback_and_later_items_can_be_read(
    node: tn.BaseNode[int],
) -> None:
    node.reset()
    assert [next(node) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three") as caught:
        next(node)
    assert "fails_at_three" in "".join(traceback.format_exception(caught.value))
    state = node.state_dict()
    assert list(node) == [4, 5]
    node.reset(state)
    assert [item for item in outcomes(node) if item != "'three'"] == [4, 5]
    node.shutdown()


def test_an_error_of_an_unordered_source_is_raised_after_the_earlier_items() -> None:
    node = tn.ParallelMapper(tn.Mapper(numbers(6), fails_at_three), abs, 3, in_order=False)
    found = outcomes(node)
    assert sorted(found[:3]) == [0, 1, 2]
    assert found[3] == "'three'"
    assert sorted(found[4:]) == [4, 5]


def test_an_error_while_a_state_is_saved_is_raised_after_the_item() -> None:
    class Forgetful(tn.IterableWrapper[int]):
        def get_state(self) -> dict[str, Any]:
            if self._num_yielded == 2:
                raise OSError("no state")
            return super().get_state()

    assert outcomes(tn.Prefetcher(Forgetful(range(4)), 3)) == [0, 1, "no state", 2, 3]


def test_a_handled_error_leaves_no_reference_cycle_that_keeps_threads_alive() -> None:
    for make in (
        lambda: tn.ParallelMapper(numbers(9), fails_at_three, 2),
        lambda: tn.Prefetcher(tn.Mapper(numbers(9), fails_at_three), 2),
    ):
        node = make()
        with pytest.raises(KeyError):
            list(node)
        gc.collect()
        gc.disable()  # objects must be freed by reference counting alone
        try:
            assert next(node) == 4
            del node
            wait_for(lambda: not threads())
        finally:
            gc.enable()


@each_kind
def test_saving_a_state_does_not_wait_for_unfinished_items(
    kind: Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]],
) -> None:
    source = Gate(closed_at=4)
    node = kind(source)
    found = [next(node), next(node)]
    assert source.arrived.wait(120)
    state = pickle.loads(pickle.dumps(node.state_dict()))
    source.opened.set()
    other = kind(Gate(closed_at=-1))
    other.reset(state)
    found += [next(other) for _ in range(6)]
    assert {0, 1, 2, 3} <= set(found)
    assert len(set(found)) == 8
    node.shutdown()
    other.shutdown()


def test_the_frequency_of_snapshots_bounds_how_much_is_read_again() -> None:
    for frequency, read_again in ((1, [7, 8]), (3, [6, 7, 8]), (0, list(range(9)))):
        node = tn.Prefetcher(numbers(9), 2, snapshot_frequency=frequency)
        for _ in range(7):
            next(node)
        state = node.state_dict()
        read: list[int] = []
        source = tn.Mapper(numbers(9), lambda number, read=read: read.append(number) or number)  # type: ignore[func-returns-value]
        again = tn.Prefetcher(source, 2, snapshot_frequency=frequency)
        again.reset({**state, "snapshot": {"it_state": {"source": state["snapshot"]}}})
        assert list(again) == [7, 8]
        assert read == read_again
        node.shutdown()


def test_a_state_of_data_that_has_become_shorter_raises_an_error_and_does_not_hang() -> None:
    node = tn.Prefetcher(numbers(3), 2, snapshot_frequency=0)
    node.reset({"snapshot": {"_num_yielded": 0}, "steps_since_snapshot": 5})
    with pytest.raises(ValueError, match="needs 5 more items of the source, but the source ended after 3"):
        next(node)
    assert list(node) == []


def test_nodes_over_a_source_out_of_order_neither_lose_nor_double_items() -> None:
    def uneven(number: int) -> list[int]:
        time.sleep(0.002 * (number % 3))
        return [2 * number, 2 * number + 1]

    def make() -> tn.BaseNode[Any]:
        pairs = tn.ParallelMapper(numbers(12), uneven, 4, in_order=False)
        return tn.Prefetcher(tn.ParallelMapper(tn.Unbatcher(pairs), abs, 3, in_order=False, snapshot_frequency=5), 2, 3)

    for position in range(0, 24, 3):
        node, again = make(), make()
        node.reset()
        seen = [next(node) for _ in range(position)]
        again.reset(pickle.loads(pickle.dumps(node.state_dict())))
        assert sorted(seen + list(again)) == list(range(24)), position
        node.shutdown()


@each_kind
def test_a_reset_in_the_middle_starts_again_and_leaves_one_set_of_threads(
    kind: Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]],
) -> None:
    loader = tn.Loader(kind(tn.SamplerWrapper(range(100))))
    for _ in range(20):
        iterator = iter(loader)
        assert next(iterator) in range(8)
    assert sorted(loader) == list(range(100))
    wait_for(lambda: not threads())


@each_kind
def test_a_shutdown_ends_the_threads_and_keeps_the_position(
    kind: Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]],
) -> None:
    loader = tn.Loader(tn.Mapper(kind(numbers(30)), abs))
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(5)]
    loader.shutdown()
    state = loader.state_dict()
    assert not threads()
    loader.shutdown()
    with pytest.raises(RuntimeError, match="was shut down: reset it"):
        list(iterator)  # The second reader first yields the rest of a batch that was received earlier.
    loader.load_state_dict(state)
    assert sorted(seen + list(loader)) == list(range(30))


@pytest.mark.parametrize("method", ["prefetch", "thread", "process"])
def test_a_shutdown_does_not_look_like_an_end_to_a_reader_of_items_read_ahead(method: Any) -> None:
    source = numbers(3)
    node: Any = tn.Prefetcher(source, 5) if method == "prefetch" else tn.ParallelMapper(source, abs, 2, method=method)
    iterator = iter(loader := tn.Loader(node))
    assert next(iterator) == 0
    queue = getattr(node, "_it", node)._run.work.queue
    wait_for(lambda: queue.finished)
    loader.shutdown()
    with pytest.raises(RuntimeError, match="was shut down: reset it"):
        next(iterator)


class Acts(tn.IterableWrapper[int]):
    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.act: Callable[[], object] = lambda: None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        thread = threading.Thread(target=self.act, daemon=True)
        thread.start()
        thread.join(30)


def test_shutting_processes_down_while_an_epoch_begins_ends_the_epoch() -> None:
    source = Acts(6)
    loader = tn.Loader(tn.ParallelMapper(source, abs, 2, method="process", multiprocessing_context="fork"))
    assert list(loader) == list(range(6))
    source.act = loader.shutdown
    iterator = iter(loader)
    for _ in range(8):
        with pytest.raises(RuntimeError, match="was shut down: reset it"):
            next(iterator)
    source.act = lambda: None
    assert list(loader) == list(range(6))
    loader.shutdown()


def test_a_waiting_reader_gets_an_error_when_the_node_is_shut_down() -> None:
    source = Gate(closed_at=0)
    node = tn.Prefetcher(source, 2)
    failures: list[str] = []
    reader = threading.Thread(target=lambda: failures.extend(outcomes(node)), daemon=True)
    node.reset()
    reader.start()
    assert source.arrived.wait(120)
    stopping = threading.Thread(target=node.shutdown, daemon=True)
    stopping.start()
    reader.join(120)
    assert {*failures} == {"Prefetcher was shut down: reset it, or make a new iterator of its Loader"}
    source.opened.set()
    stopping.join(120)
    assert not stopping.is_alive()


def test_a_reset_fails_and_does_not_hang_if_the_source_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadSource, "patience", 0.2)
    source = Gate(closed_at=1)
    node = tn.Prefetcher(source, 2)
    assert next(node) == 0
    assert source.arrived.wait(120)
    with pytest.raises(TimeoutError, match="Prefetcher cannot be reset: its source Gate has been busy with one item"):
        node.reset()
    source.opened.set()
    wait_for(lambda: not threads())
    node.reset()
    assert next(node) == 0
    node.shutdown()


def test_the_next_epoch_does_not_depend_on_how_far_threads_have_read() -> None:
    for pause in (0.0, 0.0, 0.005):  # the pause changes how far threads read ahead, but not the result
        for frequency in (0, 1, 3):
            loader = tn.Loader(tn.Prefetcher(tn.Cycler(tn.SamplerWrapper(Epochs(3))), 8, frequency))
            for epoch in range(4):
                assert next(iter(loader)) == (3 * epoch, 0)
                time.sleep(pause)
            loader.shutdown()


def test_abandoning_an_epoch_does_not_wait_endlessly_for_a_slow_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadSource, "patience", 0.2)
    read: list[int] = []

    def slow() -> Iterator[int]:
        for number in range(10**5):
            time.sleep(0.01)
            read.append(number)
            yield number

    node = tn.Prefetcher(tn.IterableWrapper(slow()), 90_000)
    assert next(node) == 0
    node.reset()
    assert len(read) < 90_000
    node.shutdown()


def test_a_forked_child_gets_an_error_about_the_threads_of_its_parent_and_may_reset() -> None:
    node = tn.Prefetcher(Gate(closed_at=-1), 2)
    assert next(node) == 0
    text = f"the threads of Prefetcher run in process {os.getpid()}, and this process is a forked child of it: begin "

    def check() -> None:
        with pytest.raises(RuntimeError, match=text + "a new iteration in the child"):
            for _ in range(5):  # Some calls return items that were read before the fork.
                next(node)
        node.reset()
        assert next(node) == 0

    check_in_forked_child(check)
    node.shutdown()


def test_a_node_may_get_attributes_while_its_sources_are_looked_for() -> None:
    node = tn.Mapper(tn.IterableWrapper(range(3)), str)

    class Growing(dict[str, Any]):
        def values(self) -> Any:
            vars(node)["more"] = None
            return super().values()

    vars(node)["held"] = Growing()
    assert is_repeatable(node)


@pytest.mark.parametrize("node", ["Prefetcher", "ParallelMapper"])
def test_a_state_that_a_function_requests_in_a_thread_of_a_node_is_an_error(node: str) -> None:
    errors: list[str] = []

    def function(item: int) -> int:
        if item == 3:
            with pytest.raises(RuntimeError) as caught:
                loader.state_dict()
            errors.append(str(caught.value))
        return item

    source = tn.IterableWrapper(range(8))
    mapped: tn.BaseNode[int] = tn.ParallelMapper(source, function, 2, method="thread")
    loader = tn.Loader(tn.Prefetcher(tn.Mapper(source, function), 2) if node == "Prefetcher" else mapped)
    assert list(loader) == list(range(8))
    assert ["let the handler set a flag" in error for error in errors] == [True]
