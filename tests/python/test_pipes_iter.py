"""Behaviour of single iter pipes that the table of `test_pipes_model.py` does not state."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pipes_table import Doubling, is_even, plus_one
from torchdata.datapipes import DataChunk
from torchdata.datapipes._traversal import sources_of
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe
from torchdata.datapipes.iter import (
    SHARDING_PRIORITIES,
    Collator,
    IterableWrapper,
    Mapper,
    MapToIterConverter,
    Sampler,
)
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils._streams import StreamWrapper
from torchdata.datapipes.utils.collate import default_collate

Point = namedtuple("Point", ["x", "y"])


class Squares(MapDataPipe):
    def __init__(self, length: int) -> None:
        self.length = length

    def __getitem__(self, index: Any) -> Any:
        return index * index

    def __len__(self) -> int:
        return self.length


class Closable:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def raise_stop(item: int) -> int:
    if item == 2:
        raise StopIteration
    return item


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def test_importing_the_pipes_loads_neither_numpy_nor_torch() -> None:
    code = "import sys, torchdata.datapipes; print({'numpy', 'torch', 'cloudpickle'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("items", [[[1], [2]], ([1], [2])])
def test_changing_items_in_place_does_not_reach_the_next_epoch(items: Any) -> None:
    pipe = IterableWrapper(items)
    for item in pipe:
        item.append(0)
    assert list(pipe) == [[1], [2]]


def test_changing_the_wrapped_list_while_reading_does_not_change_what_is_read() -> None:
    numbers = [1, 2, 3]
    seen = []
    for number in IterableWrapper(numbers):
        numbers.append(number)
        seen.append(number)
    assert seen == [1, 2, 3]


def test_without_deepcopy_items_are_the_originals() -> None:
    item: list[int] = []
    assert next(iter(IterableWrapper([item], deepcopy=False))) is item


def test_an_iterable_that_cannot_be_copied_warns_and_is_read_itself() -> None:
    pipe = IterableWrapper(number for number in range(3))
    with pytest.warns(UserWarning, match="cannot be deep-copied"):
        assert list(pipe) == [0, 1, 2]
    with pytest.warns(UserWarning, match="cannot be deep-copied"):
        assert list(pipe) == []


def test_a_one_shot_iterator_that_can_be_copied_is_read_in_every_epoch() -> None:
    pipe = IterableWrapper(iter([1, 2]))
    assert [list(pipe), list(pipe)] == [[1, 2], [1, 2]]


class ByHand(Sequence[int]):
    """A sequence that iterates as `collections.abc.Sequence` does."""

    def __getitem__(self, index: Any) -> Any:
        return range(9)[index]

    def __len__(self) -> int:
        return 9


class OddList(list[int]):
    """A list that iterates in an order of its own."""

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
    restored = IterableWrapper(iterable)
    load_state(restored, save_state(pipe))
    assert head + list(restored) == list(IterableWrapper(iterable))


def test_restoring_a_long_range_does_not_read_what_comes_before() -> None:
    pipe = IterableWrapper(range(10**15))
    restored = IterableWrapper(range(10**15))
    next(iter(pipe))
    state = save_state(pipe)
    state["pipes"][0]["state"]["position"] = state["pipes"][0]["yielded"] = 10**15 - 2
    load_state(restored, state)
    assert list(iter(restored)) == [10**15 - 2, 10**15 - 1]


def test_a_stop_iteration_in_a_function_is_an_error_and_no_end() -> None:
    for pipe in (
        IterableWrapper(range(5)).map(raise_stop),
        IterableWrapper([(n,) for n in range(5)]).map(raise_stop, input_col=0),
        IterableWrapper(range(5)).flatmap(lambda n: [raise_stop(n)]),
        IterableWrapper(range(5)).filter(lambda n: bool(raise_stop(n))),
        IterableWrapper(range(5)).groupby(raise_stop),
    ):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(pipe)


def test_a_stop_iteration_in_a_function_after_a_full_epoch_is_an_error_too() -> None:
    calls = iter(range(8))
    pipe = IterableWrapper(range(5)).map(lambda _: next(calls))
    assert list(pipe) == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(pipe)


def test_columns_of_dicts_are_mapped_in_place_and_of_tuples_in_new_tuples() -> None:
    assert list(IterableWrapper([{"a": 1, "b": 2}]).map(plus_one, "a", "c")) == [{"a": 1, "b": 2, "c": 2}]
    item = (1, 2)
    assert list(IterableWrapper([item], deepcopy=False).map(plus_one, 0)) == [(2, 2)]
    assert item == (1, 2)


def test_a_predicate_that_returns_no_bool_is_an_error() -> None:
    with pytest.raises(ValueError, match="must return a bool, but returned 1 of type int"):
        list(IterableWrapper([1]).filter(lambda n: n))
    assert list(IterableWrapper([1, 2]).filter(lambda n: np.bool_(n == 2))) == [2]


def test_a_filter_closes_the_streams_of_items_that_it_drops() -> None:
    kept, dropped = StreamWrapper(Closable()), StreamWrapper(Closable())
    pipe = IterableWrapper([("keep", kept), ("drop", dropped)], deepcopy=False)
    assert [name for name, _ in pipe.filter(lambda item: item[0] == "keep")] == ["keep"]
    assert (kept.closed, dropped.closed) == (False, True)


def test_a_header_takes_no_more_items_than_it_yields() -> None:
    seen = []
    source = IterableWrapper(range(9)).map(lambda n: seen.append(n) or n)
    assert list(source.header(3)) == seen == [0, 1, 2]


def test_the_length_of_a_header_over_an_unsized_pipe_is_its_limit_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="taken to be its limit"):
        assert len(IterableWrapper(range(9)).filter(is_even).header(3)) == 3


def test_a_batch_is_a_list_that_is_told_from_other_lists() -> None:
    (chunk,) = IterableWrapper([1, 2]).batch(2)
    assert type(chunk) is DataChunk
    assert chunk == [1, 2]
    assert (chunk.items, chunk.as_str("> "), list(chunk.raw_iterator())) == ([1, 2], "> [1, 2]", [1, 2])
    assert type(pickle.loads(pickle.dumps(chunk))) is DataChunk


def test_unbatching_deeper_than_the_data_is_an_error_that_names_the_level() -> None:
    with pytest.raises(IndexError, match="unbatch_level 2 exceeds the depth"):
        list(IterableWrapper([[1]]).unbatch(2))


def test_groups_that_leave_a_full_buffer_keep_their_own_key() -> None:
    pipe = IterableWrapper([1, 1, 2]).groupby(lambda n: n, keep_key=True, buffer_size=3)
    assert list(pipe) == [(1, [1, 1]), (2, [2])]


def test_a_full_buffer_of_small_groups_is_an_error_unless_they_are_dropped() -> None:
    sizes = {"buffer_size": 3, "group_size": 3, "guaranteed_group_size": 2}
    with pytest.raises(RuntimeError, match="Failed to group items"):
        list(IterableWrapper(range(5)).groupby(lambda n: n, **sizes))
    assert list(IterableWrapper([1, 2, 3, 3]).groupby(lambda n: n, drop_remaining=True, **sizes)) == [
        [3, 3],
        [2],
    ]


#: Orders that torchdata 0.9.0 gives for `IterableWrapper(range(10)).shuffle(buffer_size=…).set_seed(…)`.
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


def test_the_seed_of_an_iteration_can_be_asked_for_and_used_again() -> None:
    pipe = IterableWrapper(range(50)).shuffle()
    assert pipe.epoch_seed() is None
    order = list(pipe)
    assert list(pipe.set_seed(pipe.epoch_seed())) == order


def test_a_seed_set_before_the_first_iteration_is_part_of_the_state() -> None:
    state = save_state(IterableWrapper(range(50)).shuffle().set_seed(5))
    restored = IterableWrapper(range(50)).shuffle()
    load_state(restored, state)
    assert list(restored) == list(IterableWrapper(range(50)).shuffle().set_seed(5))


def test_turning_shuffling_off_acts_from_the_next_iteration_on() -> None:
    pipe = IterableWrapper(range(20)).shuffle(buffer_size=5).set_seed(1)
    expected = list(pipe)
    iterator = iter(pipe.set_seed(1))
    head = [next(iterator) for _ in range(3)]
    pipe.set_shuffle(False)
    assert head + list(iterator) == expected
    assert list(pipe) == list(range(20))


class Backwards:
    """A sampler with a length, whose order is restored from state."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Any:
        return iter(random.sample(range(len(self.data_source)), len(self.data_source)))


