"""State that pipes in the main process keep between epochs is part of the loader's states in later epochs."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipes_of_users import plus_one
from random_graphs.users import ByHand, NoState, Passing, Unstated, unpinned
from resuming import begun, check_resumes, continued, epochs_of, saved
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, SampleMultiplexer

Pipe = Any
Build = Callable[[], Pipe]


def in_main() -> Pipe:
    pipe = IterableWrapper(range(12)).shuffle(buffer_size=3).sharding_filter()
    return pipe.pin_memory(pin_memory_fn=unpinned)


def fails_at_nine(item: int) -> int:
    if item == 9:
        raise ValueError("nine")
    return item


def loader_of(pipe: Pipe, workers: int = 2, state: dict[str, Any] | None = None) -> DataLoader2[Any]:
    return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork")), state)


def epochs_from(build: Build, state: dict[str, Any], epochs: int = 2) -> list[list[Any]]:
    return epochs_of(loader_of(build(), state=state), epochs)


def check(build: Build, *moments: tuple[int, int], pause: float = 0.0) -> list[list[Any]]:
    return check_resumes(lambda state: loader_of(build(), state=state), *moments, pause=pause)


PIPES: dict[str, Build] = {
    "cache": lambda: in_main().in_memory_cache(),
    "cache of batches": lambda: in_main().batch(2).in_memory_cache().unbatch(),
    "cache and prefetch": lambda: in_main().in_memory_cache().prefetch(2),
    "cache below a random pipe": lambda: in_main().in_memory_cache().shuffle(buffer_size=3),
    "user's pipe": lambda: ByHand(in_main()),
    "user's pipe that begins at once": lambda: CountsEpochs(in_main()),
    "cut off": lambda: ByHand(in_main()).header(5),
}
pytestmark = pytest.mark.filterwarnings("ignore:The length of this HeaderIterDataPipe")


@pytest.mark.parametrize("build", PIPES.values(), ids=PIPES)
def test_lasting_state_of_pipes_in_the_main_process_is_in_the_states_of_every_moment(build: Build) -> None:
    check(build, (1, 4), (2, 0))


def drawn(item: int) -> bool:
    return random.random() < 0.5


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
    def build() -> Pipe:
        pipe = SampleMultiplexer({IterableWrapper(range(4)): 1, IterableWrapper(range(4, 6)): 1}, seed=3)
        first, second = pipe.sharding_filter().pin_memory(pin_memory_fn=unpinned).fork(2)
        return over(first.concat(second))

    check(build, (0, 3), (1, -4))


def is_early(item: int) -> bool:
    return item % 6 < 4


def test_a_state_at_the_end_is_final_although_the_main_process_drops_the_last_items() -> None:
    def build() -> Pipe:
        return drawn_by_its_own_seed(dispatched=False).filter(is_early)

    with loader_of(build()) as loader:
        list(loader)
        state, expected = loader.state_dict(), [list(loader), list(loader)]
    with loader_of(build(), state=state) as loader:
        iter(loader)
        again = loader.state_dict()
        assert [list(loader), list(loader)] == expected
    assert epochs_from(build, again) == expected


def test_a_replay_in_the_main_process_begins_where_the_workers_of_the_loaded_run_began() -> None:
    def build() -> Pipe:
        pipe = IterableWrapper(range(6)).sharding_filter().pin_memory(pin_memory_fn=unpinned)
        first, second = pipe.shuffle(buffer_size=3).fork(2)
        return first.map(plus_one).concat(Unstated(second)).map(plus_one)

    check(build, (0, 0), (0, 4), (0, 8), pause=0.02)


@pytest.mark.parametrize("kind", ["cache", "cache of batches", "cache and prefetch", "user's pipe"])
def test_lasting_state_is_kept_with_another_number_of_workers_in_the_next_epoch(kind: str) -> None:
    with loader_of(PIPES[kind]()) as loader:
        list(loader)
        state = loader.state_dict()
        expected = list(loader)
    [found] = epochs_of(loader_of(PIPES[kind](), 3, state), 1)
    assert found == expected if kind in ("cache", "cache of batches") else len(found) == len(expected)


class CountsEpochs(ByHand):
    def __iter__(self) -> Iterator[int]:
        return map(self.epoch.__add__, self.source_datapipe)


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


IN_WORKERS: dict[str, Build] = {
    "cache in workers": lambda: IterableWrapper(range(12)).shuffle().sharding_filter().in_memory_cache().batch(2),
    "user's pipe in workers": lambda: ByHand(IterableWrapper(range(12)).shuffle()).sharding_filter(),
    "both": lambda: ByHand(ByHand(IterableWrapper(range(12)).sharding_filter()).pin_memory(pin_memory_fn=unpinned)),
    "read ahead": lambda: ByHand(IterableWrapper(range(12)).sharding_filter()).pin_memory(pin_memory_fn=unpinned),
}


MOVES = [(0, 1), (0, 3), (None, 2), (1, 0), (1, None)]


@pytest.mark.parametrize(("number", "name"), [*enumerate(PIPES | IN_WORKERS)])
def test_a_state_between_epochs_moves_between_workers_and_the_main_process(number: int, name: str) -> None:
    build = (PIPES | IN_WORKERS)[name]

    def loader(workers: int | None, state: Any = None) -> DataLoader2[Any]:
        if workers is None:
            return begun(DataLoader2(build(), reading_service=InProcessReadingService()), state)
        return begun(DataLoader2(build(), num_workers=workers), state)

    for old, new in MOVES[number % 2 :: 2]:
        with loader(old) as made:
            list(made)
            state = saved(made)
            expected = [list(made) for _ in range(3)]
        assert epochs_of(loader(new, state), 3) == expected, (old, new)


class Undeclared(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source, self.epoch, self.items, self.generator = source, 0, 0, random.Random(5)

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        items = [*self.source]
        self.generator.shuffle(items)
        for item in items:
            self.items += 1
            yield item, self.epoch, self.items


UNDECLARED: dict[str, Build] = {
    "last": lambda: Undeclared(IterableWrapper(range(6)).shuffle()),
    "in the middle": lambda: Undeclared(IterableWrapper(range(6))).shuffle(buffer_size=3).batch(2),
    "above workers": lambda: Undeclared(in_main()),
}


@pytest.mark.parametrize("kind", UNDECLARED)
def test_states_contain_the_attributes_of_a_users_pipe_that_change_in_the_main_process(kind: str) -> None:
    workers = 2 if kind == "above workers" else 0

    def loader(state: Any) -> DataLoader2[Any]:
        return begun(DataLoader2(UNDECLARED[kind](), num_workers=workers), state)

    check_resumes(loader, (0, 1), (1, 1 if workers else 0), (1, 2), (2, 1), (1, -1))


def test_the_snapshot_of_a_worker_contains_the_attributes_of_a_users_pipe(often: None) -> None:
    def loader(state: Any) -> DataLoader2[Any]:
        return begun(DataLoader2(Undeclared(IterableWrapper(range(40))).sharding_filter(), num_workers=2), state)

    with loader(None) as made:
        list(made)
        reading = iter(made)
        for _ in range(30):
            next(reading)
            time.sleep(0.01)
        state = saved(made)
        expected = [*reading], [*made]
    with loader(state) as made:
        made.load_state_dict(state, allow_pickle=False)
        assert (list(made), list(made)) == expected


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("after", ["nothing", "batches"])
def test_a_state_early_in_a_later_epoch_contains_the_attributes_of_a_users_pipe(after: str, read: int) -> None:
    def loader(workers: int, state: Any) -> DataLoader2[Any]:
        pipe = Undeclared(IterableWrapper(range(20))).sharding_filter()
        if after == "batches":
            pipe = pipe.pin_memory(pin_memory_fn=unpinned).batch(2)
        return begun(DataLoader2(pipe, num_workers=workers), state)

    with loader(2, None) as made:
        list(made)
        reading = iter(made)
        for _ in range(read):
            next(reading)
        state = saved(made)
        rest, following = [*reading], [*made]
    assert epochs_of(loader(2, state)) == [rest, following]
    for workers in 0, 3:
        assert epochs_of(loader(workers, state), 1) == [rest], workers


def shared_out(pipe: Pipe, dispatched: bool) -> Pipe:
    return pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()


def drawn_by_its_own_seed(dispatched: bool) -> Pipe:
    pipe = SampleMultiplexer({IterableWrapper(range(6)): 1, IterableWrapper(range(6, 12)): 1}, seed=3)
    return shared_out(pipe, dispatched).pin_memory(pin_memory_fn=unpinned)


class ReadsAtOnce(Passing):
    def __iter__(self) -> Iterator[int]:
        source = iter(self.source)
        first = [next(source)]
        return itertools.chain(first, source)


class BeginsSlowly(Passing):
    one_to_one = True

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.1)
        yield from self.source


def three_passes(dispatched: bool) -> Pipe:
    pipe = shared_out(IterableWrapper(range(6)), dispatched).map(plus_one)
    return pipe.pin_memory(pin_memory_fn=unpinned).prefetch(3).cycle(3)


def parts_of_a_split(dispatched: bool) -> Pipe:
    pipe = drawn_by_its_own_seed(dispatched)
    first, *others = pipe.random_split({"a": 1, "b": 1, "c": 1}, total_length=12, seed=1)
    return first.concat(*others).map(plus_one)


def slow_passes(dispatched: bool) -> Pipe:
    pipe: Pipe = SampleMultiplexer({IterableWrapper(range(3)): 1, IterableWrapper(range(3, 6)): 1}, seed=3)
    pipe = shared_out(BeginsSlowly(pipe), True) if dispatched else BeginsSlowly(shared_out(pipe, False))
    pipe = pipe.pin_memory(pin_memory_fn=unpinned)
    return Unstated(pipe.concat(pipe, pipe)).prefetch(2)


#: For each case: a function that builds a pipeline, positions (epoch, item) of saved states, and a delay per item.
READING_AHEAD: dict[str, tuple[Callable[[bool], Pipe], list[tuple[int, int]], float]] = {
    "passes read ahead to their end": (three_passes, [(0, 5), (0, 12), (0, 17)], 0.02),
    "parts of a split": (parts_of_a_split, [(0, 0), (0, -1)], 0.0),
    "the first item read in iter": (
        lambda dispatched: ReadsAtOnce(ByHand(drawn_by_its_own_seed(dispatched))),
        [(1, 0)],
        0.0,
    ),
    "the last items dropped": (lambda dispatched: drawn_by_its_own_seed(dispatched).filter(is_early), [(0, -1)], 0.0),
    "passes that begin slowly": (slow_passes, [(0, 6), (0, 16)], 0.03),
}


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize(("build", "moments", "pause"), READING_AHEAD.values(), ids=READING_AHEAD)
def test_states_resume_exactly_although_the_main_process_reads_ahead(
    build: Callable[[bool], Pipe], moments: list[tuple[int, int]], pause: float, dispatched: bool
) -> None:
    check(lambda: build(dispatched), *moments, pause=pause)


@pytest.mark.parametrize("dispatched", [False, True])
def test_workers_end_an_epoch_whose_last_items_the_main_process_had_read_ahead(
    dispatched: bool, tmp_path: Path
) -> None:
    def on_disk(pipe: Pipe) -> Pipe:
        pipe = pipe.on_disk_cache(lambda item: str(tmp_path / str(item)), extra_check_fn=lambda path: False)
        pipe = pipe.map(lambda item: (str(tmp_path / str(item)), str(item).encode())).end_caching()
        return pipe.map(lambda path: int(Path(path).read_text()))

    def build() -> Pipe:
        pipe = shared_out(IterableWrapper(range(30)).filter(drawn), dispatched).in_memory_cache()
        return on_disk(on_disk(pipe.pin_memory(pin_memory_fn=unpinned)))

    check(build, (0, 7), (0, -1))


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_position_in_the_first_of_two_passes_is_known_in_the_second_one(dispatched: bool) -> None:
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
def test_an_epoch_is_not_read_if_a_full_cache_replaces_the_workers(dispatched: bool) -> None:
    def build() -> Pipe:
        return drawn_by_its_own_seed(dispatched).in_memory_cache().map(plus_one)

    with loader_of(build()) as loader:
        first = list(loader)
        for _ in range(3):
            assert list(loader) == first
            state = loader.state_dict()
            assert epochs_from(build, state) == [first, first]


@pytest.mark.parametrize("dispatched", [False, True])
def test_the_end_of_a_resumed_epoch_that_needs_no_more_items_is_the_workers_end_too(dispatched: bool) -> None:
    def build() -> Pipe:
        return drawn_by_its_own_seed(dispatched).map(plus_one).map_batches(list, batch_size=11)

    expected = epochs_of(loader_of(build()))
    with loader_of(build()) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(11)] == expected[0][:11]
        time.sleep(0.1)  # During the sleep, a thread reads the last item, but does not reach the end of the epoch.
        state = loader.state_dict()
    with loader_of(build(), state=state) as loader:
        assert next(iter(loader)) == expected[0][11]
        state = loader.state_dict()
    assert epochs_from(build, state) == [[], expected[1]]


def slowly(item: int) -> int:
    time.sleep(0.005)
    return item


@pytest.mark.parametrize(("dispatched", "holds_more"), [(False, True), (True, False)])
def test_items_that_a_thread_takes_while_a_state_is_saved_are_in_the_remaining_items(
    dispatched: bool, holds_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Pipe:
        pipe = shared_out(IterableWrapper(range(20)), dispatched).map(slowly).pin_memory(pin_memory_fn=unpinned)
        return pipe.shuffle(buffer_size=3) if holds_more else pipe

    position = WorkerOutput.position

    def position_late(*arguments: Any) -> Any:
        time.sleep(0.02)
        return position(*arguments)

    monkeypatch.setattr(WorkerOutput, "position", position_late)
    check(build, (0, 6))


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
        assert epochs_from(build, state, 1) == [expected[at:]], at


@pytest.mark.parametrize("service", [None, InProcessReadingService], ids=["no service", "in process"])
def test_a_replay_at_the_end_fills_a_cache_with_the_same_random_items(service: Any) -> None:
    torch_data = pytest.importorskip("torch.utils.data", reason="the test uses torch's own pipes")

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
