"""Tests details of iterable-style pipes that the common tests in `test_pipes_model.py` do not cover."""

import io
import pickle
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from pipes_table.core import is_even, plus_one
from resuming import with_state
from torchdata.datapipes import DataChunk
from torchdata.datapipes._pipe.graph.traversal import LARGEST_STRUCTURE, sources_of
from torchdata.datapipes._pipe.state.chunked_list import CHUNK_SIZE, ChunkedList
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils._streams import StreamWrapper


def raise_stop(item: int) -> int:
    if item == 2:
        raise StopIteration
    return item


@pytest.mark.parametrize("items", [[[1], [2]], ([1], [2])])
def test_changing_items_in_place_does_not_reach_the_next_epoch(items: Any) -> None:
    pipe = IterableWrapper(items)
    for item in pipe:
        item.append(0)
    assert list(pipe) == [[1], [2]]
    numbers = [1]
    for number in IterableWrapper(numbers):
        numbers.append(number)
    assert numbers == [1, 1]
    assert next(iter(IterableWrapper(items, deepcopy=False))) is items[0]


def test_an_iterable_that_cannot_be_copied_warns_and_is_read_directly() -> None:
    pipe = IterableWrapper(number for number in range(3))
    with pytest.warns(UserWarning, match="cannot be deep-copied"):
        assert list(pipe) == [0, 1, 2]
    with (
        pytest.warns(UserWarning, match="cannot be deep-copied"),
        pytest.warns(UserWarning, match="is a one-shot iterator, which an earlier epoch has exhausted"),
    ):
        assert list(pipe) == []


class ByHand(Sequence[int]):
    def __getitem__(self, index: Any) -> Any:
        return range(9)[index]

    def __len__(self) -> int:
        return 9


class OddList(list[int]):
    def __iter__(self) -> Any:
        return reversed(self)


ITERABLES = [
    list(range(9)),
    tuple(range(9)),
    range(9),
    "abcdefghi",
    b"abcdefghi",
    np.arange(9),
    {n: n for n in range(9)},
    set(range(9)),
    iter(list(range(9))),
    ByHand(),
    OddList(range(9)),
]


@pytest.mark.parametrize("iterable", ITERABLES, ids=lambda value: type(value).__name__)
def test_every_kind_of_iterable_is_restored_in_its_middle(iterable: Any) -> None:
    pipe = IterableWrapper(iterable)
    iterator = iter(pipe)
    head = [next(iterator) for _ in range(4)]
    assert head + list(with_state(IterableWrapper(iterable), save_state(pipe))) == list(IterableWrapper(iterable))


def test_restoring_a_long_range_does_not_read_what_comes_before() -> None:
    pipe = IterableWrapper(range(10**15))
    restored = IterableWrapper(range(10**15))
    next(iter(pipe))
    state = save_state(pipe)
    state["pipes"][0]["state"]["position"] = state["pipes"][0]["yielded"] = 10**15 - 2
    load_state(restored, state | {"checksums": None})
    assert list(iter(restored)) == [10**15 - 2, 10**15 - 1]


def test_a_stop_iteration_in_a_function_raises_an_error_and_does_not_end_the_epoch() -> None:
    for pipe in (
        IterableWrapper(range(5)).map(raise_stop),
        IterableWrapper([(n,) for n in range(5)]).map(raise_stop, input_col=0),
        IterableWrapper(range(5)).flatmap(lambda n: [raise_stop(n)]),
        IterableWrapper(range(5)).filter(lambda n: bool(raise_stop(n))),
        IterableWrapper(range(5)).groupby(raise_stop),
    ):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(pipe)


def test_a_stop_iteration_in_a_function_after_a_full_epoch_raises_an_error_too() -> None:
    calls = iter(range(8))
    pipe = IterableWrapper(range(5)).map(lambda _: next(calls))
    assert list(pipe) == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(pipe)
    assert list(IterableWrapper([]).cycle()) == [], "an endless cycle over nothing ends"


def test_map_replaces_columns_of_dicts_in_place_and_makes_new_tuples() -> None:
    assert list(IterableWrapper([{"a": 1, "b": 2}]).map(plus_one, "a", "c")) == [{"a": 1, "b": 2, "c": 2}]
    item = (1, 2)
    assert list(IterableWrapper([item], deepcopy=False).map(plus_one, 0)) == [(2, 2)]
    assert item == (1, 2)


def test_a_predicate_that_does_not_return_a_bool_raises_an_error() -> None:
    with pytest.raises(ValueError, match="must return a bool, but returned 1 of type int"):
        list(IterableWrapper([1]).filter(lambda n: n))
    assert list(IterableWrapper([1, 2]).filter(lambda n: np.bool_(n == 2))) == [2]


