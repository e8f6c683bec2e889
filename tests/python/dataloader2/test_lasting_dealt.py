"""The states of a loader also contain the state that child processes keep between epochs, even if a state was saved at
the beginning of a later epoch.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resuming import begun, continued, epochs_of, resumed
from torchdata._engine import snapshots
from torchdata._engine.workers.program import ChildInfo
from torchdata._observe.outside.stalls import StallWarning
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph.cutting import DispatchedSource
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.program import GraphProgram
from torchdata.dataloader2.state.position import Shard
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, SampleMultiplexer
from waiting import check_in_forked_child, wait_for

State = dict[str, Any]


def half_of_them(item: int) -> bool:
    return random.random() < 0.5


def loader(workers: int, state: State | None = None) -> DataLoader2[Any]:
    """Returns a loader over items that are chosen at random in the first epoch, and are the same in later epochs."""
    pipe = IterableWrapper(range(30)).filter(half_of_them).in_memory_cache().sharding_round_robin_dispatch()
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork")), state)


@pytest.mark.parametrize("workers", [1, 3])
def test_states_of_later_epochs_contain_a_cache_before_the_dispatch(workers: int) -> None:
    states: dict[tuple[int, int], State] = {}
    with loader(workers) as whole:
        for epoch in range(3):
            items = []
            iterator = iter(whole)
            states[epoch, 0] = whole.state_dict()  # the epoch has begun, but no item was read
            for item in iterator:
                items.append(item)
                states[epoch, len(items)] = whole.state_dict()
    for (epoch, at), state in list(states.items())[len(items) + 1 :: 7]:
        assert epoch > 0
        random.seed(9)
        assert epochs_of(loader(workers, state)) == [items[at:], items]


class Counting(IterDataPipe[int]):
    """A user-defined pipe that counts its epochs, and sleeps before the first item of each epoch."""

    def __init__(self, source: Any, seconds: float) -> None:
        self.source, self.seconds, self.epochs = source, seconds, 0

    def reset(self) -> None:
        self.epochs += 1

    def __iter__(self) -> Iterator[int]:
        time.sleep(self.seconds)
        for item in self.source:
            yield 100 * self.epochs + item

    def state_dict(self) -> int:
        return self.epochs

    def load_state_dict(self, epochs: int) -> None:
        self.epochs = epochs


class Silent(IterDataPipe[int]):
    """A pipe that yields 40 items of its own, and then, if `ever` is true, the dispatched items."""

    def __init__(self, source: Any, ever: bool) -> None:
        self.source, self.ever = source, ever

    def __iter__(self) -> Iterator[int]:
        yield from range(1000, 1040)
        if self.ever:
            yield from self.source


@pytest.mark.parametrize(
    ("method", "after"), [("fork", "all"), ("fork", "a break"), ("spawn", "a break"), ("forkserver", "all")]
)
def test_a_user_s_pipe_resumes_from_the_first_moment_of_a_later_epoch(method: str, after: str) -> None:
    def made(state: State | None = None) -> DataLoader2[Any]:
        pipe = Counting(IterableWrapper(range(9)), 0.05).sharding_round_robin_dispatch()
        service = MultiProcessingReadingService(2, method, on_worker_exit="restart")
        found: DataLoader2[Any] = DataLoader2(pipe, reading_service=service)
        if state is not None:
            found.load_state_dict(state)
        return found

    with made() as whole:
        for item in whole:
            if after == "a break" and item % 100 == 4:
                break
        iterator = iter(whole)
        state = whole.state_dict()
        items = list(iterator)
    with made(state) as again:
        assert list(again) == items == [200 + item for item in range(9)]


@pytest.mark.parametrize("ever", [True, False])
def test_workers_that_read_dispatched_items_late_or_never_do_not_delay_a_state(ever: bool) -> None:
    def made() -> DataLoader2[Any]:
        dealt = Counting(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch()
        pipe = Silent(dealt, ever)
        return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=1))

    def epoch(number: int) -> list[int]:
        own = [item for item in range(1000, 1040) for _ in range(2)]
        return own + [100 * number + item for item in range(6)] * ever

    with made() as whole:
        assert list(whole) == epoch(1)
        iterator = iter(whole)
        first = whole.state_dict()
        found = [next(iterator) for _ in range(50)]
        middle = whole.state_dict()
        assert found + list(iterator) == epoch(2)
    for state, at in ((first, 0), (middle, 50)):
        assert resumed(made(), state, 2) == [epoch(2)[at:], epoch(3)]


def test_an_error_at_the_beginning_of_a_later_epoch_is_raised_although_its_snapshot_is_awaited() -> None:
    class Failing(Counting):
        def __iter__(self) -> Iterator[int]:
            if self.epochs == 2:
                raise LookupError("the second epoch fails")
            return super().__iter__()

    pipe = Failing(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch()
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as whole:
        assert list(whole) == [100 + item for item in range(6)]
        with pytest.raises(LookupError, match="the second epoch fails"):
            list(whole)
        assert list(whole) == [300 + item for item in range(6)]


def test_an_empty_epoch_ends_while_its_snapshot_is_awaited() -> None:
    class Once(Counting):
        def __iter__(self) -> Iterator[int]:
            return super().__iter__() if self.epochs != 2 else iter(())

    pipe = Once(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch()
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as whole:
        assert [list(whole) for _ in range(3)] == [[100 + i for i in range(6)], [], [300 + i for i in range(6)]]


class SlowToBegin(IterDataPipe[int]):
    """A user-defined pipe that sleeps in `__iter__`, except in the first epoch."""

    def __init__(self, source: Any, seconds: float) -> None:
        self.source, self.seconds, self.epochs = source, seconds, 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        time.sleep(self.seconds if self.epochs > 1 else 0)
        return iter(self.source)


def slow_loader(seconds: float, dispatched: bool, **options: Any) -> DataLoader2[Any]:
    """Returns a loader over items that a pipe chooses with its own seed, so that each epoch has different items."""
    drawn: Any = SampleMultiplexer({IterableWrapper(range(8)): 1, IterableWrapper(range(8, 16)): 1}, seed=3)
    if dispatched:
        pipe = SlowToBegin(drawn, seconds).sharding_round_robin_dispatch()
    else:
        pipe = SlowToBegin(drawn.sharding_filter(), seconds)
    stall = options.pop("stall_warning", None)
    service = MultiProcessingReadingService(2, "fork", **options)
    return DataLoader2(pipe, reading_service=service, stall_warning=stall)


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_state_is_exact_even_if_an_epoch_takes_long_to_begin(dispatched: bool) -> None:
    loader = slow_loader(1.5, dispatched)
    list(loader)
    _, state, rest = continued(loader, 0)
    assert resumed(slow_loader(1.5, dispatched), state) == [rest]  # the first epoch of a loader begins without a delay


@pytest.mark.parametrize(
    ("dispatched", "waits"), [(False, ", which is running"), (True, ", which waits for the dispatching process")]
)
def test_an_epoch_that_does_not_begin_times_out_like_an_item(dispatched: bool, waits: str) -> None:
    with slow_loader(1000.0, dispatched, timeout=1.0, stall_warning=0.3) as loader:
        iterator = iter(loader)
        wait_for(lambda: sum(worker.items for worker in loader.stats().workers) == 16)
        list(iterator)
        with pytest.warns(StallWarning, match="main waits for worker process 0" + waits):
            iterator = iter(loader)
        with pytest.raises(
            RuntimeError, match="SampleMultiplexer keeps a state from epoch to epoch, and no snapshot of"
        ):
            loader.state_dict()
        with (
            warnings.catch_warnings(),
            pytest.raises(TimeoutError, match="no item came from worker process 0 within 1 s"),
        ):
            warnings.simplefilter("ignore", StallWarning)
            next(iterator)


def test_a_loader_that_waits_for_an_epoch_to_begin_is_shut_down_by_another_thread() -> None:
    loader = slow_loader(1000.0, False)
    list(loader)
    ended = threading.Timer(0.3, loader.shutdown)
    ended.start()
    with contextlib.suppress(RuntimeError):
        list(loader)
    ended.join()


class ReadsTwiceAtOnce(IterDataPipe[int]):
    """A pipe that reads its dispatched items in two passes before it yields an item, so that no snapshot is taken
    between the passes.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return iter([*self.source, *self.source])


