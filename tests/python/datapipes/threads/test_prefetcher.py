"""Tests how Prefetcher pauses and ends its thread, raises errors in the order of the items, and saves its state."""

import copy
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from one_rank import Alone
from random_graphs.users import Unstated, UnstatedTwice, drawn, is_odd, kept, unpinned
from resuming import check_graph_resumes, read_some, start, with_state
from thread_checks import no_thread_is_left, threads  # noqa: F401 - a fixture for all tests here
from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes._pipe.state.halting import beginning_unread
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Prefetcher
from torchdata.datapipes.iter.threads.prefetching import stop_reading
from torchdata.datapipes.state import load_generators, load_state, save_generators, save_state, threads_paused
from waiting import wait_for


class Counting(IterDataPipe[int]):
    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count, self.fail_at, self.taken = count, fail_at, 0

    def reset(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        while self.taken < self.count:
            if self.taken == self.fail_at:
                raise KeyError(f"item {self.taken}")
            self.taken += 1
            yield self.taken - 1


class Gated(IterDataPipe[int]):
    def __init__(self) -> None:
        self.gate, self.waits = threading.Event(), threading.Event()

    def __getstate__(self) -> Any:
        return {}

    def __iter__(self) -> Iterator[int]:
        yield 0
        for number in range(1, 5):
            self.waits.set()
            self.gate.wait(120)
            yield number


def test_the_source_runs_ahead_by_the_buffer_size_and_no_further() -> None:
    source = Counting(100)
    iterator = iter(source.prefetch(4))
    assert next(iterator) == 0
    wait_for(lambda: source.taken == 5)
    assert next(iterator) == 1
    wait_for(lambda: source.taken == 6)


def test_a_second_iterator_ends_the_first_ones_thread() -> None:
    pipe = IterableWrapper(range(1000)).prefetch(2)
    first = iter(pipe)
    next(first)
    second = iter(pipe)
    assert next(second) == 0
    assert len(threads()) == 1
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)


def test_shutdown_ends_thread_and_iterator_and_may_be_called_twice() -> None:
    error = StopIteration()
    assert list(IterableWrapper([None, error], deepcopy=False).prefetch()) == [None, error]
    pipe = IterableWrapper(range(1000)).prefetch(2)
    iterator = iter(pipe)
    next(iterator)
    pipe.shutdown()
    pipe.shutdown()
    assert not threads()
    assert list(iterator) == []


def test_a_thread_that_resumes_does_not_change_the_state_that_another_thread_saves() -> None:
    source = Counting(100)
    pipe = source.prefetch(4)
    iterator = iter(pipe)
    assert next(iterator) == 0
    wait_for(lambda: source.taken == 5)
    with pipe.threads_paused():
        items = pipe.state_dict()["items"]
        pipe.pause()
        pipe.resume()  # `resume` ends only the second pause, and the first pause continues.
        assert next(iterator) == items.pop(0)
        assert pipe.state_dict()["items"] == items, "the thread is paused"
    assert list(iterator) == list(range(2, 100))


def test_a_paused_pipe_does_not_read_its_source_until_resumed() -> None:
    source = Counting(100)
    pipe = source.prefetch(4)
    pipe.pause()  # a pause has no effect before the first item
    iterator = iter(pipe)
    wait_for(lambda: source.taken == 4)
    pipe.pause()
    assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
    assert source.taken == 4
    pipe.resume()
    assert list(iterator) == list(range(4, 100))


def test_pausing_waits_for_the_current_item_until_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Gated()
    pipe = source.prefetch(3)
    iterator = iter(pipe)
    assert source.waits.wait(120)
    with pytest.raises(TimeoutError, match="busy"), threads_paused([source, pipe], 0.0):
        pass
    monkeypatch.setattr(Prefetcher, "patience", 0.05)
    with pytest.raises(TimeoutError, match="Prefetcher cannot be paused"):
        pipe.pause()
    monkeypatch.undo()
    source.gate.set()
    pipe.pause()
    pipe.resume()
    assert list(iterator) == [0, 1, 2, 3, 4]


class Worded(Exception):
    def __init__(self, word: str, *, number: int) -> None:
        super().__init__(f"{word} {number}")
        self.number = number


class Doubled(Exception):
    def __init__(self, word: str) -> None:
        super().__init__(f"{word}!")


@pytest.mark.parametrize(
    ("error", "is_local"), [(LookupError("three"), True), (Worded("three", number=3), False), (Doubled("three"), True)]
)
def test_a_buffered_error_with_any_constructor_is_part_of_the_state(error: Exception, is_local: bool) -> None:
    class Local(type(error)):  # type: ignore[misc]
        pass

    def fails(item: int) -> int:
        if item == 3:
            raise Local.__new__(Local, *error.args) if is_local else error
        return item

    pipe = IterableWrapper(range(5)).map(fails).prefetch(10)
    iterator = iter(pipe)
    assert next(iterator) == 0
    wait_for(lambda: not threads())
    restored = with_state(IterableWrapper(range(5)).map(fails).prefetch(10), save_state(pipe))
    got = iter(restored)
    assert [next(got), next(got)] == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(got)
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "number", 3) == 3


class Seekable(IterDataPipe[int]):
    def __init__(self) -> None:
        self.position = 0

    def reset(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 100_000:
            self.position += 1
            yield self.position - 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]
        time.sleep(0.02)


def test_loading_a_state_halts_a_thread_that_still_reads_the_source() -> None:
    pipe = Seekable().prefetch(50_000)
    iterator = iter(pipe)
    assert next(iterator) == 0
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    expected = len(state["pipes"][-1]["state"]["items"]) + 1
    load_state(pipe, state)
    assert pipe.source_datapipe.position == expected
    assert next(iter(pipe)) == 1


