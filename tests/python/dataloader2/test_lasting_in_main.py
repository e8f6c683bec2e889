"""State that pipes in the main process keep between epochs is part of the loader's states in later epochs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipes_table import ROWS
from random_graphs.users import ByHand, NoState, Unstated, unpinned
from resuming import begun, continued, epochs_of
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, SampleMultiplexer

Pipe = Any


def in_main() -> Pipe:
    pipe = IterableWrapper(range(12)).shuffle(buffer_size=3).sharding_filter()
    return pipe.pin_memory(pin_memory_fn=unpinned)


def fails_at_nine(item: int) -> int:
    if item == 9:
        raise ValueError("nine")
    return item


PIPES: dict[str, Callable[[], Pipe]] = {
    "cache": lambda: in_main().in_memory_cache(),
    "cache of batches": lambda: in_main().batch(2).in_memory_cache().unbatch(),
    "cache and prefetch": lambda: in_main().in_memory_cache().prefetch(2),
    "cache below a random pipe": lambda: in_main().in_memory_cache().shuffle(buffer_size=3),
    "user's pipe": lambda: ByHand(in_main()),
    "user's pipe that begins at once": lambda: CountsEpochs(in_main()),
    "cut off": lambda: ByHand(in_main()).header(5),
}
each_pipe = pytest.mark.parametrize("build", PIPES.values(), ids=PIPES)
pytestmark = pytest.mark.filterwarnings("ignore:The length of this HeaderIterDataPipe")


def loader_of(pipe: Pipe, workers: int = 2, state: dict[str, Any] | None = None) -> DataLoader2[Any]:
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork")), state)


@each_pipe
def test_lasting_state_of_pipes_in_the_main_process_is_in_the_states_of_every_moment(build: Callable[[], Pipe]) -> None:
    with loader_of(build()) as loader:
        whole, states = [], {}
        for epoch in range(4):
            iterator, items = iter(loader), list[Any]()
            states[epoch, 0] = loader.state_dict()
            for item in iterator:
                items.append(item)
                states[epoch, len(items)] = loader.state_dict()
            states[epoch + 1, -1] = loader.state_dict()
            whole.append(items)
    for epoch, at in [(1, -1), (1, 4), (2, 0)]:
        found = epochs_of(loader_of(build(), state=states[epoch, at]))
        assert found == [whole[epoch][max(at, 0) :], whole[epoch + 1]], (epoch, at)


def drawn(item: int) -> bool:
    return random.random() < 0.5


@pytest.mark.parametrize("dispatched", [False, True])
def test_workers_end_an_epoch_whose_last_items_the_main_process_had_read_ahead(dispatched: bool) -> None:
    """Although the main process requests no further item, the workers must finish the epoch and update the state that
    they keep."""

    (caches,) = (row for row in ROWS if row.name == "on_disk_caches_in_turn")  # the pipes of this row read ahead

    def build() -> Pipe:
        pipe = IterableWrapper(range(30)).filter(drawn)
        pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
        pipe = pipe.in_memory_cache().pin_memory(pin_memory_fn=unpinned)
        return caches.build(lambda: pipe, **caches.example)

    with loader_of(build()) as loader:
        first, states = [], []
        for item in loader:
            first.append(item)
            states.append(loader.state_dict())
        states.append(loader.state_dict())
        later = [list(loader), list(loader)]
    for at in (len(first) // 2, len(first), len(first) + 1):
        with loader_of(build(), state=states[at - 1]) as loader:
            if at <= len(first):
                assert list(loader) == first[at:], at
            behind = loader.state_dict()
            assert [list(loader), list(loader)] == later, at
        assert epochs_of(loader_of(build(), state=behind)) == later, f"{at}, and a state at the end"


OVER_CHILDREN: dict[str, Callable[[Pipe], Pipe]] = {
    "nothing": lambda pipe: pipe,
    "a pipe that drops items": NoState,
    "a user's pipe": ByHand,
    "a cache": lambda pipe: pipe.in_memory_cache(),
}


@pytest.mark.parametrize("over", OVER_CHILDREN.values(), ids=OVER_CHILDREN)
def test_a_loader_whose_items_were_all_read_ahead_ends_and_continues_with_the_next_epochs(
    over: Callable[[Pipe], Pipe],
) -> None:
    """While the second child of `fork` is read, all items of the workers are already buffered in the main process."""

    def build() -> Pipe:
        pipe = SampleMultiplexer({IterableWrapper(range(4)): 1, IterableWrapper(range(4, 6)): 1}, seed=3)
        first, second = pipe.sharding_filter().pin_memory(pin_memory_fn=unpinned).fork(2)
        return over(first.concat(second))

    with loader_of(build()) as loader:
        whole, states = [], []
        for _ in range(4):
            items = []
            for item in loader:
                items.append(item)
                states.append((len(whole), len(items), loader.state_dict()))
            whole.append(items)
    for epoch, at, state in states[2 : 2 * len(whole[0]) : 9]:
        with loader_of(build(), state=state) as loader:
            assert list(loader) == whole[epoch][at:], (epoch, at)
            behind = loader.state_dict()
        assert epochs_of(loader_of(build(), state=behind)) == whole[epoch + 1 : epoch + 3], (epoch, at)


def plus_one(item: int) -> int:
    return item + 1


def is_small(item: int) -> bool:
    return item < 6


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_state_at_the_end_is_final_although_the_main_process_drops_the_last_items(one_by_one: bool) -> None:
    """The main process may take the last snapshot of its pipes before these pipes have read and dropped the last
    items."""

    def build() -> Pipe:
        pipe = SampleMultiplexer({IterableWrapper(range(5)): 1, IterableWrapper(range(5, 12)): 1}, seed=3)
        return pipe.sharding_filter().pin_memory(pin_memory_fn=unpinned).filter(is_small)

    with loader_of(build()) as loader:
        for _ in loader:
            if one_by_one:
                loader.state_dict()
        state, expected = loader.state_dict(), [list(loader), list(loader)]
    for _ in range(2):
        with loader_of(build(), state=state) as loader:
            iter(loader)
            again = loader.state_dict()
            assert [list(loader), list(loader)] == expected
        assert epochs_of(loader_of(build(), state=again)) == expected
        state = again


def test_a_replay_in_the_main_process_begins_where_the_workers_of_the_loaded_run_began() -> None:
    def build() -> Pipe:
        pipe = IterableWrapper(range(6)).sharding_filter().pin_memory(pin_memory_fn=unpinned)
        first, second = pipe.shuffle(buffer_size=3).fork(2)
        return first.map(plus_one).concat(Unstated(second)).map(plus_one)

    with loader_of(build()) as loader:
        expected = list(loader)
    for at in range(0, len(expected), 4):
        with loader_of(build()) as loader:
            iterator = iter(loader)
            # During the sleep, a thread reads the first item. The loader must still be able to save the state at the
            # beginning of the epoch.
            time.sleep(0.02)
            loader.state_dict()
            assert [next(iterator) for _ in range(at)] == expected[:at]
            state = loader.state_dict()
        for _ in range(2):
            with loader_of(build(), state=state) as loader:
                iter(loader)
                state = loader.state_dict()
                assert list(loader) == expected[at:], at


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_pipe_of_the_main_process_that_reads_the_workers_items_several_times_resumes_between_two_passes(
    dispatched: bool,
) -> None:
    def build() -> Pipe:
        pipe = IterableWrapper(range(6))
        pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
        return pipe.map(plus_one).pin_memory(pin_memory_fn=unpinned).prefetch(3).cycle(3)

    expected = 3 * list(range(1, 7))
    with loader_of(build()) as loader:
        iterator, states = iter(loader), []
        for item in expected:
            assert next(iterator) == item
            time.sleep(0.02)  # during the sleep, the thread reads ahead to the end of a pass
            states.append(loader.state_dict())
    for at in (2, 5, 12, 17):  # positions within a pass, before and at the end of the pass, and before the last item
        state = states[at - 1]
        with loader_of(build(), state=state) as loader:
            again = loader.state_dict() if at % 2 else None
            assert [list(loader), list(loader)] == [expected[at:], expected], at
        if again is not None:
            with loader_of(build(), state=again) as loader:
                assert list(loader) == expected[at:], at


@each_pipe
def test_lasting_state_is_kept_with_another_number_of_workers_in_the_next_epoch(build: Callable[[], Pipe]) -> None:
    with loader_of(build()) as loader:
        list(loader)
        state = loader.state_dict()
        expected = list(loader)
    [found] = epochs_of(loader_of(build(), 3, state), 1)
    if build is PIPES["cache"] or build is PIPES["cache of batches"]:
        assert found == expected
    else:
        assert len(found) == len(expected)


class CountsEpochs(IterDataPipe[int]):
    """A user-defined pipe that begins to read its source in `iter()`, before its first item is requested."""

    def __init__(self, source_datapipe: Pipe) -> None:
        self.source_datapipe, self.epoch = source_datapipe, 0

    def reset(self) -> None:
        self.epoch += 1

    def __iter__(self) -> Iterator[int]:
        return map(self.epoch.__add__, self.source_datapipe)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch = state_dict["epoch"]


@pytest.mark.parametrize("kind", [ByHand, CountsEpochs])
def test_a_state_after_an_error_begins_the_next_epoch(kind: Any) -> None:
    def until_nine(loader: DataLoader2[Any]) -> list[Any]:
        items: list[Any] = []
        with pytest.raises(ValueError, match="nine"):
            items.extend(loader)
        return items

    with loader_of(kind(in_main().map(fails_at_nine))) as loader:
        until_nine(loader)
        state = loader.state_dict()
        expected = [until_nine(loader), until_nine(loader)]
    with loader_of(kind(in_main().map(fails_at_nine)), state=state) as loader:
        assert [until_nine(loader), until_nine(loader)] == expected


def test_it_is_refused_if_the_main_process_runs_the_whole_pipeline() -> None:
    with loader_of(PIPES["cache"]()) as loader:
        list(loader)
        state = loader.state_dict()
    with DataLoader2(PIPES["cache"](), reading_service=InProcessReadingService()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="worker processes"):
            list(loader)


# -- state kept in the workers -----------------------------------------------------------------------------------------


def drawn_by_its_own_seed(dispatched: bool) -> Pipe:
    """Returns a pipeline that yields a new order in each epoch and pass, because a pipe keeps its random state.

    The pipes from `pin_memory` on run in the main process.
    """
    pipe: Pipe = SampleMultiplexer({IterableWrapper(range(6)): 1, IterableWrapper(range(6, 12)): 1}, seed=3)
    pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
    return pipe.pin_memory(pin_memory_fn=unpinned)


def whole_tails(build: Callable[[], Pipe], state: dict[str, Any], epochs: int = 2) -> list[list[Any]]:
    return epochs_of(loader_of(build(), state=state), epochs)


@pytest.mark.parametrize("dispatched", [False, True])
def test_passes_of_a_first_epoch_do_not_count_as_epochs(dispatched: bool) -> None:
    """In each epoch, pipes in the main process read the items of the workers in three passes."""

    def build() -> Pipe:
        parts = drawn_by_its_own_seed(dispatched).random_split({"a": 1, "b": 1, "c": 1}, total_length=12, seed=1)
        return parts[0].concat(*parts[1:]).map(plus_one)

    expected = epochs_of(loader_of(build()), 3)
    assert len(set(map(tuple, expected))) == 3
    with loader_of(build()) as loader:
        iterator = iter(loader)
        first = loader.state_dict()
        assert list(iterator) == expected[0]
        ended = loader.state_dict()
    assert whole_tails(build, ended) == expected[1:]
    with loader_of(build(), state=first) as loader:
        assert list(loader) == expected[0]
        ended = loader.state_dict()
    assert whole_tails(build, ended) == expected[1:]


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_position_in_the_first_of_two_passes_is_known_in_the_second_one(dispatched: bool) -> None:
    """No pipe has kept state before the first epoch, so the loader need not record the items of the first pass."""
    pipe = drawn_by_its_own_seed(dispatched).cycle(2).map(plus_one)
    with loader_of(pipe) as loader:
        state, whole = loader.state_dict(), list(loader)
    with loader_of(pipe) as loader:
        iter(loader)
        loader.load_state_dict(state)
        reading = iter(loader)
        loader.state_dict()
        got = [next(reading) for _ in range(len(whole) // 2 + 2)]
        assert got == whole[: len(got)]
        for ago in range(0, len(got) + 1, 5):
            at = len(got) - ago
            with loader_of(pipe, state=loader.state_dict(items_ago=ago)) as other:
                assert list(other) == whole[at:], at


@pytest.mark.parametrize("dispatched", [False, True])
def test_an_epoch_ends_unread_if_a_full_cache_makes_the_workers_unnecessary(dispatched: bool) -> None:
    def build() -> Pipe:
        return drawn_by_its_own_seed(dispatched).in_memory_cache().map(plus_one)

    with loader_of(build()) as loader:
        first = list(loader)
        for _ in range(3):
            assert list(loader) == first
            state = loader.state_dict()
            assert whole_tails(build, state) == [first, first]


class ReadsAtOnce(IterDataPipe[int]):
    """A user-defined pipe that reads the first item of its source before an item is requested."""

    def __init__(self, source_datapipe: Pipe) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[int]:
        source = iter(self.source_datapipe)
        first = [next(source)]
        return itertools.chain(first, source)


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_state_of_a_later_epoch_whose_first_item_the_main_process_has_read_ahead_resumes_exactly(
    dispatched: bool,
) -> None:
    def build() -> Pipe:
        return ReadsAtOnce(ByHand(drawn_by_its_own_seed(dispatched)))

    with loader_of(build()) as loader:
        states = []
        for _ in range(3):
            iterator = iter(loader)
            states.append(loader.state_dict())
            list(iterator)
    expected = epochs_of(loader_of(build()), 4)
    for epoch, state in enumerate(states):
        assert whole_tails(build, state) == expected[epoch : epoch + 2]


@pytest.mark.parametrize("dispatched", [False, True])
def test_the_end_of_a_resumed_epoch_that_needs_no_more_items_is_the_workers_end_too(dispatched: bool) -> None:
    """The loader must run the workers' epoch to its end, although the main process needs no more items of this
    epoch."""

    def build() -> Pipe:
        return drawn_by_its_own_seed(dispatched).map(plus_one).map_batches(list, batch_size=11)

    expected = epochs_of(loader_of(build()))
    with loader_of(build()) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(11)] == expected[0][:11]
        time.sleep(0.1)  # during the sleep, a thread takes the last item, but its buffer has no space for the end
        state = loader.state_dict()
    with loader_of(build(), state=state) as loader:
        assert next(iter(loader)) == expected[0][11]  # this item is the last batch, which is shorter than the others
        state = loader.state_dict()
    assert whole_tails(build, state) == [[], expected[1]]


# -- threads that read in the main process -----------------------------------------------------------------------------


def slowly(item: int) -> int:
    time.sleep(0.005)
    return item


class BeginsSlowly(IterDataPipe[int]):
    one_to_one = True

    def __init__(self, source_datapipe: Pipe) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.1)
        yield from self.source_datapipe


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("holds_more", [False, True])
def test_items_that_a_thread_takes_while_a_state_is_saved_are_in_the_remaining_items(
    holds_more: bool, dispatched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Pipe:
        pipe = IterableWrapper(range(40))
        pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
        pipe = pipe.map(slowly).pin_memory(pin_memory_fn=unpinned)
        return pipe.shuffle(buffer_size=3) if holds_more else pipe

    with loader_of(build()) as loader:
        expected = list(loader)
    position = WorkerOutput.position

    def position_late(*arguments: Any) -> Any:
        time.sleep(0.02)
        return position(*arguments)

    monkeypatch.setattr(WorkerOutput, "position", position_late)
    with loader_of(build()) as loader:
        iterator = iter(loader)
        states = [(at, next(iterator), loader.state_dict())[::2] for at in range(1, 12)]
    for at, state in states[::5]:
        assert whole_tails(build, state, 1) == [expected[at:]], at


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_second_pass_counts_from_its_own_beginning_in_a_loader_that_resumed_in_the_first(dispatched: bool) -> None:
    def build() -> Pipe:
        pipe = drawn_by_its_own_seed(dispatched)
        return pipe.concat(pipe).shuffle(buffer_size=2)

    head, first, rest = continued(loader_of(build()), 6)
    expected = head + rest
    with loader_of(build(), state=first) as loader:
        iterator = iter(loader)
        states = []
        for at in range(6, len(expected)):
            assert next(iterator) == expected[at]
            states.append((at + 1, loader.state_dict()))
    for at, state in states[::5]:
        assert whole_tails(build, state, 1) == [expected[at:]], at


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_pass_that_a_thread_has_begun_does_not_count_as_the_epoch_s_beginning(dispatched: bool) -> None:
    def build() -> Pipe:
        pipe: Pipe = SampleMultiplexer({IterableWrapper(range(3)): 1, IterableWrapper(range(3, 6)): 1}, seed=3)
        if dispatched:
            pipe = BeginsSlowly(pipe).sharding_round_robin_dispatch()
        else:
            pipe = BeginsSlowly(pipe.sharding_filter())
        pipe = pipe.pin_memory(pin_memory_fn=unpinned)
        return Unstated(pipe.concat(pipe, pipe)).prefetch(2)

    with loader_of(build()) as loader:
        expected = list(loader)
    with loader_of(build()) as loader:
        iterator, states = iter(loader), []
        for at, item in enumerate(expected, 1):
            assert next(iterator) == item
            time.sleep(0.03)  # during the sleep, the thread begins the next pass, which takes 0.1 s
            states.append((at, loader.state_dict()))
    for at, state in states[::5]:
        assert whole_tails(build, state, 1) == [expected[at:]], at


# -- services without workers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [None, InProcessReadingService], ids=["no service", "in process"])
def test_a_replay_at_the_end_fills_a_cache_with_the_same_random_items(service: Any) -> None:
    torch_data = pytest.importorskip("torch.utils.data", reason="its pipes are replayed at the end")

    def made(state: dict[str, Any] | None = None) -> DataLoader2[Any]:
        pipe: Pipe = IterableWrapper(range(12)).shuffle(buffer_size=3).cycle(2).filter(drawn).in_memory_cache()
        pipe = torch_data.datapipes.iter.Mapper(pipe, plus_one)
        random.seed(5)
        return begun(DataLoader2(pipe, reading_service=None if service is None else service()), state)

    with made() as loader:
        first, states = list(loader), [loader.state_dict()]
        assert list(loader) == first
        states.append(loader.state_dict())
    for state in states:
        with made(state) as loader:
            random.seed(7)
            assert list(loader) == first
            again = loader.state_dict()
        assert epochs_of(made(again)) == [first, first]
