"""Pipes that batch items of similar size, so that little padding is needed: BucketBatcher, MaxTokenBucketizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from numbers import Real
from typing import Any

from torchdata._plain_pickles import register
from torchdata.datapipes._pipe.checks import (
    BATCH_SIZE,
    POSITIVE,
    check_callable,
    check_int,
    check_size,
    check_source,
    on_failure,
    wrong_type,
)
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.streams import close_dropped, with_detached_streams
from torchdata.datapipes.datapipe import DataChunk, IterDataPipe, T

__all__ = ["BucketBatcher", "MaxTokenBucketizer"]


_MIN_LEN = "``min_len`` should be larger than 0 and equal to or smaller than ``max_len``."


class BucketBatcher(IterDataPipe[DataChunk[Any]]):
    """Makes batches of similar items by sorting one bucket of items at a time, and yields the batches in random order.

    A bucket has `batch_size * batch_num` items. Items are first shuffled in pools of `bucket_num` buckets. If
    `sort_key` is given and `bucket_num` is 1, items are not shuffled in pools. If `sort_key` is given, each bucket is
    sorted and divided into batches, and then the batches are shuffled. The length of the pipe is known only if
    `sort_key` is None and `use_in_batch_shuffle` is False.

    Args:
        datapipe: the pipe to read.
        batch_size: the number of items per batch (the last batch may have fewer).
        drop_last: whether an incomplete last batch is left out; False by default.
        batch_num: number of batches in a bucket, 100 by default.
        bucket_num: number of buckets in a pool of items that are shuffled together, 1 by default.
        sort_key: a function from a bucket (a list of items) to the sorted list, such as `sorted` or
            `functools.partial(sorted, key=len)`. If `sort_key` is None, items are not sorted.
        use_in_batch_shuffle: whether each pool of items and each group of `bucket_num` batches is shuffled separately;
            True by default. If `use_in_batch_shuffle` is False, items are shuffled with a buffer of the size of a pool,
            and batches with a buffer of the size of a bucket.

    Raises:
        AssertionError: `batch_size`, `batch_num` or `bucket_num` is not positive.
        TypeError: `batch_size`, `batch_num` or `bucket_num` is not an integer, or `sort_key` is not a function; or,
            while iterating, `sort_key` returned no list.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> words = IterableWrapper(["ccc", "a", "bb", "dddd"])
        >>> list(words.bucketbatch(batch_size=2, sort_key=lambda bucket: sorted(bucket, key=len)))
        [['a', 'bb'], ['ccc', 'dddd']]
    """

    def __new__(  # type: ignore[misc]  # the result consists of other pipes, as in upstream
        cls,
        datapipe: Iterable[T],
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[T]], Sequence[T]] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[DataChunk[T]]:
        pipe: Any = check_source("BucketBatcher", datapipe)
        check_size("BucketBatcher", "batch_size", batch_size, BATCH_SIZE)
        check_size("BucketBatcher", "batch_num", batch_num)
        check_size("BucketBatcher", "bucket_num", bucket_num)
        check_callable("BucketBatcher", "sort_key", sort_key, optional=True)
        bucket_size = batch_size * batch_num
        if bucket_num > 1 or sort_key is None:
            pipe = _shuffled(pipe, bucket_size * bucket_num, bucket_size * bucket_num, use_in_batch_shuffle)
        if sort_key is not None:
            pipe = pipe.batch(bucket_size).map(partial(_sorted_bucket, sort_key)).unbatch()
        pipe = pipe.batch(batch_size, drop_last=drop_last)
        if sort_key is not None:
            pipe = _shuffled(pipe, bucket_num, bucket_size, use_in_batch_shuffle)
        batches: IterDataPipe[DataChunk[T]] = pipe
        return batches


def _shuffled(pipe: Any, group_size: int, buffer_size: int, in_batch: bool) -> Any:
    if in_batch:
        return pipe.batch(group_size).in_batch_shuffle().unbatch()
    return pipe.shuffle(buffer_size=buffer_size)


def _sorted_bucket(sort_key: Callable[[list[Any]], Any], bucket: list[Any]) -> list[Any]:
    result = sort_key(bucket)
    if isinstance(result, list):
        return result
    if not isinstance(result, Sequence):
        raise TypeError(
            f"BucketBatcher: sort_key must return the sorted bucket as a list, but returned {result!r} of type "
            f"{type(result).__name__}; `sorted(bucket)` returns one, `bucket.sort()` does not"
        )
    return list(result)


class _Measured(tuple[Any]):
    """A tuple with the length of an item as its only member.

    A heap of `_Measured` tuples compares lengths without running Python code.
    """

    item: Any


def _measured(length: Any, item: Any) -> _Measured:
    measured = _Measured((length,))
    measured.item = item
    return measured


register(_Measured, lambda measured: (_measured, (measured[0], measured.item)), _measured)


def _default_len_fn(token: Any) -> int:
    return len(token)


class MaxTokenBucketizer(IterDataPipe[DataChunk[Any]]):
    """Makes batches of items of similar length with a limited total length.

    Items wait in a buffer, and the shortest item leaves the buffer first. A batch is yielded when the next item would
    exceed `max_token_count`. The order of the items is the same as in torchdata 0.9.

    Args:
        datapipe: the pipe to read.
        max_token_count: the largest total length of a batch, in the unit of `len_fn`.
        len_fn: a function from an item to its length; `len` by default.
        min_len: minimum length; shorter items are dropped, and streams in them are closed. 0 by default.
        max_len: maximum length; longer items are dropped. `max_token_count` by default.
        buffer_size: maximum number of items in the buffer, 1,000 by default.
        include_padding: whether the total length of a batch includes padding, which makes all its items as long as the
            longest item; False by default.

    Raises:
        TypeError: `len_fn` is not a function, a length is not a number, or `buffer_size` is not an integer.
        ValueError: the arguments do not satisfy `0 <= min_len <= max_len <= max_token_count` and `0 < buffer_size`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["aaa", "b", "cc", "d"]).max_token_bucketize(max_token_count=4))
        [['b', 'd', 'cc'], ['aaa']]
    """

    _heap: list[_Measured] = checked_state(([_Measured],), list, items=True)
    _batch: list[Any] = state(list, items=True)
    _tokens: Any = state(lambda: 0)  # the length of the batch, in any numeric type that `len_fn` returns
    _longest: Any = state(lambda: 0)

    def __init__(
        self,
        datapipe: Iterable[Any],
        max_token_count: float,
        len_fn: Callable[[Any], Any] = _default_len_fn,
        min_len: float = 0,
        max_len: float | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> None:
        name = "MaxTokenBucketizer"
        self.datapipe = check_source(name, datapipe)
        check_callable(name, "len_fn", len_fn)
        longest = max_token_count if max_len is None else max_len
        for argument, value in (("max_token_count", max_token_count), ("min_len", min_len), ("max_len", longest)):
            if not isinstance(value, Real):
                raise wrong_type(name, argument, "a number", value)
        if min_len < 0:
            raise ValueError(f"{name}: min_len must be at least 0, but got {min_len}. {_MIN_LEN}")
        if not min_len <= longest:
            raise ValueError(
                f"{name}: got min_len={min_len} with max_len={longest} (max_token_count where that is None). {_MIN_LEN}"
            )
        if longest > max_token_count:
            raise ValueError(
                f"{name}: got max_token_count={max_token_count} with max_len={longest}, but a longer item would fit "
                "into no batch. ``max_token_count`` must be equal to or greater than ``max_len``."
            )
        self.max_token_count = max_token_count
        self.len_fn = len_fn
        self.min_len, self.max_len = min_len, longest
        self.buffer_size = check_int(name, "buffer_size", buffer_size, least=1, words=POSITIVE.format("buffer_size"))
        self.include_padding = include_padding

    def __iter__(self) -> Iterator[DataChunk[Any]]:
        return self._batches(iter(self.datapipe))

    def _batches(self, source: Iterator[Any]) -> Iterator[DataChunk[Any]]:
        heap, size, length_of_item = self._heap, self.buffer_size, self.len_fn
        shortest, longest = self.min_len, self.max_len
        with on_failure(lambda: self._detach_buffered(heap)):
            for item in source:
                length = length_of_item(item)
                if not shortest <= length <= longest:
                    close_dropped(item)
                    continue
                heappush(heap, _measured(length, item))
                if len(heap) >= size and (full := self._move_shortest()) is not None:
                    yield full
            while heap:
                if (full := self._move_shortest()) is not None:
                    yield full
            if self._batch:
                rest, self._batch = self._batch, []
                yield DataChunk(rest)

    def _detach_buffered(self, heap: list[_Measured]) -> None:
        """Unless a newer iteration has begun, replaces the files in buffered items by placeholders that can reopen the
        files."""
        if self._heap is heap:
            for measured in heap:
                measured.item = with_detached_streams(measured.item)
            self._batch = list(map(with_detached_streams, self._batch))

    def _move_shortest(self) -> DataChunk[Any] | None:
        """Moves the shortest item of the buffer into the current batch. If the item does not fit into the current
        batch, returns this batch, and begins a new batch with the item."""
        measured = heappop(self._heap)
        (length,) = measured
        if self.include_padding:
            self._longest = max(length, self._longest)
            tokens = (len(self._batch) + 1) * self._longest
        else:
            tokens = self._tokens + length
        if tokens <= self.max_token_count:
            self._batch.append(measured.item)
            self._tokens = tokens
            return None
        full, self._batch = self._batch, [measured.item]
        self._tokens = self._longest = length
        return DataChunk(full)