def test_a_random_sampler_is_restored_in_its_middle() -> None:
    pipe = Sampler(IterableWrapper(range(20)), Backwards)
    iterator = iter(pipe)
    head = [next(iterator) for _ in range(7)]
    restored = Sampler(IterableWrapper(range(20)), Backwards)
    load_state(restored, pickle.loads(pickle.dumps(save_state(pipe))))
    tail = list(restored)
    assert tail == list(iterator)
    assert sorted(head + tail) == list(range(20))


def test_torch_samplers_work() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert sorted(Sampler(IterableWrapper(range(5)), data.RandomSampler)) == [0, 1, 2, 3, 4]


def test_blocks_give_the_same_batches_for_any_number_of_workers() -> None:
    def batches(workers: int) -> list[list[int]]:
        found = []
        for worker in range(workers):
            pipe = IterableWrapper(range(23)).sharding_filter().set_sharding_block(4)
            pipe.apply_sharding(workers, worker)
            found.extend(pipe.batch(4))
        return sorted(found)

    assert batches(1) == batches(2) == batches(3) == batches(7)


@pytest.mark.parametrize(("shards", "block"), [(1, None), (2, None), (3, 2), (4, 5), (5, 1)])
def test_the_lengths_of_shards_are_the_numbers_of_their_items(shards: int, block: int | None) -> None:
    for shard in range(shards):
        pipe = IterableWrapper(range(23)).sharding_filter().set_sharding_block(block)
        pipe.apply_sharding(shards, shard)
        assert len(pipe) == len(list(pipe))
        assert list(pipe.set_sharding_enabled(False)) == list(range(23))
        assert len(pipe) == 23


