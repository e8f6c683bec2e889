"""Tests graphs that earlier versions could not save or load correctly."""

import inspect
import io
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import cloudpickle
import pytest

from kept_state import KeptState
from pipes_of_users import FirstFour
from pipes_table import IGNORES_WARNINGS_OF_PIPES, seed
from pipes_table.core import Doubling, plus_one
from random_graphs.users import ByHand, Declared, OneToOne, Unstated, UnstatedRandom, UnstatedTwice, drawn, is_odd
from resuming import check_graph_resumes, start, with_state
from torchdata._plain_pickles import from_plain, to_plain
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper, SampleMultiplexer
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import (
    forget_state,
    is_one_to_one,
    is_restorable,
    load_generators,
    load_state,
    save_generators,
    save_state,
)

pytestmark = IGNORES_WARNINGS_OF_PIPES


def numbers(count: int) -> IterableWrapper[int]:
    return IterableWrapper(range(count))


def seeded_multiplexer(count: int = 4) -> Any:
    return SampleMultiplexer({numbers(count): 1, numbers(count).map(plus_one): 2}, seed=3)


class Lines(KeptState):
    kept = ("position", "epoch")

    def __init__(self) -> None:
        self.position = self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 6:
            self.position += 1
            yield 100 * self.epoch + self.position
        self.position, self.epoch = 0, self.epoch + 1


class LinesPipe(Lines, IterDataPipe[int]):
    pass


class PipeOfLines(IterDataPipe[int], Lines):
    __init__ = Lines.__init__  # type: ignore[assignment]


PipeOfLines.__iter__ = Lines.__iter__  # type: ignore[assignment,method-assign]


GRAPHS: dict[str, Callable[[], Any]] = {
    "a user's pipe that goes back when it ends": lambda: LinesPipe().batch(4),
    "the same, with __iter__ assigned to the class": lambda: PipeOfLines().batch(4).unbatch(),
    "the same, shuffled": lambda: LinesPipe().shuffle(buffer_size=4).batch(4),
    "a pipe without state that reads it in batches": lambda: Doubling(LinesPipe().batch(4)).map(tuple),
    "a user's pipe that goes back when it begins": lambda: FirstFour(numbers(9)).batch(3),
    "a random pipe read twice below one without state": lambda: Doubling(numbers(5).shuffle().cycle(2)).map(plus_one),
    "a random pipe that begins in the middle of an epoch": lambda: numbers(2).concat(numbers(4).shuffle()),
    "a zip whose longer input keeps a state": lambda: numbers(2).zip(ByHand(numbers(9))),
    "a map pipe that is shuffled anew in each pass": lambda: SequenceWrapper(range(4)).shuffle().cycle(3),
    "a cache behind a shuffle": lambda: numbers(5).shuffle().in_memory_cache(),
    "a pipe whose generator goes on through the epochs": seeded_multiplexer,
    "the same, below one that ends early": lambda: seeded_multiplexer().header(3),
    "the same, below one without state": lambda: Doubling(seeded_multiplexer()).map(plus_one),
    "the same, at the end of a concat": lambda: numbers(2).concat(seeded_multiplexer()),
    "a shuffle in a concat that is read twice": lambda: numbers(2).concat(numbers(3).shuffle()).cycle(2),
    "demux in a concat": lambda: _concat(numbers(7).demux(2, lambda n: n % 2)),
    "fork in a concat": lambda: _concat(numbers(4).fork(2)),
    "unzip in a concat": lambda: _concat(numbers(4).enumerate().unzip(2)),
    "round_robin_demux in a concat": lambda: _concat(numbers(7).round_robin_demux(3)),
    "a child of a fork read by a map pipe": lambda: _first_by_map(numbers(4).fork(2)),
    "a map cache over random functions": lambda: _by_index(lambda pipe: pipe.map(drawn).in_memory_cache()),
    "to_map_datapipe over random functions": lambda: _by_index(
        lambda pipe: pipe.to_iter_datapipe().map(drawn).enumerate().to_map_datapipe()
    ),
    "random functions below a pipe without state": lambda: Doubling(numbers(5).map(drawn)).map(plus_one),
    "random functions on both sides of one": lambda: Doubling(numbers(5).map(drawn)).map(drawn).map(plus_one),
    "a user's pipe that counts its epochs": lambda: ByHand(numbers(4)),
    "the same, declared": lambda: Declared(numbers(4)).map(plus_one),
    "the same, below a pipe without state": lambda: Doubling(Declared(ByHand(numbers(4)))).map(plus_one),
    "a user's random pipe without state": lambda: seed(UnstatedRandom(numbers(5)), 3).map(plus_one),
    "a pipe without state that reads its source twice": lambda: UnstatedTwice(numbers(3).shuffle()).map(plus_one),
    "one that draws behind its last item, over a child that nobody read": lambda: (
        numbers(9).map(drawn).mux(_concat(UnstatedTwice(numbers(4)).demux(2, is_odd)).header(1))
    ),
}


