"""All classes that read ahead in threads pass the same tests."""

import contextlib
import gc
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="nodes and StatefulDataLoader need PyTorch")

import torchdata  # noqa: E402
import torchdata.datapipes.iter as pipes  # noqa: E402
from handlers import handling  # noqa: E402
from programs import run  # noqa: E402
from thread_checks import threads  # noqa: E402
from torchdata.datapipes.state import load_state, save_state  # noqa: E402
from torchdata.nodes import IterableWrapper, ParallelMapper, Prefetcher  # noqa: E402
from torchdata.nodes import Mapper as NodeMapper  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader, _pool  # noqa: E402
from waiting import check_in_forked_child, wait_for  # noqa: E402

Function = Callable[[int], int]


class OneOfTwo:
    rank, world_size = 0, 2

    def all_reduce_min(self, value: int) -> int:
        return value


class Pipe(Iterator[Any]):
    def __init__(self, pipe: Any, state: Any) -> None:
        self.pipe = pipe
        if state is not None:
            load_state(pipe, state)
        self.reading = iter(pipe)

    def __next__(self) -> Any:
        return next(self.reading)

    def state(self) -> Any:
        return save_state(self.pipe)


class Node(Iterator[Any]):
    def __init__(self, node: Any, state: Any) -> None:
        self.node = node
        node.reset(state)

    def __next__(self) -> Any:
        return next(self.node)

    def state(self) -> Any:
        return self.node.state_dict()


class Loader(Iterator[Any]):
    def __init__(self, loader: Any, state: Any) -> None:
        self.loader = loader
        if state is not None:
            loader.load_state_dict(state)
        self.reading = iter(loader)

    def __next__(self) -> Any:
        return next(self.reading)

    def state(self) -> Any:
        return self.loader.state_dict()


class Way(NamedTuple):
    #: Starts a reader, given the number of items, a function to apply to each item, and a saved state or None.
    begin: Callable[[int, Function, Any], Any]
    in_order: bool = True
    #: Whether the reader can continue after the applied function has raised an error.
    resumes: bool = True


def pinning_loader(count: int, function: Function, state: Any) -> Loader:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cpu"))
        patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        loader = StatefulDataLoader(range(count), batch_size=None, num_workers=1, pin_memory=True)
        return Loader(loader, state)


def of_pipe(build: Callable[[Any, Function], Any], **more: bool) -> Way:
    def begin(count: int, function: Function, state: Any) -> Pipe:
        return Pipe(build(pipes.IterableWrapper(range(count)), function), state)

    return Way(begin, **more)


def of_node(build: Callable[[Any, Function], Any], **more: bool) -> Way:
    def begin(count: int, function: Function, state: Any) -> Node:
        return Node(build(IterableWrapper(range(count)), function), state)

    return Way(begin, **more)


