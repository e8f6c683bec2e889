"""Pipes that are split: children, the generations in which they are read, and what waits for them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pytest

from torchdata.datapipes.iter import IterableWrapper


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
