"""The states of a loader contain the state that child processes keep between epochs."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hanging import kill_only_hung
from random_graphs.users import Passing
from resuming import begun, check_resumes, continued, resumed
from torchdata._engine import snapshots
from torchdata._engine.processes import shutdown
from torchdata._engine.workers.program import ChildInfo
from torchdata._observe.outside.stalls import StallWarning
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph.cutting import DispatchedSource
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.program import GraphProgram
from torchdata.dataloader2.state.position import Shard
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, SampleMultiplexer
from waiting import check_in_forked_child, wait_for


def two_workers(**options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(2, "fork", **options)


def loader(workers: int, state: Any = None) -> DataLoader2[Any]:
    kept = IterableWrapper(range(30)).filter(lambda item: random.random() < 0.5)
    pipe = kept.in_memory_cache().sharding_round_robin_dispatch()
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork")), state)


@pytest.mark.parametrize("workers", [1, 3])
def test_states_of_later_epochs_contain_a_cache_before_the_dispatch(workers: int) -> None:
    check_resumes(lambda state: loader(workers, state), (1, 0), (1, 7), (2, 3))


class Counting(IterDataPipe[int]):
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
    def __init__(self, source: Any, ever: bool) -> None:
        self.source, self.ever = source, ever

    def __iter__(self) -> Iterator[int]:
        yield from range(1000, 1040)
        if self.ever:
            yield from self.source


def test_a_user_s_pipe_resumes_from_the_first_moment_of_an_epoch_after_an_abandoned_one() -> None:
    def made() -> DataLoader2[Any]:
        pipe = Counting(IterableWrapper(range(9)), 0.05).sharding_round_robin_dispatch()
        return DataLoader2(pipe, reading_service=two_workers(on_worker_exit="restart"))

    whole = made()
    assert list(itertools.islice(whole, 5)) == list(range(100, 105))
    _, state, items = continued(whole, 0)
    assert resumed(made(), state) == [items] == [[200 + item for item in range(9)]]


@pytest.mark.parametrize("ever", [True, False])
def test_workers_that_read_dispatched_items_late_or_never_do_not_delay_a_state(ever: bool) -> None:
    def made(state: Any) -> DataLoader2[Any]:
        pipe = Silent(Counting(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch(), ever)
        return begun(DataLoader2(pipe, reading_service=two_workers(worker_prefetch_cnt=1)), state)

    own = [item for item in range(1000, 1040) for _ in range(2)]
    epochs = check_resumes(made, (1, 0), (1, 50))
    assert epochs == [own + [100 * number + item for item in range(6)] * ever for number in range(1, 5)]


class BeginsOtherwise(Counting):
    def __init__(self, source: Any, second: Callable[[], Iterator[int]]) -> None:
        super().__init__(source, 0.0)
        self.second = second

    def __iter__(self) -> Iterator[int]:
        return self.second() if self.epochs == 2 else super().__iter__()


def fails() -> Iterator[int]:
    raise LookupError("the second epoch fails")


@pytest.mark.parametrize("second", [fails, lambda: iter(())], ids=["an error", "no item"])
def test_an_epoch_without_items_ends_although_its_snapshot_is_awaited(second: Callable[[], Iterator[int]]) -> None:
    pipe = BeginsOtherwise(IterableWrapper(range(6)), second).sharding_round_robin_dispatch()
    with DataLoader2(pipe, reading_service=two_workers()) as whole:
        assert list(whole) == [100 + item for item in range(6)]
        if second is fails:
            with pytest.raises(LookupError, match="the second epoch fails"):
                list(whole)
        else:
            assert list(whole) == []
        assert list(whole) == [300 + item for item in range(6)]


class SlowToBegin(IterDataPipe[int]):
    def __init__(self, source: Any, seconds: float) -> None:
        self.source, self.seconds, self.epochs = source, seconds, 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        time.sleep(self.seconds if self.epochs > 1 else 0)
        return iter(self.source)


def slow_loader(seconds: float, dispatched: bool, **options: Any) -> DataLoader2[Any]:
    drawn: Any = SampleMultiplexer({IterableWrapper(range(8)): 1, IterableWrapper(range(8, 16)): 1}, seed=3)
    if dispatched:
        pipe = SlowToBegin(drawn, seconds).sharding_round_robin_dispatch()
    else:
        pipe = SlowToBegin(drawn.sharding_filter(), seconds)
    stall = options.pop("stall_warning", None)
    return DataLoader2(pipe, reading_service=two_workers(**options), stall_warning=stall)


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_state_is_exact_even_if_an_epoch_takes_long_to_begin(dispatched: bool) -> None:
    loader = slow_loader(1.5, dispatched)
    list(loader)
    _, state, rest = continued(loader, 0)
    assert resumed(slow_loader(1.5, dispatched), state) == [rest]


@pytest.mark.parametrize(
    ("dispatched", "waits"), [(False, ", which is running"), (True, ", which waits for the dispatching process")]
)
def test_an_epoch_that_does_not_begin_times_out_like_an_item(
    dispatched: bool, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "ASKED", 0.1)
    with slow_loader(1000.0, dispatched, timeout=1.0, stall_warning=0.3) as loader:
        iterator = iter(loader)
        wait_for(lambda: sum(worker.items for worker in loader.stats().workers) == 16)
        list(iterator)
        with pytest.warns(StallWarning, match="main waits for worker process 0" + waits):
            iterator = iter(loader)
        with pytest.raises(
            RuntimeError, match="SampleMultiplexer keeps a state from epoch to epoch, but no snapshot of"
        ):
            loader.state_dict()
        with (
            warnings.catch_warnings(),
            pytest.raises(TimeoutError, match="no item came from worker process 0 within 1 s"),
        ):
            warnings.simplefilter("ignore", StallWarning)
            next(iterator)


def test_a_loader_that_waits_for_an_epoch_to_begin_is_shut_down_by_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutdown, "ASKED", 0.1)
    loader = slow_loader(1000.0, False)
    list(loader)
    ended = threading.Timer(0.3, loader.shutdown)
    ended.start()
    with contextlib.suppress(RuntimeError):
        list(loader)
    ended.join()


class ReadsTwiceAtOnce(Passing):
    def __iter__(self) -> Iterator[int]:
        return iter([*self.source, *self.source])


def test_lasting_state_of_the_dispatching_process_is_saved_although_no_worker_sends_a_snapshot() -> None:
    def made(state: Any) -> DataLoader2[Any]:
        pipe = ReadsTwiceAtOnce(Counting(IterableWrapper(range(6)), 0.0).sharding_round_robin_dispatch())
        return begun(DataLoader2(pipe, reading_service=two_workers()), state)

    check_resumes(made, (0, 0), (1, 0), (1, 6), (2, -2))


class CountingItsEnds(IterDataPipe[int]):
    """A pipe that counts its complete iterations. Workers send few snapshots, because `state_dict` is slow."""

    def __init__(self, source: Any) -> None:
        self.source, self.ends = source, 0

    def reset(self) -> None:
        """Does not reset `ends`."""

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


class HeldBack(Passing):
    def __iter__(self) -> Iterator[int]:
        return iter(list(self.source))


AFTER_DISPATCHING: dict[str, Callable[[Any], Any]] = {
    "its reader goes on": lambda sent: sent.shuffle(buffer_size=100),
    "its reader has ended": lambda sent: sent.header(40).shuffle(buffer_size=100),
    "its reader begins anew": lambda sent: HeldBack(sent),
    "it is read twice": lambda sent: sent.shuffle(buffer_size=100).cycle(2),
    "zipped with a pipe that begins anew": lambda sent: HeldBack(IterableWrapper(range(9))).zip(sent.shuffle()),
}


@pytest.mark.parametrize("after", AFTER_DISPATCHING)
def test_work_at_the_end_of_the_dispatching_process_is_done_even_if_workers_resume_after_it(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 20.0)

    def made(state: Any) -> DataLoader2[Any]:
        sent = CountingItsEnds(IterableWrapper(range(13))).sharding_round_robin_dispatch()
        return begun(
            DataLoader2(AFTER_DISPATCHING[after](sent), reading_service=two_workers(worker_prefetch_cnt=2)), state
        )

    check_resumes(made, (0, -2), (1, -4), pause=0.005)


def test_an_epoch_that_interrupts_the_wait_for_an_end_starts_again() -> None:
    def check() -> None:
        read = 0

        class Interrupted(BaseException):
            pass

        def share() -> tuple[int, tuple[int, int]]:
            return min(read, 1), (read, 0)

        def sent() -> Iterator[int]:
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
        whole = program(sent)
        items = list(whole.resume_from(None))
        assert sorted(items) == list(range(1, 8))
        begun = program(sent)
        assert next(begun.resume_from(None)) == items[0]
        snapshot = begun.snapshot()
        assert snapshot is not None
        assert snapshot[:2] == (1, (7, 0)), "the worker has read all its items"

        again = program(interrupted)
        with pytest.raises(Interrupted):
            again.resume_from(snapshot[2])
        again.datapipe.datapipe.open_stream = sent
        again.begin_epoch(seeds, None)
        assert list(again.resume_from(None)) == items

        again = program(lambda: iter(()))
        assert list(again.resume_from(snapshot[2])) == items[1:]
        again = program(sent)
        with pytest.raises(RuntimeError, match="the dispatching process distributes more items"):
            again.resume_from(snapshot[2])

    check_in_forked_child(check)


def restarting(dispatches: bool, method: str) -> DataLoader2[Any]:
    pipe: Any = IterableWrapper(range(20))
    pipe = pipe.sharding_round_robin_dispatch() if dispatches else pipe.sharding_filter()
    service = MultiProcessingReadingService(
        3, method, timeout=0.5, on_timeout="restart", on_worker_exit="restart", worker_prefetch_cnt=0
    )
    return DataLoader2(pipe.map(int).in_memory_cache(), reading_service=service)


@pytest.mark.filterwarnings("ignore:.*worker process")
@pytest.mark.parametrize(
    ("number", "dispatches", "method"),
    [(signal.SIGSTOP, True, "fork"), (signal.SIGKILL, True, "fork"), (signal.SIGSTOP, False, "spawn")],
)
def test_a_state_can_be_taken_before_the_first_item_of_an_epoch_that_a_worker_has_not_begun(
    number: signal.Signals, dispatches: bool, method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill_only_hung(monkeypatch, tmp_path)
    with restarting(dispatches, method) as run:
        run.seed(3)
        assert sorted(run) == list(range(20))
        os.kill(run.reading_service._children.pids[1], number)
        epoch = iter(run)
        state = run.state_dict()
        assert sorted(epoch) == list(range(20))
    with restarting(dispatches, method) as other:
        other.load_state_dict(state)
        assert sorted(other) == sorted(other) == list(range(20))