WAYS = {
    "prefetch": of_pipe(lambda pipe, function: pipe.map(function).prefetch(3), resumes=False),
    "pin_memory": of_pipe(
        lambda pipe, function: pipe.pin_memory(pin_memory_fn=lambda item, _: function(item)), resumes=False
    ),
    "fullsync": of_pipe(lambda pipe, function: pipe.map(function).fullsync(process_group=OneOfTwo()), resumes=False),
    "threadpool_map": of_pipe(lambda pipe, function: pipe.threadpool_map(function, scheduled_tasks=4, max_workers=3)),
    "Prefetcher": of_node(lambda node, function: Prefetcher(NodeMapper(node, function), 3, snapshot_frequency=2)),
    "ParallelMapper": of_node(lambda node, function: ParallelMapper(node, function, 3)),
    "ParallelMapper out of order": of_node(
        lambda node, function: ParallelMapper(node, function, 3, in_order=False, snapshot_frequency=3), in_order=False
    ),
    "StatefulDataLoader": Way(pinning_loader, resumes=False),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture(autouse=True)
def _pinned_by_the_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    yield
    gc.collect()
    wait_for(lambda: not threads())


def begun(way: Way, count: int, function: Function, monkeypatch: pytest.MonkeyPatch, state: Any = None) -> Any:
    monkeypatch.setattr(_pool, "pinned", lambda batch, device: function(batch))
    return way.begin(count, function, state)


def uneven(number: int) -> int:
    time.sleep(0.001 * (number % 3))
    return number


@each_way
def test_all_results_are_received_in_order_or_as_soon_as_they_are_ready(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(begun(way, 40, uneven, monkeypatch))
    assert (found if way.in_order else sorted(found)) == list(range(40))


@each_way
def test_an_error_of_the_function_is_raised_at_its_position(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> int:
        if number == 5:
            raise KeyError("five")
        return uneven(number)

    reading = begun(way, 9, fails, monkeypatch)
    found: list[int] = []
    with pytest.raises(KeyError, match="five"):
        while True:
            found.append(next(reading))
    if way.in_order:
        assert found == list(range(5))
    if way.resumes:
        found += reading
        assert sorted(found) == [0, 1, 2, 3, 4, 6, 7, 8]


@each_way
def test_a_state_at_any_moment_has_exactly_the_undelivered_items(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    for position in range(0, 13, 3):
        reading = begun(way, 12, uneven, monkeypatch)
        received = [next(reading) for _ in range(position)]
        time.sleep(random.choice([0, 0.001, 0.005]))
        state = reading.state()
        if not isinstance(reading, Loader):  # other tests compare the states of `Loader` with torch's states
            state = pickle.loads(pickle.dumps(state))
        rest = list(begun(way, 12, uneven, monkeypatch, state))
        assert sorted(received + rest) == list(range(12)), position
        if position < 12:
            assert sorted(received + list(reading)) == list(range(12)), "the reader that requested the item continues"


class Gate:
    def __init__(self, closed_at: int) -> None:
        self.closed_at, self.arrived, self.opened = closed_at, threading.Event(), threading.Event()

    def __call__(self, number: int) -> int:
        if number == self.closed_at:
            self.arrived.set()
            assert self.opened.wait(120)
        return number


#: The test raises KeyboardInterrupt only in code of this folder, because other code could end the test program.
PACKAGE = os.path.dirname(torchdata.__file__) + os.sep


@contextlib.contextmanager
def pressed(after: float, every: float, where: Callable[[FrameType], bool]) -> Iterator[list[int]]:
    times = [0]

    def press(_: int, frame: FrameType | None) -> None:
        if frame is not None and where(frame):
            times[0] += 1
            raise KeyboardInterrupt

    with handling(press, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, after, every)
        yield times


@each_way
def test_ctrl_c_ends_a_wait_and_nothing_is_lost_or_doubled(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(closed_at=3)
    reading = begun(way, 9, gate, monkeypatch)
    found = [next(reading) for _ in range(3)]
    assert gate.arrived.wait(120)
    with pytest.raises(KeyboardInterrupt), pressed(0.1, 0, lambda frame: True):
        while True:
            found.append(next(reading))
    gate.opened.set()
    found += reading
    assert (found if way.in_order else sorted(found)) == list(range(9))


# StatefulDataLoader is tested in test_stateful_interrupts.py.
@pytest.mark.parametrize("way", [way for name, way in WAYS.items() if name != "StatefulDataLoader"], ids=[*WAYS][:-1])
def test_ctrl_c_at_any_moment_loses_at_most_the_item_that_was_handed_over(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = begun(way, 1500, abs, monkeypatch)
    found: list[int] = []
    with pressed(0.001, 0.001, lambda frame: frame.f_code.co_filename.startswith(PACKAGE)) as times:
        while True:
            try:
                found.append(next(reading))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
    assert len(set(found)) == len(found), "no item is yielded twice"
    assert found == sorted(found) or not way.in_order
    assert 1500 - len(found) <= times[0]


@each_way
def test_a_blocking_call_delays_neither_deletion_nor_garbage_collection(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(closed_at=1)
    reading = begun(way, 9, gate, monkeypatch)
    next(reading)
    assert gate.arrived.wait(120)
    at_work = threads()
    assert at_work
    del reading
    gc.collect()
    gate.opened.set()
    wait_for(lambda: not threads())


@each_way
def test_a_forked_child_gets_an_error_that_the_threads_belong_to_its_parent(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = begun(way, 20, abs, monkeypatch)
    found = [next(reading)]

    def in_the_child() -> None:
        with pytest.raises(RuntimeError, match="forked child|another process"):
            next(reading)

    check_in_forked_child(in_the_child)
    found += reading
    assert sorted(found) == list(range(20))


PROGRAM = """
import threading, time
import pytest
import test_read_ahead as suite

def stuck_after(reached):
    def stuck(number):
        if number == 1:
            reached.set()
            time.sleep(1000)
        return number
    return stuck

readings = []
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(suite.torch.accelerator, "set_device_index", lambda _: None)
    for name in reversed(suite.WAYS):  # tests the way that forks first
        reached = threading.Event()
        readings.append(suite.begun(suite.WAYS[name], 9, stuck_after(reached), patch))
        next(readings[-1])
        assert reached.wait(120), name
print("ends", flush=True)
"""


def test_the_interpreter_ends_while_threads_of_all_kinds_are_in_the_users_function() -> None:
    done = run(PROGRAM)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
