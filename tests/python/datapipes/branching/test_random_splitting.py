"""`random_split` assigns items to children according to a seed."""

import copy
import io
import itertools
import pickle
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipes_table.core import Doubling
from resuming import with_state
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper

UPSTREAM_SPLITS: list[tuple[dict[str, float], Any, list[list[int]]]] = [
    ({"train": 8, "valid": 2}, 0, [[1, 2, 3, 4, 5, 7, 8, 9], [0, 6]]),
    ({"a": 0.5, "b": 0.3, "c": 0.2}, 7, [[0, 1, 3, 5, 6], [2, 4, 8], [7, 9]]),
    ({"a": 1, "b": 1}, "x", [[2, 4, 5, 6, 7], [0, 1, 3, 8, 9]]),
]


def halves(seed: Any, count: int = 10) -> list[Any]:
    children: list[Any] = IterableWrapper(range(count)).random_split({"a": 1, "b": 1}, seed)
    return children


@pytest.mark.parametrize(("weights", "seed", "groups"), UPSTREAM_SPLITS)
def test_a_seed_gives_the_groups_that_torchdata_0_9_gives(
    weights: dict[str, float], seed: Any, groups: list[list[int]]
) -> None:
    children = IterableWrapper(range(10)).random_split(weights, seed)
    assert [list(child) for child in children] == groups
    assert [list(child) for child in children] == groups, "every epoch has the same split"
    one_by_one = [IterableWrapper(range(10)).random_split(weights, seed, target=key) for key in weights]
    assert [list(child) for child in one_by_one] == groups


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any),
    seed=st.integers() | st.text(max_size=5) | st.binary(max_size=5),
)
def test_groups_of_whole_sizes_have_these_sizes_and_share_nothing(sizes: list[int], seed: Any) -> None:
    total = sum(sizes)
    children = IterableWrapper(range(total)).random_split(dict(enumerate(sizes)), seed)
    groups = [list(child) for child in children]
    assert [len(child) for child in children] == [len(group) for group in groups] == sizes
    assert sorted(itertools.chain(*groups)) == list(range(total))


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5), total=st.integers(0, 60), seed=st.integers())
def test_groups_of_other_sizes_differ_by_one_item(weights: list[float], total: int, seed: int) -> None:
    children = IterableWrapper(range(total)).random_split(dict(enumerate(weights)), seed)
    groups = [list(child) for child in children]
    assert sorted(itertools.chain(*groups)) == list(range(total))
    wanted = [weight / sum(weights) * total for weight in weights]
    assert all(abs(len(group) - size) <= len(weights) for group, size in zip(groups, wanted, strict=True))


def test_an_item_beyond_the_total_length_raises_an_error_that_names_it() -> None:
    children = IterableWrapper(range(6)).random_split({"a": 1, "b": 1}, 0, total_length=5)
    with pytest.raises(ValueError, match="more items than total_length=5"):
        list(children[0])


def test_the_last_item_of_a_weight_that_is_rounded_down_is_split_too() -> None:
    (child,) = IterableWrapper(range(31)).random_split({"all": 0.14781480333487151}, 0)
    assert list(child) == list(range(31))


def test_one_child_is_read_at_a_time() -> None:
    left, right = halves(0)
    reader = iter(left)
    next(reader)
    assert len(list(right)) == 5
    with pytest.raises(RuntimeError, match="invalidated"):
        next(reader)
    with pytest.raises(RuntimeError, match="invalidated"):
        list(left.zip(right))


def test_overriding_the_seed_changes_the_split_of_all_children_in_the_next_iteration() -> None:
    left, right = halves(0)
    reader = iter(left)
    head = [next(reader)]
    assert left.override_seed("x") is left
    assert head + list(reader) == list(halves(0)[0])
    for _ in range(2):
        assert [list(left), list(right)] == [list(child) for child in halves("x")]


def test_without_a_seed_the_children_agree_on_one_that_is_drawn_once() -> None:
    left, right = halves(None, 100)
    split = list(left), list(right)
    assert sorted(itertools.chain(*split)) == list(range(100))
    for pair in ((left, right), copy.deepcopy([left, right]), pickle.loads(cloudpickle.dumps([left, right]))):
        assert tuple(map(list, pair)) == split
    assert list(halves(None, 100)[0]) != split[0]
    left.override_seed(None)
    assert list(left) != split[0]


@pytest.mark.parametrize("position", [1, 2, 5])
def test_a_replayed_child_has_the_seeds_of_the_saved_one(position: int) -> None:
    pipe = Doubling(halves(0)[0])
    pipe.source_datapipe.override_seed(3)
    reader = iter(pipe)
    head = [next(reader) for _ in range(position)]
    pipe.source_datapipe.override_seed(4)
    state = pickle.loads(cloudpickle.dumps(save_state(pipe)))
    other = with_state(Doubling(halves(0)[0]), state)
    assert head + list(other) == [2 * n for n in halves(3)[0]]
    assert list(other) == [2 * n for n in halves(4)[0]], "the other child uses the seed of the next epoch"


def test_a_state_saved_before_the_first_iteration_has_the_seed_too() -> None:
    left, _ = halves(0)
    state = save_state(left.override_seed(3))
    other, _ = halves(0)
    load_state(other, state)
    assert list(other) == list(halves(3)[0])


def test_a_length_is_known_for_whole_sizes_and_can_be_set_for_others() -> None:
    sizes = {"a": 7, "b": 3}
    assert [len(child) for child in IterableWrapper(range(10)).random_split(sizes, 0)] == [7, 3]
    child = IterableWrapper(range(10)).random_split({"a": 0.73, "b": 0.27}, 0, target="a")
    with pytest.raises(TypeError, match=r"cannot be known in advance .*'a'.*set_length"):
        len(child)
    assert len(child.set_length(7)) == 7


def test_streams_in_items_of_other_groups_are_closed() -> None:
    streams = [StreamWrapper(io.BytesIO()) for _ in range(10)]
    numbered = IterableWrapper(list(enumerate(streams)), deepcopy=False)
    own = {number for number, _ in numbered.random_split({"a": 1, "b": 1}, 0, target="a")}
    assert own == {number for number, stream in enumerate(streams) if not stream.closed}


def test_a_child_is_shuffled_and_sharded_over_workers_without_leaving_its_group() -> None:
    train, valid = IterableWrapper(range(40)).random_split({"train": 30, "valid": 10}, 0)
    expected = list(train)
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    with DataLoader2(train.shuffle().sharding_filter(), reading_service=service) as loader:
        epochs = [list(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 2
    assert epochs[0] != epochs[1]
    assert not set(expected) & set(valid)