def test_a_pass_that_begins_unread_reads_once_a_reader_waits_and_reading_is_allowed() -> None:
    source = Counting(50)
    pipe = source.prefetch(3).prefetch(2)
    with beginning_unread():
        iterator = iter(pipe)
        time.sleep(0.1)
        assert source.taken == 0
        saved = save_state(pipe)
        assert source.taken == 0
        assert next(iterator) == 0
    assert list(iterator) == list(range(1, 50))
    load_state(pipe, saved)
    assert list(pipe) == list(range(50))


def test_loading_the_beginning_stops_a_thread_that_would_draw_random_numbers() -> None:
    def slowly_drawn(item: int) -> float:
        time.sleep(0.01)
        return random.random()

    pipe = IterableWrapper(range(100)).map(slowly_drawn).prefetch(100)
    beginning = save_state(pipe), save_generators()
    iterator = iter(pipe)
    assert next(iterator) > 0
    load_state(pipe, beginning[0])
    load_generators(beginning[1])
    found = random.getstate()
    time.sleep(0.1)
    assert (random.getstate(), len(threads())) == (found, 0)


def read_ahead(pipe: Any, size: int = 2) -> Any:
    return UnstatedTwice(pipe).map(drawn).prefetch(size)


DRAWN_IN_THREAD: dict[str, Callable[[Any], Any]] = {
    "at the end": read_ahead,
    "far ahead": lambda pipe: read_ahead(pipe, 50).map(abs),
    "below another thread": lambda pipe: read_ahead(pipe).prefetch(3).batch(2),
    "in two passes of an epoch": lambda pipe: UnstatedTwice(read_ahead(pipe)),
    "behind the last item, too": lambda pipe: UnstatedTwice(pipe).filter(kept).prefetch(3),
    "below a pipe that cuts it off": lambda pipe: Unstated(read_ahead(pipe)).batch(3, drop_last=True),
}


@pytest.mark.parametrize("build", DRAWN_IN_THREAD.values(), ids=DRAWN_IN_THREAD)
def test_a_replay_repeats_random_draws_that_a_thread_made_ahead_of_a_state(build: Callable[[Any], Any]) -> None:
    def left(pipe: Any) -> None:
        for each in walk(pipe):
            if isinstance(each, Prefetcher):
                each.shutdown()

    check_graph_resumes(lambda: build(IterableWrapper(range(7))), left)


@pytest.mark.parametrize("size", [1, 50])
def test_a_replay_ends_with_any_queue_and_after_any_change_of_the_pipeline(size: int) -> None:
    def build(count: int, size: int) -> Any:
        return UnstatedTwice(IterableWrapper(range(count))).map(drawn).prefetch(size).filter(is_odd)

    start(5)
    whole = list(build(30, 8))
    start(5)
    pipe = build(30, 8)
    iterator = iter(pipe)
    first = list(islice(iterator, 6))
    wait_for(lambda: len(pipe.datapipe._data.queue) == 8)
    saved, generators = pickle.loads(read_some(pipe))
    pipe.datapipe.shutdown()
    start(99)
    pipe = with_state(build(30, size), saved)
    load_generators(generators)
    assert first + list(pipe) == whole
    for count, drop in [(0, 6), (3, 6), (300, 100)]:  # The replay from the new source ends early or drops more items.
        other = copy.deepcopy(saved)
        other["pipes"][-1]["drop"] = drop
        other["checksums"] = None  # The test changes the state, so the checksums no longer match.
        pipe = with_state(build(count, size), other, strict=False)
        assert len(list(pipe)) < 2 * count + 1


class SlowToEnd(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source
        self.running = 0

    def __iter__(self) -> Iterator[int]:
        self.running += 1
        try:
            yield from self.source
        finally:
            time.sleep(0.1)
            self.running -= 1


KINDS: dict[str, Callable[[Any], Any]] = {
    "prefetch": lambda pipe: pipe.prefetch(2),
    "pin_memory": lambda pipe: pipe.pin_memory(pin_memory_fn=unpinned),
    "two threads": lambda pipe: pipe.prefetch(2).map(str).prefetch(2),
}


@pytest.mark.parametrize("look", [save_state, lambda pipe: load_state(pipe, STATES[0]), stop_reading])
@pytest.mark.parametrize("kind", KINDS)
def test_searching_a_graph_finds_its_sources_ended(kind: str, look: Callable[[Any], object]) -> None:
    pipe = KINDS[kind](SlowToEnd(IterableWrapper(range(100))))
    STATES[:] = [save_state(pipe, described=False)]
    iterator = iter(pipe)
    assert int(next(iterator)) == 0
    slow = next(each for each in walk(pipe) if isinstance(each, SlowToEnd))
    assert slow.running == 1
    del iterator
    look(pipe)
    assert slow.running == 0
    assert list(map(int, pipe)) == list(range(100))


STATES: list[Any] = []


def test_waiting_ranks_do_not_block_an_observer() -> None:
    asked, answer = threading.Event(), threading.Event()

    class Slow(Alone):
        def all_reduce_min(self, value: int) -> int:
            if value < 1:
                asked.set()
                answer.wait(120)
            return value

    slow = SlowToEnd(IterableWrapper(range(100)))
    pipe = slow.fullsync(timeout=30, process_group=Slow(2))
    iterator = iter(pipe)
    assert next(iterator) == 0
    pipe.leave(for_good=False)
    stop_reading(pipe)
    assert slow.running == 0
    assert asked.wait(120)
    answer.set()
    pipe.shutdown()
