"""Tests how ThreadPoolMapper keeps the order, limits read-ahead, raises errors in order, and saves its state."""

import io
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from kept_state import KeptState
from programs import output_of
from resuming import with_state
from thread_checks import no_thread_is_left, threads  # noqa: F401 - a fixture for all tests here
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, ThreadPoolMapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper
from waiting import wait_for


class Watched(KeptState, IterDataPipe[Any]):
    kept = ("taken",)

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count, self.fail_at, self.taken = count, fail_at, 0
        self.readers: set[str] = set()

    def reset(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        while self.taken < self.count:
            self.readers.add(threading.current_thread().name)
            if self.taken == self.fail_at:
                raise KeyError(f"item {self.taken}")
            self.taken += 1
            yield self.taken - 1


class Gate:
    def __init__(self, *closed_for: Any) -> None:
        self.closed_for, self.entered, self.opened = closed_for, threading.Event(), threading.Event()

    def __call__(self, item: Any) -> Any:
        if item in self.closed_for:
            self.entered.set()
            assert self.opened.wait(120)
        return item


def fails_at_3(item: int) -> int:
    if item == 3:
        raise LookupError("three")
    return 10 * item


def test_calls_run_at_once_in_as_many_threads_as_are_allowed() -> None:
    meeting = threading.Barrier(4, timeout=20)

    def function(item: int) -> str:
        meeting.wait()
        return threading.current_thread().name

    names = set(IterableWrapper(range(12)).threadpool_map(function, max_workers=4))
    assert names == {f"torchdata-threadpool_{number}" for number in range(4)}


@pytest.mark.parametrize("scheduled_tasks", [1, 2, 7])
def test_reading_ahead_is_bounded_and_happens_in_the_consumers_thread(scheduled_tasks: int) -> None:
    source = Watched(100)
    iterator = iter(source.threadpool_map(str, scheduled_tasks=scheduled_tasks, max_workers=2))
    assert source.taken == 0
    for position in range(100):
        assert next(iterator) == str(position)
        assert source.taken == min(100, position + 1 + scheduled_tasks)
    assert next(iterator, None) is None
    assert source.readers == {threading.current_thread().name}


def test_neither_a_kept_exception_nor_a_finished_iterator_keeps_threads_alive() -> None:
    iterator = iter(IterableWrapper(range(100)).threadpool_map(fails_at_3))
    with pytest.raises(LookupError) as caught:
        list(iterator)
    del iterator
    wait_for(lambda: not threads())
    assert str(caught.value) == "three"
    with pytest.raises(SystemExit):
        list(IterableWrapper([5]).threadpool_map(sys.exit))
    iterator = iter(IterableWrapper(["a", "b"]).threadpool_map(lambda text: StreamWrapper(io.StringIO(text))))
    assert [stream.read() for stream in iterator] == ["a", "b"]
    wait_for(lambda: not threads())
    assert list(iterator) == []


def test_the_exception_of_the_source_is_raised_after_the_results_of_earlier_items() -> None:
    pipe = Watched(10, fail_at=5).threadpool_map(str)
    iterator = iter(pipe)
    assert [next(iterator) for _ in range(5)] == list("01234")
    with pytest.raises(KeyError, match="item 5"):
        next(iterator)
    assert list(iterator) == []
    pipe.datapipe.fail_at = None
    assert list(pipe) == list("0123456789")


def test_a_function_that_raises_stop_iteration_does_not_end_the_iteration() -> None:
    iterator = iter(IterableWrapper(range(3)).threadpool_map(lambda item: next(iter([item][item % 2 :]))))
    assert next(iterator) == 0
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(iterator)
    assert list(iterator) == [2]


def test_the_initializer_runs_in_each_thread_with_its_arguments() -> None:
    local = threading.local()

    def prepare(*values: int) -> None:
        local.values = values

    pipe = IterableWrapper(range(9)).threadpool_map(
        lambda item: (item, *local.values), max_workers=2, initializer=prepare, initargs=(1, 2)
    )
    assert list(pipe) == [(item, 1, 2) for item in range(9)]


def test_a_failing_initializer_is_the_cause_of_an_error_of_the_type_that_executors_raise() -> None:
    with pytest.raises(BrokenExecutor, match="No such file") as caught:
        list(IterableWrapper(range(9)).threadpool_map(str, initializer=open, initargs=("/no device",)))
    assert isinstance(caught.value.__cause__, OSError)


def test_fewer_threads_than_requested_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.endswith("_1"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert list(IterableWrapper(range(9)).threadpool_map(str, max_workers=4)) == list("012345678")


def test_ctrl_c_inside_the_start_of_a_thread_is_raised_as_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("release unlocked lock")
    error.__context__ = KeyboardInterrupt()
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=error))
    with pytest.raises(KeyboardInterrupt):
        list(IterableWrapper(range(9)).threadpool_map(str))