@pytest.mark.parametrize("block", [1, 3])
def test_a_shard_restored_among_more_workers_reads_only_what_comes_after(block: int) -> None:
    pipe = IterableWrapper(range(40)).sharding_filter().set_sharding_block(block)
    pipe.apply_sharding(2, 0)
    iterator = iter(pipe)
    last = [next(iterator) for _ in range(5)][-1]
    restored = IterableWrapper(range(40)).sharding_filter().set_sharding_block(block)
    restored.apply_sharding(4, 1)
    load_state(restored, save_state(pipe))
    assert list(restored) == [n for n in range(last + 1, 40) if n // block % 4 == 1]


def test_sharding_cannot_mix_the_default_group_with_others() -> None:
    for first, second in ((1, 2), (3, 1)):
        pipe = IterableWrapper(range(3)).sharding_filter()
        pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(first))
        with pytest.raises(RuntimeError, match="cannot mix DEFAULT"):
            pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(second))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2, 2), ValueError),
        ((0, 0), ValueError),
        ((2, -1), ValueError),
        (("2", 0), TypeError),
        ((2, 0, 9), ValueError),
    ],
)
def test_impossible_shards_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        IterableWrapper(range(3)).sharding_filter().apply_sharding(*arguments)


def test_torch_s_sharding_priorities_are_accepted() -> None:
    torch_sharding = pytest.importorskip("torch.utils.data.datapipes.iter.sharding")
    priorities = torch_sharding.SHARDING_PRIORITIES
    pipe = IterableWrapper(range(10)).sharding_filter(priorities.MULTIPROCESSING)
    pipe.apply_sharding(2, 1, priorities.MULTIPROCESSING)
    pipe.apply_sharding(5, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    assert list(pipe) == [1, 3, 5, 7, 9]
    assert not IterableWrapper([]).sharding_round_robin_dispatch(priorities.MULTIPROCESSING).is_replicable()


def test_reading_one_child_again_invalidates_its_siblings() -> None:
    for left, right in (
        IterableWrapper(range(4)).fork(2),
        IterableWrapper(range(4)).demux(2, lambda n: n % 2),
        IterableWrapper([(n, n) for n in range(4)]).unzip(2),
    ):
        first, second = iter(left), iter(right)
        next(first)
        next(second)
        with pytest.warns(UserWarning, match="not exhausted"):
            again = iter(left)
        for stale in (first, second):
            with pytest.raises(RuntimeError, match="invalidated"):
                next(stale)
        joined = iter(right)  # joins the new generation: `again` stays valid
        assert len(list(again)) == len(list(joined)) > 0


def test_children_that_were_all_read_start_the_next_epoch_without_a_warning() -> None:
    left, right = IterableWrapper(range(4)).fork(2)
    for _ in range(3):
        assert list(left.zip(right)) == [(n, n) for n in range(4)]


def test_a_sibling_read_later_gets_what_waits_for_it() -> None:
    left, right = IterableWrapper(range(6)).demux(2, lambda n: n % 2)
    reader = iter(left)
    assert [next(reader), next(reader)] == [0, 2]
    assert list(right) == [1, 3, 5]
    assert list(reader) == [4]


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_a_child_too_far_ahead_is_a_buffer_error(buffer_size: int) -> None:
    left, _ = IterableWrapper(range(9)).fork(2, buffer_size=buffer_size)
    reader = iter(left)
    assert [next(reader) for _ in range(buffer_size)] == list(range(buffer_size))
    with pytest.raises(BufferError, match=f"buffer size {buffer_size} is insufficient"):
        next(reader)
    even, _ = IterableWrapper(range(9)).demux(2, lambda n: n % 2, buffer_size=buffer_size)
    with pytest.raises(BufferError, match=f"buffer size {buffer_size} is insufficient"):
        list(even)


def test_an_unlimited_buffer_is_warned_about_and_holds_everything() -> None:
    with pytest.warns(UserWarning, match="Unlimited buffer size"):
        left, right = IterableWrapper(range(2000)).fork(2, buffer_size=-1)
    assert list(left) == list(right)


@pytest.mark.parametrize(
    ("how", "same_item", "same_member"),
    [(None, True, True), ("shallow", False, True), ("deep", False, False)],
)
def test_forks_copy_items_as_they_are_told(how: Any, same_item: bool, same_member: bool) -> None:
    item = [[1]]
    left, right = IterableWrapper([item], deepcopy=False).fork(2, copy=how)
    (one,), (two,) = list(left), list(right)
    assert (one is two, one[0] is two[0]) == (same_item, same_member)


def test_a_fork_of_one_is_the_pipe_itself() -> None:
    pipe = IterableWrapper(range(3))
    assert pipe.fork(1) is pipe


@pytest.mark.parametrize("result", [2, -1, None])
def test_a_classification_out_of_range_is_an_error(result: Any) -> None:
    zero, _ = IterableWrapper(range(3)).demux(2, lambda n: result)
    with pytest.raises(ValueError, match="between 0 and 1"):
        list(zero)


def test_children_are_copied_together_with_what_they_share() -> None:
    children = IterableWrapper(range(4)).fork(2)
    next(iter(children[0]))
    for left, right in (copy.deepcopy(children), pickle.loads(cloudpickle.dumps(children))):
        assert left.main_datapipe is right.main_datapipe
        assert list(left.zip(right)) == [(n, n) for n in range(4)]


def test_cycling_for_ever_over_nothing_ends() -> None:
    assert list(IterableWrapper([]).cycle()) == []


def test_a_map_pipe_is_read_by_its_indices() -> None:
    pipe = Squares(4).to_iter_datapipe()
    assert isinstance(pipe, MapToIterConverter)
    assert (list(pipe), len(pipe)) == ([0, 1, 4, 9], 4)
    assert list(Squares(4).to_iter_datapipe(indices=[3, 1])) == [9, 1]
    iterator = iter(pipe)
    next(iterator)
    restored = Squares(4).to_iter_datapipe()
    load_state(restored, save_state(pipe))
    assert list(restored) == [1, 4, 9]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([1, 2], np.array([1, 2], dtype=np.int64)),
        ([1.5, 2], np.array([1.5, 2.0])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], dtype=np.float32)),
        ([np.zeros((2, 3), np.int8)] * 4, np.zeros((4, 2, 3), np.int8)),
        ([np.array(1), np.array(2)], np.array([1, 2])),
        ([np.arange(3, dtype=">i4")] * 2, np.array([[0, 1, 2]] * 2, dtype=np.int32)),
    ],
)
def test_numbers_and_arrays_are_stacked(batch: Any, expected: Any) -> None:
    result = default_collate(batch)
    assert (type(result), result.dtype) == (np.ndarray, expected.dtype)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("no_torch")
