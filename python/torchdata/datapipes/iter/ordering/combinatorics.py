"""Pipes that change the order of items: Shuffler, InBatchShuffler, Sampler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Literal, overload

from torchdata.datapipes._pipe.checks import check_callable, check_size, check_source, length_of
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.seeding import Shuffling
from torchdata.datapipes._pipe.seeking import iterate_from
from torchdata.datapipes._pipe.state.chunked_list import CHUNK_SIZE, ChunkedList
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.unloaded import Load, begin_unloaded, can_wait
from torchdata.datapipes.datapipe import DataChunk, IterDataPipe, T, T_co, token_of

__all__ = ["InBatchShuffler", "Sampler", "SequentialSampler", "Shuffler"]


class Shuffler(SameLength, Shuffling, IterDataPipe[T_co]):
    """Shuffles with a buffer: once the buffer is full, a random item is yielded and replaced by the next item.

    The order depends only on the seed. torchdata 0.9 yields the same order for the same seed.

    Args:
        datapipe: the pipe to read.
        buffer_size: number of items in the buffer, 10,000 by default. With `buffer_size=1`, items are not shuffled. A
            buffer as large as the dataset shuffles completely.
        unbatch_level: number of levels of lists to remove before shuffling, as by `unbatch`; 0 by default.

    Raises:
        AssertionError: `buffer_size` is not positive.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> sorted(IterableWrapper(range(5)).shuffle().set_seed(0))
        [0, 1, 2, 3, 4]
    """

    #: A list of items, or a `ChunkedList` when the source has ended and more than `CHUNK_SIZE` items remain.
    _buffer: Any = state(list, items=True)
    #: Whether the buffer contains indices instead of items, because a later `sharding_filter` loads the items (see
    #: `_pipe/unloaded.py`).
    _unloaded: bool = state(False)

    @overload
    def __init__(
        self: Shuffler[T], datapipe: Iterable[T], *, buffer_size: int = 10000, unbatch_level: Literal[0] = 0
    ) -> None: ...

    @overload
    def __init__(
        self: Shuffler[Any], datapipe: Iterable[Any], *, buffer_size: int = 10000, unbatch_level: int
    ) -> None: ...

    def __init__(self, datapipe: Iterable[Any], *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        datapipe = check_source("Shuffler", datapipe)
        self.buffer_size = check_size("Shuffler", "buffer_size", buffer_size, "buffer_size should be larger than 0")
        if unbatch_level != 0:
            from torchdata.datapipes.iter.ordering.grouping import UnBatcher

            datapipe = UnBatcher(datapipe, unbatch_level=unbatch_level)
        self.datapipe = datapipe
        self._rng = random.Random()

    def __iter__(self) -> Iterator[T_co]:
        if self._unloaded:  # the restored buffer contains indices, not items
            source, load = begin_unloaded(self.datapipe)
            return map(load, self._in_order(source))
        return self._in_order(iter(self.datapipe))

    def _in_order(self, source: Iterator[Any]) -> Iterator[Any]:
        return self._shuffled(source) if self._shuffling else source

    def _can_wait(self) -> bool:
        # One buffer cannot mix items and indices, so this iteration yields items if a loaded state contains items.
        restored = token_of(self).armed and bool(self._buffer)
        return can_wait(self.datapipe) and (self._unloaded or not restored)

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        self._unloaded = True
        indices, load = begin_unloaded(self.datapipe)
        return self._in_order(indices), load

    def _loads(self) -> Load:
        return self.datapipe._loads()  # type: ignore[attr-defined, no-any-return]

    def _shuffled(self, source: Iterator[T_co]) -> Iterator[T_co]:
        # The loops below draw the same numbers as `random.Random.randint`, but with fewer Python calls.
        buffer, size, getrandbits = self._buffer, self.buffer_size, self._rng.getrandbits
        if len(buffer) > size:
            raise ValueError(f"Shuffler: the loaded state has {len(buffer)} items, more than buffer_size={size}")
        buffer.extend(islice(source, size - len(buffer)))
        if len(buffer) == size:
            width = size.bit_length()
            for item in source:
                index = getrandbits(width)
                while index >= size:
                    index = getrandbits(width)
                chosen, buffer[index] = buffer[index], item
                yield chosen
        left = len(buffer)
        if left > CHUNK_SIZE:
            buffer = self._buffer = ChunkedList(buffer)
        while left:
            width = left.bit_length()
            index = getrandbits(width)
            while index >= left:
                index = getrandbits(width)
            left -= 1
            yield buffer.pop(index)


class InBatchShuffler(SameLength, Shuffling, IterDataPipe[DataChunk[Any]]):
    """Shuffles the members of each batch and keeps the order of the batches.

    The order depends only on the seed. torchdata 0.9 yields the same order for the same seed.

    Args:
        datapipe: the pipe to read, of batches, which are lists or other sequences.

    Raises:
        TypeError: while iterating, an item is not a sequence.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(5)).batch(3).in_batch_shuffle().set_seed(1))
        [[0, 2, 1], [3, 4]]
    """

    def __init__(self, datapipe: Iterable[Sequence[Any]]) -> None:
        self.datapipe = check_source("InBatchShuffler", datapipe)
        self._rng = random.Random()

    def __iter__(self) -> Iterator[DataChunk[Any]]:
        return map(self._shuffled, self.datapipe) if self._shuffling else iter(self.datapipe)  # type: ignore[arg-type]

    def _shuffled(self, batch: Any) -> DataChunk[Any]:
        if not isinstance(batch, Sequence):
            raise TypeError(
                f"InBatchShuffler expects batches, that is, lists or other sequences, but got {batch!r} of type "
                f"{type(batch).__name__}; put `.batch(...)` before it"
            )
        return DataChunk(self._rng.sample(batch, len(batch)))


class SequentialSampler:
    """Yields the indices of a source in order.

    Args:
        data_source: the source, an object with a length.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class Sampler(IterDataPipe[Any]):
    """Yields the values of a sampler; usually, these are indices of a source's items.

    Args:
        datapipe: the source, which must have a length.
        sampler: the class of the sampler, such as a sampler class of torch. The sampler class is called with
            `data_source=datapipe` and the arguments below, and its instance is iterated. The default,
            `SequentialSampler`, yields the indices in ascending order.
        sampler_args: positional arguments of the sampler; None (the default) for no arguments.
        sampler_kwargs: keyword arguments of the sampler; None (the default) for no arguments.

    Raises:
        AssertionError: the length of the source is unknown.
        TypeError: `sampler` cannot be called.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper, Sampler
        >>> list(Sampler(IterableWrapper("abc")))
        [0, 1, 2]
    """

    _order: Any = checked_state((range | list | None,), items=True)

    def __init__(
        self,
        datapipe: Any,
        sampler: Callable[..., Any] = SequentialSampler,
        sampler_args: tuple[Any, ...] | None = None,
        sampler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        try:
            len(datapipe)
        except TypeError as error:
            raise AssertionError(f"Sampler: the source must have a length: {error}") from error
        check_callable("Sampler", "sampler", sampler)
        self.datapipe = datapipe
        self.sampler_args = () if sampler_args is None else tuple(sampler_args)
        self.sampler_kwargs = {**(sampler_kwargs or {}), "data_source": datapipe}
        self.sampler = sampler(*self.sampler_args, **self.sampler_kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self._order is None:
            # A sampler with a length is read completely before the first index is yielded, because its order may be
            # random and must be saved.
            sequential = isinstance(self.sampler, SequentialSampler)
            finite = isinstance(self.sampler, Sized)
            self._order = range(len(self.sampler)) if sequential else list(self.sampler) if finite else self.sampler
        return iterate_from(self._order, token_of(self).yielded)

    def __len__(self) -> int:
        return length_of(self, self.sampler)

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order if isinstance(self._order, (range, list)) else None}