def test_saving_waits_for_calls_that_may_be_changing_their_item_and_holds_the_others() -> None:
    gate, calls = Gate(1), []

    def append(item: list[int]) -> list[int]:
        calls.append(item[0])
        item.append(-1)
        item.append(gate(item[0]))
        return item

    source = IterableWrapper([[number] for number in range(5)])
    pipe = source.threadpool_map(append, scheduled_tasks=4, max_workers=1)
    iterator = iter(pipe)
    assert next(iterator) == [0, -1, 0]
    assert gate.entered.wait(120)
    threading.Timer(0.05, gate.opened.set).start()
    state = save_state(pipe)
    kinds = [kind for kind, _ in pipe.state_dict()["tasks"]]
    assert kinds == ["result", "item", "item", "item"]
    assert calls == [0, 1], "no call begins after saving the state"
    pickled = pickle.dumps(state)
    expected = [[number, -1, number] for number in range(1, 5)]
    assert list(iterator) == expected
    for loaded in (pickle.loads(pickled),) * 2:
        restored = with_state(IterableWrapper([[number] for number in range(5)]).threadpool_map(append), loaded)
        assert list(restored) == expected


def test_saving_does_not_wait_for_calls_with_items_that_cannot_change() -> None:
    gate = Gate(1, 2)
    pipe = IterableWrapper(range(4)).threadpool_map(gate, max_workers=2)
    iterator = iter(pipe)
    assert next(iterator) == 0
    assert gate.entered.wait(120)
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    gate.opened.set()
    assert list(iterator) == [1, 2, 3]
    restored = IterableWrapper(range(4)).threadpool_map(str)
    load_state(restored, state, strict=False)  # `restored` has another function than the saved pipe
    assert list(restored)[-1] == "3"
    assert len(state["pipes"][-1]["state"]["tasks"]) == 3


def test_saving_gives_up_on_a_call_that_blocks_and_the_iteration_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate((1,))
    pipe = IterableWrapper([(0,), (1,), (2,)]).threadpool_map(gate, max_workers=1)
    iterator = iter(pipe)
    assert next(iterator) == (0,)
    assert gate.entered.wait(120)
    monkeypatch.setattr(ThreadPoolMapper, "patience", 0.05)
    with pytest.raises(TimeoutError, match="patience"):
        save_state(pipe)
    gate.opened.set()
    assert list(iterator) == [(1,), (2,)]


def test_buffered_errors_are_in_the_state_at_their_position() -> None:
    def function(item: list[int]) -> int:
        return fails_at_3(item[0])

    def build() -> Any:
        return IterableWrapper([[number] for number in range(6)]).threadpool_map(function)

    pipe = build()
    iterator = iter(pipe)
    assert next(iterator) == 0
    restored = with_state(build(), save_state(pipe))
    tail = iter(restored)
    assert [next(tail), next(tail)] == [10, 20]
    with pytest.raises(LookupError, match="three"):
        next(tail)
    assert list(tail) == [40, 50]


def test_a_later_error_of_the_source_is_in_the_state() -> None:
    pipe = Watched(10, fail_at=3).threadpool_map(str)
    iterator = iter(pipe)
    assert next(iterator) == "0"
    restored = with_state(Watched(10).threadpool_map(str), save_state(pipe))
    tail = iter(restored)
    assert [next(tail), next(tail)] == ["1", "2"]
    with pytest.raises(KeyError, match="item 3"):
        next(tail)


def test_streams_in_a_state_are_read_by_each_pipe_that_loads_it(tmp_path: Any) -> None:
    paths = []
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number))
        paths.append(str(tmp_path / f"{number}.txt"))

    def build() -> Any:
        return IterableWrapper(paths).open_files().threadpool_map(lambda pair: pair[1].read(), max_workers=2)

    pipe = build()
    iterator = iter(pipe)
    assert next(iterator) == "0"
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    assert list(iterator) == ["1", "2", "3"]
    for _ in range(2):
        load_state(other := build(), state)
        assert list(other) == ["1", "2", "3"]


def test_loading_the_beginning_ends_the_threads() -> None:
    called = threading.Event()

    def slow(item: int) -> int:
        called.wait(0.01)
        return item

    pipe = Watched(100).threadpool_map(slow, max_workers=1)
    beginning = save_state(pipe)
    iterator = iter(pipe)
    assert next(iterator) == 0
    load_state(pipe, beginning)
    wait_for(lambda: not threads())
    assert list(pipe) == list(range(100))


STUCK = """
import __main__, threading, torchdata._threads  # these modules keep each other alive until their globals are cleared
from torchdata.datapipes.iter import IterableWrapper

both = threading.Barrier(3)

def stuck(item):
    if item:
        both.wait(30)
        threading.Event().wait()
    return item

torchdata._threads.TIMEOUT = 0.1
iterator = iter(IterableWrapper(range(10)).threadpool_map(stuck, max_workers=2))
print(next(iterator))
both.wait(30)
"""


def test_a_program_with_a_stuck_call_exits_without_a_message(tmp_path: Any) -> None:
    assert output_of(STUCK, file=tmp_path / "stuck.py") == "0\n"