def test_structures_are_collated_member_by_member() -> None:
    item = {"point": Point(1, 2.0), "names": ("a", b"b"), "ordered": OrderedDict(z=[1, 2])}
    result = default_collate(DataChunk([item, item]))
    assert type(result["point"]) is Point
    np.testing.assert_array_equal(result["point"].y, [2.0, 2.0])
    assert result["names"] == [["a", "a"], [b"b", b"b"]]
    assert type(result["ordered"]) is OrderedDict
    np.testing.assert_array_equal(result["ordered"]["z"], [[1, 1], [2, 2]])


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([object()], TypeError, "object"),
        ([None, None], TypeError, "NoneType"),
        ([np.zeros(2), np.zeros(3)], ValueError, "equal size"),
        ([(1, 2), (1,)], RuntimeError, "equal size"),
        ([np.array([None])], TypeError, "object"),
        ([2**70], OverflowError, "large"),
    ],
)
def test_what_cannot_be_collated_is_named(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        default_collate(batch)


def test_with_torch_batches_become_the_tensors_that_torch_makes() -> None:
    torch = pytest.importorskip("torch")
    reference = torch.utils.data.default_collate
    for batch in (
        [1, 2], [1.5, 2.5], [True, False], [np.float32(1), np.float32(2)], [np.zeros((2, 3), np.int8)] * 2,
        [torch.ones(2)] * 3, [torch.ones(2, dtype=torch.bfloat16)] * 2, [torch.tensor(1), torch.tensor(2)],
        [torch.ones(2, requires_grad=True)] * 2,
    ):  # fmt: skip
        ours, theirs = default_collate(batch), reference(batch)
        assert (ours.dtype, ours.requires_grad) == (theirs.dtype, theirs.requires_grad)
        assert torch.equal(ours, theirs)
    ours = default_collate([{"a": (1, "x"), "b": Point(1, torch.ones(1))}] * 2)
    assert torch.equal(ours["a"][0], torch.tensor([1, 1]))
    assert ours["a"][1] == ["x", "x"]
    assert torch.equal(ours["b"].y, torch.ones(2, 1))
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TypeError):
        default_collate([np.array(["a"])])