def test_lasting_state_of_the_dispatching_process_is_saved_although_no_worker_sends_a_snapshot() -> None:
    def made() -> DataLoader2[Any]:
        pipe = ReadsTwiceAtOnce(Counting(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch())
        return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork"))

    expected = epochs_of(made(), 5)
    with made() as whole:
        for epoch in range(3):
            iterator = iter(whole)
            states = [whole.state_dict()]
            for _ in iterator:
                states.append(whole.state_dict())
            for at, state in list(enumerate(states))[::6]:
                assert resumed(made(), state, 2) == [expected[epoch][at:], expected[epoch + 1]], (epoch, at)


class CountingItsEnds(IterDataPipe[int]):
    """A user-defined pipe that counts its complete passes. Snapshots are rare, because saving the state of this pipe is
    slow.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.ends = source, 0

    def reset(self) -> None:
        """Keeps the number, which is the state of this pipe between passes."""

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            time.sleep(0.004)
            yield 100 * self.ends + item
        self.ends += 1

    def state_dict(self) -> int:
        time.sleep(0.05)
        return self.ends

    def load_state_dict(self, ends: int) -> None:
        self.ends = ends


class HeldBack(IterDataPipe[int]):
    """A pipe without a state, which reads all items of its source before it yields them."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.source))


BEHIND_THE_END: dict[str, Callable[[Any], Any]] = {
    "its reader goes on": lambda dealt: dealt.shuffle(buffer_size=100),
    "its reader has ended": lambda dealt: dealt.header(40).shuffle(buffer_size=100),
    "its reader begins anew": lambda dealt: HeldBack(dealt),
    "it is read twice": lambda dealt: dealt.shuffle(buffer_size=100).cycle(2),
    "beside a pipe that begins anew": lambda dealt: HeldBack(IterableWrapper(range(9))).zip(dealt.shuffle()),
}


@pytest.mark.parametrize("behind", BEHIND_THE_END)
def test_work_at_the_end_of_the_dispatching_process_is_done_even_if_workers_resume_after_it(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 20.0)

    def made(state: State | None = None) -> DataLoader2[Any]:
        dealt = CountingItsEnds(IterableWrapper(range(13))).sharding_round_robin_dispatch()
        service = MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=2)
        return begun(DataLoader2(BEHIND_THE_END[behind](dealt), reading_service=service), state, 1)

    expected = epochs_of(made(), 5)
    states: dict[tuple[int, int], State] = {}
    with made() as whole:
        for epoch in range(2):
            for at, _ in enumerate(whole, 1):
                time.sleep(0.005)  # during the sleep, the main process can request states from workers
                states[epoch, at] = whole.state_dict()
    length = len(expected[0])
    for epoch, at in [(0, length), (1, length - 2)]:
        state = states[epoch, at]
        with made(state) as again:
            assert list(again) == expected[epoch][at:], (epoch, at)
            between = again.state_dict()
            assert list(again) == expected[epoch + 1], (epoch, at)
        assert epochs_of(made(between)) == expected[epoch + 1 : epoch + 3], (epoch, at, "saved again")


