"""Iterables with a state resume in the same way in all loaders. No item is lost, repeated or read twice."""

import itertools
import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="nodes and StatefulDataLoader need PyTorch")

from torch.utils.data import SequentialSampler

import streams_of_users as streams
from node_sources import same
from node_streams import Stateless
from pipes_of_users import FirstFour
from restarted import pids_of
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.state import load_state, save_state
from torchdata.nodes import Header, Loader, MapStyleWrapper, ParallelMapper, Prefetcher
from torchdata.nodes import IterableWrapper as Node
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence

SIZE = 9
Make = Callable[[Any], Any]


def service(workers: int) -> MultiProcessingReadingService | None:
    return MultiProcessingReadingService(workers, multiprocessing_context="fork") if workers else None


def of_pipe(pipe: Any, workers: int = 0) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(pipe, reading_service=service(workers))
    loader.seed(7)
    return loader


MAIN: dict[str, Make] = {
    "wrapper": lambda stream: of_pipe(IterableWrapper(stream)),
    "wrapper without copies": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).map(same)),
    "shuffled": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).shuffle(buffer_size=4).batch(2)),
    "prefetched": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).prefetch(3)),
    "data set": lambda stream: DataLoader2.from_dataset(stream),
    "data set in batches": lambda stream: DataLoader2.from_dataset(stream, batch_size=2, collate_fn=same),
    "node": lambda stream: Loader(Node(stream)),
    "node with threads": lambda stream: Loader(ParallelMapper(Prefetcher(Node(stream), 2), same, 2)),
    "StatefulDataLoader": lambda stream: StatefulDataLoader(stream, batch_size=None),
    "StatefulDataLoader in batches": lambda stream: StatefulDataLoader(stream, batch_size=2, collate_fn=same),
}

WORKERS: dict[str, Make] = {
    "wrapper": lambda stream: of_pipe(IterableWrapper(stream).sharding_filter(), 2),
    "wrapper without copies": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).sharding_filter(), 2),
    "shuffled": lambda stream: of_pipe(
        IterableWrapper(stream, deepcopy=False).shuffle(buffer_size=4).sharding_filter(), 2
    ),
    "dispatched": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).sharding_round_robin_dispatch(), 2),
    "data set": lambda stream: DataLoader2.from_dataset(stream, num_workers=2),
    "StatefulDataLoader": lambda stream: StatefulDataLoader(
        stream, batch_size=None, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    ),
}


def end(loader: Any) -> None:
    if hasattr(loader, "shutdown"):
        loader.shutdown()


def state_of(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader.state_dict()))