@pytest.mark.usefixtures("no_torch")
def test_conversions_apply_to_columns_and_the_rest_is_collated_by_default() -> None:
    rows = IterableWrapper([{"a": 1, "b": 2}, {"a": 3, "b": 4}]).batch(2)
    (batch,) = rows.collate({"a": sum})
    assert batch["a"] == 4
    np.testing.assert_array_equal(batch["b"], [2, 4])
    (columns,) = IterableWrapper([(1, 2), (3, 4)]).batch(2).collate([max])
    assert columns[0] == 3
    np.testing.assert_array_equal(columns[1], [2, 4])
    with pytest.raises(RuntimeError, match="Conversion keys mismatch"):
        list(rows.collate({"c": sum}))


def test_a_collate_function_takes_precedence() -> None:
    assert list(Collator(IterableWrapper([[1, 2]]), conversion=max, collate_fn=sum)) == [3]


class Overriding(Mapper[int]):
    """A user's subclass with an `__iter__` of its own, which the base's state says nothing about."""

    def __iter__(self) -> Any:
        yield from enumerate(self.datapipe)


class Tagging(Mapper[Any]):
    """A user's subclass that goes through the base's `__iter__`."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [Overriding, Tagging])
def test_a_subclass_that_overrides_iter_is_replayed(kind: Any) -> None:
    pipe = kind(IterableWrapper(range(5)), plus_one)
    expected = list(pipe)
    iterator = iter(pipe)
    head = [next(iterator) for _ in range(2)]
    state = save_state(pipe)
    assert [entry["how"] for entry in state["pipes"]] == ["restart", "replay"]
    restored = kind(IterableWrapper(range(5)), plus_one)
    load_state(restored, state)
    assert head + list(restored) == expected


def test_branches_of_a_replayed_fork_are_replayed_in_step() -> None:
    def build() -> Any:
        left, right = IterableWrapper(range(50)).fork(2, buffer_size=2)
        return Doubling(left).zip(right)

    iterator = iter(pipe := build())
    head = [next(iterator) for _ in range(30)]
    restored = build()
    load_state(restored, save_state(pipe))
    assert head + list(restored) == [(2 * n, n) for n in range(50)]


def test_items_in_buffers_are_not_taken_for_sources() -> None:
    pipe = IterableWrapper([[IterableWrapper([n])] for n in range(4)], deepcopy=False).shuffle(buffer_size=2)
    next(iter(pipe))
    assert sources_of(pipe) == [pipe.datapipe]


def test_a_pipe_that_holds_much_data_is_searched_without_looking_at_the_data() -> None:
    class Holder(IterDataPipe):
        def __init__(self) -> None:
            self.data = [LooksAway()] * 5000
            self.array = np.zeros(10)

    class LooksAway:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AssertionError("the data was looked at")

    assert sources_of(Holder()) == []
