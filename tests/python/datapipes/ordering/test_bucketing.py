"""Pipes that group similar items into batches create the same batches as torchdata 0.9."""

import io
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipes_table import seed
from stream_checks import check_restore, read
from torchdata.datapipes.iter import FileOpener, IterableWrapper
from torchdata.datapipes.utils import StreamWrapper

NUMBERS = [7, 3, 9, 1, 4, 0, 8, 2, 6, 5]

UPSTREAM_BUCKETS: list[tuple[dict[str, Any], list[list[int]]]] = [
    ({"batch_size": 3, "drop_last": True}, [[5, 4, 0], [8, 2, 6], [7, 3, 1]]),
    ({"batch_size": 3, "batch_num": 2, "bucket_num": 2, "sort_key": sorted}, [[5, 6, 8], [0, 2, 4], [1, 3, 7], [9]]),
    (
        {"batch_size": 2, "batch_num": 2, "sort_key": sorted, "use_in_batch_shuffle": False},
        [[0, 2], [5, 6], [4, 8], [1, 3], [7, 9]],
    ),
    ({"batch_size": 4, "batch_num": 1, "use_in_batch_shuffle": False}, [[9, 4, 7, 1], [3, 8, 6, 5], [2, 0]]),
]

WORDS = ["aa", "b", "cc", "d", "ee", "f", "gg", "hhh"]

UPSTREAM_TOKENS: list[tuple[dict[str, Any], list[list[str]]]] = [
    ({"buffer_size": 5}, [["b", "d", "f", "cc"], ["gg", "ee"], ["aa", "hhh"]]),
    ({"buffer_size": 3, "include_padding": True}, [["b", "d"], ["cc", "f"], ["ee", "aa"], ["gg"], ["hhh"]]),
]


@pytest.mark.parametrize(("arguments", "batches"), UPSTREAM_BUCKETS)
def test_a_seed_gives_the_buckets_that_torchdata_0_9_gives(arguments: dict[str, Any], batches: list[list[int]]) -> None:
    assert list(seed(IterableWrapper(NUMBERS).bucketbatch(**arguments), 5)) == batches


@pytest.mark.parametrize(("arguments", "batches"), UPSTREAM_TOKENS)
def test_items_of_equal_length_leave_the_heap_as_in_torchdata_0_9(
    arguments: dict[str, Any], batches: list[list[str]]
) -> None:
    assert list(IterableWrapper(WORDS).max_token_bucketize(5, **arguments)) == batches


def test_the_length_of_buckets_is_known_if_only_a_buffer_shuffles() -> None:
    source = IterableWrapper(range(5))
    assert len(source.bucketbatch(2, use_in_batch_shuffle=False)) == 3
    assert len(source.bucketbatch(2, drop_last=True, use_in_batch_shuffle=False)) == 2
    for pipe in (source.bucketbatch(2), source.bucketbatch(2, sort_key=sorted, use_in_batch_shuffle=False)):
        with pytest.raises(TypeError, match="valid length"):
            len(pipe)


def test_a_sort_key_that_sorts_in_place_and_returns_none_raises_an_error_that_explains_it() -> None:
    with pytest.raises(TypeError, match=r"sort_key must return the sorted bucket as a list, but returned None"):
        list(IterableWrapper([2, 1]).bucketbatch(1, sort_key=lambda bucket: bucket.sort()))


def test_a_sort_key_may_return_any_sequence() -> None:
    def as_tuple(bucket: list[int]) -> tuple[int, ...]:
        return tuple(sorted(bucket))

    assert list(IterableWrapper([3, 1, 2]).bucketbatch(2, sort_key=as_tuple)) == [[1, 2], [3]]
    by_length = partial(sorted, key=len)
    assert list(IterableWrapper(["ccc", "a", "bb"]).bucketbatch(3, sort_key=by_length)) == [["a", "bb", "ccc"]]


def test_shuffling_in_batches_does_not_change_the_original_batch() -> None:
    batch = [1, 2, 3, 4, 5]
    (result,) = IterableWrapper([batch], deepcopy=False).in_batch_shuffle().set_seed(123)
    assert (sorted(result), batch) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert result != batch


def test_a_seed_gives_the_order_in_batches_that_torchdata_0_9_gives() -> None:
    pipe = IterableWrapper(range(10)).batch(4).in_batch_shuffle().set_seed(123)
    assert list(pipe) == [[0, 1, 3, 2], [6, 4, 7, 5], [9, 8]]


@pytest.mark.parametrize("item", [1, {1, 2}, iter([1])])
def test_shuffling_in_batches_without_batches_raises_an_error(item: Any) -> None:
    with pytest.raises(TypeError, match=r"InBatchShuffler expects batches.*put `.batch"):
        list(IterableWrapper([item], deepcopy=False).in_batch_shuffle())


def test_streams_in_items_of_unwanted_lengths_are_closed() -> None:
    streams = {size: StreamWrapper(io.BytesIO()) for size in (1, 2, 9)}
    pipe = IterableWrapper(list(streams.items()), deepcopy=False)
    batches = list(pipe.max_token_bucketize(4, len_fn=lambda item: item[0], min_len=2))
    assert [[size for size, _ in batch] for batch in batches] == [[2]]
    assert {size: stream.closed for size, stream in streams.items()} == {1: True, 2: False, 9: True}


def test_items_that_cannot_be_compared_are_bucketized_only_by_length() -> None:
    items = [{"text": "bb"}, {"text": "a"}, {"text": "cc"}]
    pipe = IterableWrapper(items).max_token_bucketize(4, len_fn=lambda item: len(item["text"]))
    assert [[item["text"] for item in batch] for batch in pipe] == [["a", "bb"], ["cc"]]


def buckets_of_files(folder: Path) -> Any:
    files = FileOpener(IterableWrapper(sorted(map(str, folder.iterdir()))), mode="rb")
    return files.max_token_bucketize(9, len_fn=lambda item: len(Path(item[0]).name), buffer_size=3)


def test_files_that_wait_for_their_batch_are_closed_and_part_of_the_state(tmp_path: Path) -> None:
    for name in ("a", "bb", "ccc", "dddd", "e", "ff", "ggg"):
        (tmp_path / name).write_text(name)

    def contents(batch: Any) -> list[bytes]:
        return [read(item)[1] for item in batch]

    batches = check_restore(lambda: buckets_of_files(tmp_path), keep=contents)
    assert sorted(itertools.chain(*batches)) == [b"a", b"bb", b"ccc", b"dddd", b"e", b"ff", b"ggg"]