class Reader:
    """Reads epochs of a loader step by step. Reading can stop between any two items, and between two epochs."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, None
        self.epochs: list[list[Any]] = []

    def step(self) -> None:
        if self.iterator is None:
            self.iterator = iter(self.loader)
            self.epochs.append([])
            return
        try:
            self.epochs[-1].append(next(self.iterator))
        except StopIteration:
            self.iterator = None

    def finish(self, epochs: int) -> list[list[Any]]:
        while len(self.epochs) < epochs or self.iterator is not None:
            self.step()
        end(self.loader)
        return self.epochs


def check_chains(make: Callable[[], Any], *chains: list[int]) -> None:
    whole = Reader(make()).finish(3)
    for stops in chains:
        assert chained(make, stops) == whole, stops


def chained(make: Callable[[], Any], stops: list[int]) -> list[list[Any]]:
    state, received, is_inside = None, list[list[Any]](), False
    for steps in [*stops, None]:
        reader = Reader(make())
        if state is not None:
            if isinstance(reader.loader, Loader):  # Without this, a loop after the last item would read the next epoch.
                reader.loader.restart_on_stop_iteration = not (is_inside and received[-1])
            reader.loader.load_state_dict(state)
        if is_inside:
            reader.epochs = [received.pop()]
            reader.iterator = iter(reader.loader)
        if steps is None:
            received += reader.finish(3 - len(received))
            break
        for _ in range(steps):
            reader.step()
        state, is_inside = state_of(reader.loader), reader.iterator is not None
        received += reader.epochs
        end(reader.loader)
    return received


#: Each loader is tested with half of the streams. Loaders must not call the method `NeedsArguments.state_dict`.
STREAMS = [*streams.STATEFUL, streams.NeedsArguments]
PAIRS = [(stream, name) for row, stream in enumerate(STREAMS) for name in [*MAIN][row % 2 :: 2]]


@pytest.mark.parametrize(("stream", "name"), PAIRS)
def test_a_chain_of_loaders_yields_each_item_once(stream: Any, name: str) -> None:
    chance = random.Random(f"{stream.__name__} {name}")
    chain = [chance.randrange(SIZE + 2), chance.randrange(SIZE + 2)]
    check_chains(lambda: MAIN[name](stream(SIZE)), [0], [SIZE + 1], [SIZE + 2, 1], chain)


@pytest.mark.parametrize(
    ("stream", "name"),
    [
        *zip(
            itertools.cycle([streams.CountsAtOnce, streams.BeginsAgain, streams.TakesAgain, streams.WalkedInOrder]),
            [*WORKERS] * 2,
            strict=False,
        )
    ],
)
def test_a_chain_of_loaders_with_workers_yields_each_item_once(stream: Any, name: str) -> None:
    chance = random.Random(f"{stream.__name__} {name}")
    check_chains(lambda: WORKERS[name](stream(SIZE)), [chance.randrange(SIZE + 3), chance.randrange(SIZE)])


PIPES: dict[str, Make] = {
    "alone": of_pipe,
    "batched": lambda pipe: of_pipe(pipe.batch(4).unbatch()),
    "shuffled": lambda pipe: of_pipe(pipe.shuffle(buffer_size=4).batch(2)),
    "prefetched": lambda pipe: of_pipe(pipe.prefetch(3)),
}

PIPES_IN_WORKERS: dict[str, Make] = {
    "batched": lambda pipe: of_pipe(pipe.batch(4).unbatch().sharding_filter(), 1),
    "divided": lambda pipe: of_pipe(pipe.sharding_filter().batch(2).unbatch(), 2),
    "split": lambda pipe: DataLoader2(pipe.batch(4).unbatch().sharding_filter(), reading_service=service(2), splits=3),
}


class OncePipe(streams.TakesOnce, IterDataPipe[Any]):
    pass


class CountingPipe(streams.CountsEpochs, IterDataPipe[Any]):
    pass


class CountingAtOncePipe(streams.CountsAtOnce, IterDataPipe[Any]):
    pass


class RepeatedPipe(streams.BeginsAgain, IterDataPipe[Any]):
    pass


class LivePipe(streams.LiveState, IterDataPipe[Any]):
    pass


class DrawingPipe(streams.Draws, IterDataPipe[Any]):
    pass


class ResumingPipe(streams.Resumes, IterDataPipe[Any]):
    pass


PIPES_WITH_STATES = [OncePipe, CountingPipe, CountingAtOncePipe, RepeatedPipe, LivePipe, DrawingPipe, ResumingPipe]


@pytest.mark.parametrize("name", PIPES)
@pytest.mark.parametrize("pipe", PIPES_WITH_STATES)
def test_a_chain_of_loaders_resumes_a_users_pipe_without_reset(pipe: Any, name: str) -> None:
    check_chains(lambda: PIPES[name](pipe(SIZE)), [0], [4], [SIZE, 0], [SIZE + 2, 1], [SIZE + 4, 3])


@pytest.mark.parametrize(
    ("pipe", "name"), [*zip(PIPES_WITH_STATES * 2, itertools.cycle(PIPES_IN_WORKERS), strict=False)]
)
def test_a_chain_of_loaders_with_workers_resumes_a_users_pipe_without_reset(pipe: Any, name: str) -> None:
    check_chains(lambda: PIPES_IN_WORKERS[name](pipe(SIZE)), [SIZE, 0])


def test_sources_of_a_pipe_that_repeats_its_end_begin_as_in_the_saved_run() -> None:
    check_chains(
        lambda: of_pipe(FirstFour(IterableWrapper(range(SIZE)).shuffle()).batch(3)), [2], [3], [3, 0], [4], [6, 0]
    )


HEADS: dict[str, Make] = {
    "wrapper": lambda stream: of_pipe(IterableWrapper(stream).header(4)),
    "wrapper without copies": lambda stream: of_pipe(IterableWrapper(stream, deepcopy=False).header(4)),
    "node": lambda stream: Loader(Header(Node(stream), 4)),
    "node that stays ended": lambda stream: Loader(Header(Node(stream), 4), restart_on_stop_iteration=False),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("stream", [*streams.STATEFUL, Stateless])
def test_an_epoch_that_is_cut_short_leaves_a_stream_where_the_saved_run_left_it(
    stream: Any, has_ended: bool, name: str
) -> None:
    loader = HEADS[name](stream(SIZE))
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    if has_ended:
        assert next(iterator, None) is None
    state = state_of(loader)
    expected = Reader(loader).finish(3)
    later = HEADS[name](stream(SIZE))
    later.load_state_dict(state)
    epochs = Reader(later).finish(4)
    assert (epochs[:3] if epochs[0] else epochs[1:]) == expected


@pytest.mark.parametrize(
    ("stream", "name"), [(stream, name) for stream, name in PAIRS if stream is not streams.NeedsArguments]
)
def test_items_before_the_position_are_not_read_again(stream: Any, name: str) -> None:
    assert 0 < reads_to_resume(lambda: MAIN[name](stream(100)), 40) <= 20


def reads_to_resume(make: Callable[[], Any], position: int) -> int:
    reader, later = Reader(make()), Reader(make())
    for _ in range(1 + position):
        reader.step()
    later.loader.load_state_dict(state_of(reader.loader))
    end(reader.loader)
    streams.reads.since()
    in_workers.value = 0
    later.step()
    later.step()
    end(later.loader)  # A running worker could still read items during the next count.
    return int(streams.reads.since() + in_workers.value)


in_workers = multiprocessing.get_context("fork").Value("q", 0)


class Counted(streams.TakesOnce):
    def item(self, number: int) -> int:
        with in_workers:
            in_workers.value += 1
        return number


class Numbers:
    def __len__(self) -> int:
        return 900

    __getitem__ = Counted.item


BY_INDEX: dict[str, Callable[[], Any]] = {
    "DataLoader2 over an index": lambda: DataLoader2.from_dataset(Numbers(), num_workers=2),
    "StatefulDataLoader over an index": lambda: StatefulDataLoader(
        Numbers(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    ),
    "node over an index": lambda: Loader(MapStyleWrapper(Numbers(), SequentialSampler(range(900)), num_workers=2)),
}


@pytest.mark.parametrize("name", [*WORKERS, *BY_INDEX])
def test_reads_of_workers_to_resume_do_not_grow_with_the_position(
    name: str, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cadence, "_COSTLY", 1e9)  # makes a StatefulDataLoader take a snapshot after each item, too
    make = BY_INDEX.get(name, lambda: WORKERS[name](Counted(900)))
    near, far = reads_to_resume(make, 100), reads_to_resume(make, 800)
    assert 0 < far <= near + 300  # workers read items ahead


class SlowAtFirst(IterDataPipe[int]):
    """An endless stream of numbers that takes 100 ms to save its first state, and saves later states quickly."""

    def __init__(self) -> None:
        self.at, self.saved = 0, 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            time.sleep(0.0005)
            yield self.at

    def state_dict(self) -> dict[str, int]:
        time.sleep(0.0 if self.saved else 0.1)
        self.saved += 1
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.at = state_dict["at"]


def test_a_slow_first_snapshot_does_not_delay_the_next_ones_for_long() -> None:
    positions = set()
    with DataLoader2(SlowAtFirst(), reading_service=service(1)) as loader:
        deadline = time.monotonic() + 15.0
        for _ in loader:
            [shard] = loader.state_dict()["iteration_state"]["workers"]["workers"]
            if shard["snapshot"] is not None:
                positions.add(shard["snapshot"][0][0])
            if len(positions) > 1 or time.monotonic() > deadline:
                break
    assert len(positions) > 1


def test_a_worker_that_is_killed_is_replaced_at_its_position_in_a_later_epoch() -> None:
    def pipe() -> Any:
        return IterableWrapper(streams.CountsEpochs(200), deepcopy=False).sharding_filter()

    whole = Reader(of_pipe(pipe(), 2)).finish(3)
    restarting = MultiProcessingReadingService(2, multiprocessing_context="fork", on_worker_exit="restart")
    loader: DataLoader2[Any] = DataLoader2(pipe(), reading_service=restarting)
    epochs: list[list[Any]] = []
    for _ in range(3):
        epochs.append([])
        iterator = iter(loader)
        epochs[-1] += [next(iterator) for _ in range(75)]
        os.kill(pids_of(loader)[0], signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="A new process replaced it"):
            epochs[-1] += list(iterator)
    loader.shutdown()
    assert epochs == whole


@pytest.mark.parametrize("stream", [streams.TakesOnce, streams.Walked])
def test_a_state_of_one_kind_of_stream_is_loaded_by_another_that_counts_items(stream: Any) -> None:
    for saving, loading in ((stream, Stateless), (Stateless, stream)):
        loader = of_pipe(IterableWrapper(saving(SIZE)))
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        other = of_pipe(IterableWrapper(loading(SIZE)))
        whole = list(of_pipe(IterableWrapper(loading(SIZE))))
        other.load_state_dict(state_of(loader), strict=False)
        assert list(other) == whole[4:]


def test_a_damaged_position_of_a_stream_is_refused_by_name() -> None:
    pipe = IterableWrapper(streams.TakesOnce(SIZE))
    next(iter(pipe))
    for damage in ({}, {"own": 1}, {"own": {}, "inner": None, "started": 1, "ended": False}, [1]):
        state = save_state(pipe, described=False)
        state["pipes"][0]["state"]["stream"] = damage
        with pytest.raises(ValueError, match="state of IterableWrapper is damaged"):
            load_state(IterableWrapper(streams.TakesOnce(SIZE)), state)


def test_a_stream_whose_state_raises_can_be_read() -> None:
    class Broken(streams.TakesOnce):
        def state_dict(self) -> Any:
            raise OSError("no state today")

    for deepcopy in (False, True):
        loader = of_pipe(IterableWrapper(Broken(SIZE), deepcopy=deepcopy))
        assert [list(loader), list(loader)] == [list(range(SIZE))] * 2
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        other = of_pipe(IterableWrapper(Broken(SIZE), deepcopy=deepcopy))
        with pytest.warns(RuntimeWarning, match="no state today"):
            other.load_state_dict(state_of(loader))
        assert list(other) == list(range(2, SIZE))


def test_the_indices_of_a_sequential_sampler_are_skipped_at_once() -> None:
    size = 1 << 40
    node = MapStyleWrapper(range(size), SequentialSampler(range(size)))
    loader = Loader(node)
    next(iter(loader))
    state = loader.state_dict()
    for part in parts_of(state):
        part.update({key: size - 2 for key in ("_num_yielded", "num_yielded") if key in part})
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert [next(iterator), next(iterator), next(iterator, None)] == [size - 2, size - 1, None]


def parts_of(state: Any) -> list[dict[str, Any]]:
    if not isinstance(state, dict):
        return []
    return [state, *(part for value in state.values() for part in parts_of(value))]