def test_an_epoch_that_interrupts_the_wait_for_an_end_starts_again() -> None:
    def check() -> None:
        read = 0

        class Interrupted(BaseException):
            pass

        def share() -> tuple[int, tuple[int, int]]:
            return min(read, 1), (read, 0)

        def dealt() -> Iterator[int]:
            nonlocal read
            read = 0
            while read < 7:
                read += 1
                yield read

        def interrupted() -> Iterator[int]:
            raise Interrupted

        def program(opens: Callable[[], Iterator[int]]) -> GraphProgram:
            made = GraphProgram(DispatchedSource().shuffle(buffer_size=100), None, None, [Shard(0, 1)])
            made.prepare(ChildInfo(0, 1, False, opens, share))
            made.begin_epoch(seeds, None)
            return made

        seeds = SeedGenerator(3).exported()
        whole = program(dealt)
        items = list(whole.go_on_from(None))
        assert sorted(items) == list(range(1, 8))
        begun = program(dealt)
        assert next(begun.go_on_from(None)) == items[0]
        snapshot = begun.snapshot()
        assert snapshot is not None
        assert snapshot[:2] == (1, (7, 0)), "all of its share was read"

        again = program(interrupted)
        with pytest.raises(Interrupted):
            again.go_on_from(snapshot[2])
        again.datapipe.datapipe.open_stream = dealt
        again.begin_epoch(seeds, None)
        assert list(again.go_on_from(None)) == items

        again = program(lambda: iter(()))
        assert list(again.go_on_from(snapshot[2])) == items[1:]
        again = program(dealt)
        with pytest.raises(RuntimeError, match="the dispatching process deals out more items"):
            again.go_on_from(snapshot[2])

    check_in_forked_child(check)