def _concat(children: list[Any]) -> Any:
    return children[0].concat(*children[1:])


def _first_by_map(children: list[Any]) -> Any:
    left, right = children
    return left.enumerate().to_map_datapipe().to_iter_datapipe(indices=[0, 2]).concat(right)


def _by_index(build: Callable[[Any], Any]) -> Any:
    return build(SequenceWrapper(range(4))).to_iter_datapipe(indices=range(4))


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_resumes_at_every_position_and_continues_with_the_next_epoch(build: Callable[[], Any]) -> None:
    check_graph_resumes(build)


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_a_loaded_state_that_is_only_begun_is_saved_unchanged(build: Callable[[], Any]) -> None:
    start(5)
    whole = list(build())
    for position in range(len(whole) + 1):
        start(5)
        pipe = build()
        iterator = iter(pipe)
        list(islice(iterator, position))
        saved = pickle.dumps((save_state(pipe), save_generators()))
        for _ in range(3):
            state, generators = pickle.loads(saved)
            pipe = with_state(build(), state)
            load_generators(generators)
            iterator = iter(pipe)
            saved = pickle.dumps((save_state(pipe), save_generators()))
        assert list(iterator) == whole[position:], f"position {position}"


def test_an_ended_pipe_does_not_read_its_source() -> None:
    read = []
    pipe = numbers(5).map(lambda n: read.append(n) or n).header(2)
    iterator = iter(pipe)
    assert list(iterator) == [0, 1]
    state = save_state(pipe)
    del read[:]
    other = with_state(numbers(5).map(lambda n: read.append(n) or n).header(2), state)
    assert list(other) == []
    assert read == []
    assert list(other) == [0, 1]


def test_a_loaded_pipe_that_has_yielded_nothing_is_saved_at_its_loaded_position() -> None:
    pipe = FirstFour(numbers(9))
    next(iter(pipe))
    restored = with_state(FirstFour(numbers(9)), save_state(pipe))
    iter(restored)
    assert list(with_state(FirstFour(numbers(9)), save_state(restored))) == [1, 2, 3]


def test_an_ended_pipe_keeps_its_epoch_when_its_state_is_forgotten() -> None:
    pipe = LinesPipe().batch(4)
    reading = iter(pipe)
    assert [next(reading), next(reading)] == [[1, 2, 3, 4], [5, 6]]
    restored = with_state(LinesPipe().batch(4), save_state(pipe))
    forget_state(restored)
    assert list(with_state(LinesPipe().batch(4), save_state(restored))) == [[101, 102, 103, 104], [105, 106]]
    assert list(restored) == [[101, 102, 103, 104], [105, 106]]


def test_a_class_that_cloudpickle_rebuilds_is_guarded_once() -> None:
    copy = pickle.loads(cloudpickle.dumps(guarded_here()))
    reading = iter(copy)
    assert next(reading) == 0
    assert inspect.unwrap(type(copy).__iter__) is type(copy).__iter__.__wrapped__
    iter(copy)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(reading)