def test_a_filter_closes_the_streams_of_items_that_it_drops() -> None:
    kept, dropped = StreamWrapper(io.BytesIO()), StreamWrapper(io.BytesIO())
    pipe = IterableWrapper([("keep", kept), ("drop", dropped)], deepcopy=False)
    assert [name for name, _ in pipe.filter(lambda item: item[0] == "keep")] == ["keep"]
    assert (kept.closed, dropped.closed) == (False, True)


def test_a_header_takes_no_more_items_than_it_yields() -> None:
    seen = []
    source = IterableWrapper(range(9)).map(lambda n: seen.append(n) or n)
    assert list(source.header(3)) == seen == [0, 1, 2]


def test_the_length_of_a_header_over_an_unsized_pipe_is_its_limit_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="inferred to be equal to its limit, because its source"):
        assert len(IterableWrapper(range(9)).filter(is_even).header(3)) == 3


class StartsOver(IterDataPipe[int]):
    def __init__(self) -> None:
        self.last = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.last += 1
        if self.last % 6 == 0:
            raise StopIteration
        return self.last


def test_an_iteration_ends_at_the_first_end_of_the_pipes_own_iterator() -> None:
    assert list(StartsOver().batch(5)) == [[1, 2, 3, 4, 5]]
    assert list(StartsOver().batch(2)) == [[1, 2], [3, 4], [5]]
    assert sorted(StartsOver().bucketbatch(batch_size=2).unbatch()) == [1, 2, 3, 4, 5]
    pipe = StartsOver()
    reading = iter(pipe)
    assert [list(reading), list(reading), list(pipe)] == [[1, 2, 3, 4, 5], [], [7, 8, 9, 10, 11]]


def test_a_batch_has_its_own_list_type() -> None:
    (chunk,) = IterableWrapper([1, 2]).batch(2)
    assert type(chunk) is DataChunk
    assert chunk == [1, 2]
    assert (chunk.items, chunk.as_str("> "), list(chunk.raw_iterator())) == ([1, 2], "> [1, 2]", [1, 2])
    assert type(pickle.loads(pickle.dumps(chunk))) is DataChunk


class Item:
    pass


def test_a_batch_is_freed_when_its_reader_drops_it() -> None:
    alive: list[weakref.ref[Item]] = []

    def made(_: int) -> Item:
        item = Item()
        alive.append(weakref.ref(item))
        return item

    for batch in IterableWrapper(range(12)).map(made).batch(4):
        assert sum(item() is not None for item in alive) == len(batch) == 4
        del batch
    assert len(alive) == 12


def test_groups_that_leave_a_full_buffer_keep_their_own_key() -> None:
    pipe = IterableWrapper([1, 1, 2]).groupby(lambda n: n, keep_key=True, buffer_size=3)
    assert list(pipe) == [(1, [1, 1]), (2, [2])]


def test_a_full_buffer_of_small_groups_raises_an_error_unless_they_are_dropped() -> None:
    sizes = {"buffer_size": 3, "group_size": 3, "guaranteed_group_size": 2}
    with pytest.raises(RuntimeError, match="Failed to group items"):
        list(IterableWrapper(range(5)).groupby(lambda n: n, **sizes))
    assert list(IterableWrapper([1, 2, 3, 3]).groupby(lambda n: n, drop_remaining=True, **sizes)) == [[3, 3], [2]]


