"""The pipes that `fork`, `demux` and `random_split` return can be read in any order, because items are buffered."""

import copy
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from stream_checks import check_restore
from torchdata.datapipes.iter import FileOpener, IterableWrapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper


def test_reading_one_child_again_invalidates_its_siblings() -> None:
    for left, right in (
        IterableWrapper(range(4)).fork(2),
        IterableWrapper(range(4)).demux(2, lambda n: n % 2),
        IterableWrapper([(n, n) for n in range(4)]).unzip(2),
        IterableWrapper(range(4)).round_robin_demux(2),
    ):
        first, second = iter(left), iter(right)
        next(first)
        next(second)
        with pytest.warns(UserWarning, match="not exhausted"):
            again = iter(left)
        for stale in (first, second):
            with pytest.raises(RuntimeError, match="invalidated"):
                next(stale)
        joined = iter(right)  # Reading `right` continues the iteration of `again`, and starts no new iteration.
        assert len(list(again)) == len(list(joined)) > 0


def test_a_sibling_that_is_read_later_gets_its_buffered_items() -> None:
    left, right = IterableWrapper(range(6)).demux(2, lambda n: n % 2)
    reader = iter(left)
    assert [next(reader), next(reader)] == [0, 2]
    assert list(right) == [1, 3, 5]
    assert list(reader) == [4]


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_a_child_that_is_too_far_ahead_raises_a_buffer_error(buffer_size: int) -> None:
    left, _ = IterableWrapper(range(9)).fork(2, buffer_size=buffer_size)
    reader = iter(left)
    assert [next(reader) for _ in range(buffer_size)] == list(range(buffer_size))
    with pytest.raises(BufferError, match=f"buffer size {buffer_size} is insufficient"):
        next(reader)
    even, _ = IterableWrapper(range(9)).demux(2, lambda n: n % 2, buffer_size=buffer_size)
    with pytest.raises(BufferError, match=f"demux: buffer overflow, buffer size {buffer_size} is insufficient"):
        list(even)
    first, _ = IterableWrapper(range(9)).round_robin_demux(2, buffer_size=buffer_size)
    with pytest.raises(BufferError, match=f"round_robin_demux: buffer overflow, buffer size {buffer_size} is"):
        list(first)


def test_an_unlimited_buffer_is_warned_about_and_holds_everything() -> None:
    with pytest.warns(UserWarning, match="Unlimited buffer size"):
        left, right = IterableWrapper(range(2000)).fork(2, buffer_size=-1)
    assert list(left) == list(right)


@pytest.mark.parametrize(
    ("how", "same_item", "same_member"), [(None, True, True), ("shallow", False, True), ("deep", False, False)]
)
def test_forks_copy_items_as_requested(how: Any, same_item: bool, same_member: bool) -> None:
    item = [[1]]
    left, right = IterableWrapper([item], deepcopy=False).fork(2, copy=how)
    (one,), (two,) = list(left), list(right)
    assert (one is two, one[0] is two[0]) == (same_item, same_member)


def test_a_split_into_one_child_is_the_pipe_itself() -> None:
    pipe = IterableWrapper(range(3))
    assert pipe.fork(1) is pipe
    with pytest.warns(UserWarning, match="nothing to split"):
        (child,) = pipe.round_robin_demux(1)
    assert child is pipe


def test_children_read_in_step_let_no_item_wait() -> None:
    first, second, third = IterableWrapper(range(3000)).round_robin_demux(3, buffer_size=2)
    for _ in range(2):  # If all children were read completely, the next epoch starts without a warning.
        assert list(first.zip(second, third)) == [(n, n + 1, n + 2) for n in range(0, 3000, 3)]


@pytest.mark.parametrize("split", ["demux", "round_robin_demux"])
def test_streams_that_wait_for_a_child_are_closed_when_the_children_start_over(split: str) -> None:
    streams = [StreamWrapper(io.BytesIO()) for _ in range(6)]
    pipe = IterableWrapper(list(enumerate(streams)), deepcopy=False)
    left, _ = pipe.demux(2, lambda item: item[0] % 2) if split == "demux" else pipe.round_robin_demux(2)
    reader = iter(left)
    assert [next(reader)[0] for _ in range(3)] == [0, 2, 4]  # Items 1 and 3 are buffered for the second child.
    assert not any(stream.closed for stream in streams)
    with pytest.warns(UserWarning, match="not exhausted"):
        iter(left)
    assert [number for number, stream in enumerate(streams) if stream.closed] == [1, 3]


@pytest.mark.parametrize(
    ("split", "order", "closes"),
    [
        (lambda pipe: pipe.demux(2, lambda item: int(Path(item[0]).stem) % 2), [1, 3, 0, 2, 4], True),
        (lambda pipe: pipe.round_robin_demux(2), [1, 3, 0, 2, 4], True),
        (lambda pipe: pipe.fork(2, copy="deep"), [0, 1, 2, 3, 4] * 2, False),
    ],
    ids=["demux", "round_robin_demux", "fork"],
)
def test_files_that_wait_for_a_child_are_restored_and_closed(
    split: Any, order: list[int], closes: bool, tmp_path: Path
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(str(number))

    def build() -> Any:
        left, right = split(FileOpener(IterableWrapper(sorted(map(str, tmp_path.iterdir()))), mode="rb"))
        return right.concat(left)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some child DataPipes are not exhausted")  # children are abandoned on purpose
        assert [int(content) for _, content in check_restore(build, files=closes)] == order


@pytest.mark.parametrize("result", [2, -1, None])
def test_a_classification_out_of_range_raises_an_error(result: Any) -> None:
    zero, _ = IterableWrapper(range(3)).demux(2, lambda n: result)
    with pytest.raises(ValueError, match="between 0 and 1"):
        list(zero)


def test_children_are_copied_together_with_what_they_share() -> None:
    children = IterableWrapper(range(4)).fork(2)
    next(iter(children[0]))
    for left, right in (copy.deepcopy(children), pickle.loads(cloudpickle.dumps(children))):
        assert left.main_datapipe is right.main_datapipe
        assert list(left.zip(right)) == [(n, n) for n in range(4)]


READERS = {
    "fork": lambda pipe: pipe.fork(2),
    "demux": lambda pipe: pipe.demux(2, lambda n: n % 2),
    "unzip": lambda pipe: pipe.map(lambda n: (n, -n)).unzip(2),
    "round_robin_demux": lambda pipe: pipe.round_robin_demux(2),
    "random_split": lambda pipe: pipe.random_split({"a": 1, "b": 1}, 0),
}


@pytest.mark.parametrize("split", READERS)
def test_an_unread_child_joins_its_restored_sibling(split: str) -> None:
    def build() -> Any:
        # If a restored pipe rereads the shuffled source by mistake, the order changes, which the test detects.
        source = IterableWrapper(range(12)).shuffle().set_seed(3)
        left, right = READERS[split](source if split != "random_split" else IterableWrapper(range(12)))
        return left.concat(right)

    whole = list(build())
    for position in range(len(whole) + 1):
        pipe = build()
        iterator = iter(pipe)
        head = [next(iterator) for _ in range(position)]
        load_state(other := build(), pickle.loads(cloudpickle.dumps(save_state(pipe))))
        assert head + list(other) == whole  # A warning about rereading would fail the test.
