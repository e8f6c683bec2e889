"""If a loop is left while a thread reads an item, the next use of the pipe waits until the thread has stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from one_rank import Alone
from random_graphs.users import unpinned
from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.iter.threads.prefetching import stop_reading
from torchdata.datapipes.state import load_state, save_state


class SlowToEnd(IterDataPipe[int]):
    """A pipe that takes some time to end if a loop leaves it early, like a generator that closes a file."""

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


#: States that a test has saved while an iteration of the graph was beginning.
STATES: list[Any] = []


def test_waiting_ranks_do_not_block_an_observer() -> None:
    """A thread of `fullsync` releases its source before it informs the other ranks that it leaves."""
    asked, answer = threading.Event(), threading.Event()

    class Slow(Alone):
        """Simulates a group of two ranks. The second rank answers late."""

        world_size = 2

        def all_reduce_min(self, value: int) -> int:
            if value < 1:
                asked.set()
                answer.wait(120)
            return value

    slow = SlowToEnd(IterableWrapper(range(100)))
    pipe = slow.fullsync(timeout=30, process_group=Slow())
    iterator = iter(pipe)
    assert next(iterator) == 0
    pipe.leave(for_good=False)
    stop_reading(pipe)
    assert slow.running == 0
    assert asked.wait(120)
    answer.set()
    pipe.shutdown()