def guarded_here() -> Any:
    class Local(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)

    return Local()


def test_a_seed_that_is_set_after_loading_applies_to_the_next_epoch() -> None:
    pipe = numbers(20).shuffle().set_seed(1)
    iterator = iter(pipe)
    head = list(islice(iterator, 5))
    other = with_state(numbers(20).shuffle(), save_state(pipe))
    other.set_seed(2)
    third = with_state(numbers(20).shuffle(), save_state(other))
    assert head + list(third) == list(numbers(20).shuffle().set_seed(1))
    assert list(third) == list(numbers(20).shuffle().set_seed(2))


def test_a_state_does_not_change_when_the_iteration_continues() -> None:
    items = [[n] for n in range(9)]
    pipe = IterableWrapper(items).shuffle(buffer_size=4).set_seed(1).batch(2)
    iterator = iter(pipe)
    next(iterator)
    state = save_state(pipe)
    before = pickle.dumps(state)
    for batch in iterator:
        for item in batch:
            item.append("changed")
    assert pickle.dumps(state) == before


def test_a_state_is_loaded_twice_without_the_two_sharing_items() -> None:
    def build() -> Any:
        return IterableWrapper([[n] for n in range(9)]).shuffle(buffer_size=4).set_seed(1)

    pipe = build()
    next(iter(pipe))
    state = save_state(pipe)
    first, second = build(), build()
    load_state(first, state)
    load_state(second, state)
    expected = [list(item) for item in first]
    for item in build():
        item.append("changed")
    assert list(second) == expected


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_a_state_is_plain_data_that_torch_loads_without_pickle(build: Callable[[], Any]) -> None:
    torch = pytest.importorskip("torch")
    pipe = build()
    iterator = iter(pipe)
    next(iterator)
    saved = io.BytesIO()
    torch.save({"pipe": save_state(pipe), "generators": save_generators()}, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    rest = list(iterator)
    other = with_state(build(), loaded["pipe"])
    load_generators(loaded["generators"])
    assert list(other) == rest


def test_an_item_that_is_buffered_twice_stays_one_object() -> None:
    item = {"a": [1]}
    first, second = from_plain(to_plain({"held": [item, item]}, "P"), "P")["held"]
    assert first is second
    pipe = numbers(3).shuffle(buffer_size=2)
    next(iter(pipe))
    assert "__pickled__" not in save_state(pipe)["pipes"][-1]["state"]


def test_items_that_cannot_be_pickled_are_an_error_that_names_pipe_and_attribute() -> None:
    pipe = IterableWrapper([(n for n in range(2)) for _ in range(3)], deepcopy=False).shuffle(buffer_size=2)
    next(iter(pipe))
    with pytest.raises(TypeError, match="state of Shuffler cannot be saved, because what it holds under 'buffer'"):
        save_state(pipe)


class MakesPipes(Unstated):
    def __iter__(self) -> Iterator[int]:
        self.own = Mapper(self.source_datapipe, plus_one)
        yield from self.own


class MakesOnePipe(MakesPipes):
    own: Any = None

    def __iter__(self) -> Iterator[int]:
        if self.own is None:
            self.own = Mapper(self.source_datapipe, plus_one)
        yield from self.own


@pytest.mark.parametrize("kind", [MakesPipes, MakesOnePipe])
@pytest.mark.parametrize("epoch", [0, 1])
def test_saving_a_pipe_that_creates_pipes_while_it_is_iterated_is_refused(kind: Any, epoch: int) -> None:
    pipe = kind(numbers(4)).map(plus_one)
    for _ in range(epoch):
        list(pipe)
    next(iter(pipe))
    with pytest.raises(TypeError, match=f"{kind.__name__} cannot be saved.*Make them in __init__"):
        save_state(pipe)


def test_a_pipe_with_one_to_one_items_is_not_replayed() -> None:
    calls = []
    pipe = OneToOne(numbers(9).map(lambda n: calls.append(n) or n))
    next(iter(pipe))
    state = save_state(pipe)
    assert all("drop" not in entry for entry in state["pipes"])
    del calls[:]
    other = with_state(OneToOne(numbers(9).map(lambda n: calls.append(n) or n)), state)
    assert (next(iter(other)), calls) == (3, [1])


def test_a_subclass_that_overrides_iter_is_not_restorable_like_its_base() -> None:
    class Changed(OneToOne):
        def __iter__(self) -> Iterator[int]:
            yield from [1, 2]

    class Renamed(OneToOne):
        pass

    assert (is_restorable(Changed(numbers(1))), is_restorable(Renamed(numbers(1)))) == (False, True)
    assert (is_one_to_one(Changed(numbers(1))), is_one_to_one(Renamed(numbers(1)))) == (False, True)


OTHERS = {
    "a parameter": (
        lambda: numbers(9).batch(2),
        lambda: numbers(9).batch(2, drop_last=True),
        r"pipe 2 \(counted from the source\), Batcher, has drop_last=False in the state and True in this one",
    ),
    "a function": (
        lambda: numbers(9).map(plus_one),
        lambda: numbers(9).map(drawn),
        "Mapper, has fn=.*plus_one in the state and .*drawn in",
    ),
    "the shape of data": (
        lambda: numbers(9).map(abs),
        lambda: numbers(8).map(abs),
        r"IterableWrapper, has iterable=range\(0, 9\) in the state and range\(0, 8\)",
    ),
    "a list's length": (
        lambda: IterableWrapper(list(range(20))),
        lambda: IterableWrapper(list(range(21))),
        "iterable=builtins.list of length 20 in the state and builtins.list of length 21",
    ),
}


@pytest.mark.parametrize(("build", "other", "message"), OTHERS.values(), ids=OTHERS)
def test_a_pipeline_of_the_same_classes_with_other_arguments_is_refused(build: Any, other: Any, message: str) -> None:
    pipe = build()
    next(iter(pipe))
    state = save_state(pipe)
    with pytest.raises(ValueError, match=message):
        load_state(other(), state)
    load_state(insisted := other(), state, strict=False)
    next(iter(insisted))
    load_state(same := build(), state)
    assert list(same) == list(build())[1:]


def test_a_graph_that_a_loader_has_changed_counts_as_the_same_pipeline() -> None:
    def build(worker: int) -> Any:
        pipe = numbers(9).shuffle().sharding_filter()
        pipe.apply_sharding(2, worker)
        return pipe

    pipe = build(0)
    next(iter(pipe))
    load_state(build(1), save_state(pipe))


class Overriding(Mapper[int]):
    def __iter__(self) -> Any:
        yield from enumerate(self.datapipe)


class Tagging(Mapper[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [Overriding, Tagging])
def test_a_subclass_that_overrides_iter_is_replayed(kind: Any) -> None:
    pipe = kind(IterableWrapper(range(5)), plus_one)
    expected = list(pipe)
    iterator = iter(pipe)
    head = [next(iterator) for _ in range(2)]
    state = save_state(pipe)
    assert [entry.get("drop") for entry in state["pipes"]] == [None, 2]
    assert head + list(with_state(kind(IterableWrapper(range(5)), plus_one), state)) == expected


def test_a_pipe_over_a_plain_iterable_is_restored_too() -> None:
    pipe = Mapper(range(5), plus_one)
    iterator = iter(pipe)
    assert [next(iterator), next(iterator)] == [1, 2]
    restored = with_state(Mapper(range(5), plus_one), save_state(pipe))
    assert list(restored) == [3, 4, 5]
    assert list(restored) == [1, 2, 3, 4, 5]


def test_a_state_that_was_forgotten_is_not_saved_again() -> None:
    pipe = IterableWrapper(range(5))
    next(iter(pipe))
    restored = with_state(IterableWrapper(range(5)), save_state(pipe))
    forget_state(restored)
    assert list(with_state(IterableWrapper(range(5)), save_state(restored))) == list(restored) == [0, 1, 2, 3, 4]