UPSTREAM_ORDERS = {
    (1, 7): [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    (3, 0): [1, 3, 0, 4, 2, 6, 8, 9, 7, 5],
    (3, 123): [0, 1, 3, 4, 6, 5, 8, 7, 2, 9],
    (4, 4611686018427387909): [3, 2, 1, 6, 7, 8, 0, 5, 4, 9],
    (10, 1): [2, 1, 6, 0, 7, 8, 9, 5, 4, 3],
    (100, 42): [1, 0, 6, 3, 4, 5, 2, 9, 7, 8],
}


@pytest.mark.parametrize(("buffer_size", "seed"), UPSTREAM_ORDERS)
def test_a_seed_gives_the_order_that_torchdata_0_9_gives(buffer_size: int, seed: int) -> None:
    pipe = IterableWrapper(range(10)).shuffle(buffer_size=buffer_size).set_seed(seed)
    assert list(pipe) == UPSTREAM_ORDERS[buffer_size, seed]


def test_without_a_seed_orders_follow_the_global_generator(no_torch: None) -> None:
    pipe = IterableWrapper(range(50)).shuffle()
    random.seed(3)
    first, second = list(pipe), list(pipe)
    random.seed(3)
    assert first != second
    assert [list(pipe), list(pipe)] == [first, second]


def test_a_seed_set_before_the_first_iteration_is_part_of_the_state() -> None:
    state = save_state(IterableWrapper(range(50)).shuffle().set_seed(5))
    restored = with_state(IterableWrapper(range(50)).shuffle(), state)
    assert list(restored) == list(IterableWrapper(range(50)).shuffle().set_seed(5))


def test_turning_shuffling_off_acts_from_the_next_iteration_on() -> None:
    pipe = IterableWrapper(range(20)).shuffle(buffer_size=5).set_seed(1)
    expected = list(pipe)
    iterator = iter(pipe.set_seed(1))
    head = [next(iterator) for _ in range(3)]
    pipe.set_shuffle(False)
    assert head + list(iterator) == expected
    assert list(pipe) == list(range(20))


def test_buffered_items_are_not_mistaken_for_sources() -> None:
    pipe = IterableWrapper([[IterableWrapper([n])] for n in range(4)], deepcopy=False).shuffle(buffer_size=2)
    next(iter(pipe))
    assert sources_of(pipe) == [pipe.datapipe]


class Counted(list[Any]):
    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.looked_at += len(self)
        return super().__iter__()


def nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = Counted([leaf])
    return leaf


NESTED_DATA = {
    "rows of cells": lambda: Counted(Counted(Counted([n]) for n in range(1000)) for _ in range(100)),
    "short rows": lambda: Counted(Counted([n]) for n in range(3000)),
    "long rows": lambda: Counted(Counted(range(2000)) for _ in range(50)),
    "rows of rows that differ in kind": lambda: Counted(Counted([[], n]) for n in range(2000)),
    "deeper than Python recurses": lambda: nested(50_000, 1),
}


@pytest.mark.parametrize("make", NESTED_DATA.values(), ids=NESTED_DATA)
def test_nested_data_is_searched_within_one_budget_per_attribute(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holder(IterDataPipe):
        def __init__(self) -> None:
            self.source = IterableWrapper([1])
            self.data = make()
            self.other = [IterableWrapper([2])]

    holder = Holder()
    monkeypatch.setattr(Counted, "looked_at", 0)
    assert sources_of(holder) == [holder.source, holder.other[0]]
    assert 0 < Counted.looked_at <= 2 * LARGEST_STRUCTURE  # once for types, once to find pipes


def test_data_in_a_structure_does_not_hide_pipes_in_the_same_structure() -> None:
    class Holder(IterDataPipe):
        def __init__(self, held: Any) -> None:
            self.held = held

    pipes = [IterableWrapper([n]) for n in range(400)]
    rows = [[n] for n in range(1500)]
    named = {"table": rows, "parts": [("a", pipes[0]), ("b", (pipes[1], rows))], "last": pipes[2]}
    assert sources_of(Holder(named)) == pipes[:3]
    assert sources_of(Holder([(str(n), pipe) for n, pipe in enumerate(pipes[:350])])) == pipes[:350]
    assert sources_of(Holder({"left": pipes[:200], "right": tuple(pipes[200:])})) == pipes


def test_a_deque_that_grows_while_its_members_are_examined_is_searched_as_it_was() -> None:
    class Growing(type):
        @property
        def __mro__(cls) -> tuple[type, ...]:
            held.append("later")
            return type.mro(cls)

    class Data(metaclass=Growing):
        pass

    class Holder(IterDataPipe):
        def __init__(self) -> None:
            self.held = held

    held: deque[Any] = deque([Data(), "first"])
    assert sources_of(Holder()) == []
    assert held[-1] == "later"


ITEMS = 2 * CHUNK_SIZE + 5


def _shuffled(seed: int) -> list[int]:
    generator, buffer = random.Random(seed), list(range(ITEMS))
    return [buffer.pop(generator.randint(0, len(buffer) - 1)) for _ in range(ITEMS)]


def test_a_buffer_as_large_as_the_dataset_yields_the_order_of_a_list() -> None:
    pipe = IterableWrapper(range(ITEMS)).shuffle(buffer_size=ITEMS)
    for seed in (3, 4):
        assert list(pipe.set_seed(seed)) == _shuffled(seed)


@pytest.mark.parametrize("position", [1, CHUNK_SIZE, ITEMS - CHUNK_SIZE, ITEMS - 1])
def test_a_large_buffer_resumes_while_it_empties(position: int) -> None:
    first, second = (IterableWrapper(range(ITEMS)).shuffle(buffer_size=ITEMS).set_seed(3) for _ in range(2))
    begun = iter(first)
    list(islice(begun, position))
    saved = save_state(first)
    next(begun)  # the saved state must not change when the pipe continues
    load_state(second, saved)
    assert list(second) == _shuffled(3)[position:]


def test_chunks_remove_the_same_items_as_a_list() -> None:
    chunks, items, generator = ChunkedList(list(range(ITEMS))), list(range(ITEMS)), random.Random(0)
    for left in range(ITEMS, 0, -1):
        index = generator.choice((0, left - 1, generator.randrange(left)))
        assert chunks.pop(index) == items.pop(index)
        if left % CHUNK_SIZE < 2:
            assert (len(chunks), list(chunks)) == (len(items), items)
    with pytest.raises(IndexError):
        chunks.pop(0)
