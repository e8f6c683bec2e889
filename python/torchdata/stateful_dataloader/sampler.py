"""PyTorch's samplers with iterators that can be saved and restored.

Role: the samplers draw the same numbers from the same generators at the same times as PyTorch's samplers. The states of
these samplers have the format of torchdata 0.11.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
import torch.utils.data.distributed
from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._stateful import is_stateful, load_into
from torchdata.datapipes._pipe.seeking import seek
from torchdata.stateful_dataloader._generators import decoded, encoded, flag, read, write
from torchdata.stateful_dataloader._layout import BatchesState, IndicesState, count_in, listed, parse_indices
from torchdata.stateful_dataloader._position import UNKNOWN

__all__ = ["BatchSampler", "RandomSampler", "StatefulDistributedSampler"]

# The number of indices per draw with replacement, as in PyTorch's sampler.
_CHUNK = 32
_NONE: Any = object()


class RandomSampler(torch.utils.data.RandomSampler):
    """PyTorch's `RandomSampler`, with iterators that can be saved and restored.

    Args:
        data_source: the dataset to sample from; only its length is used.
        replacement: whether an index may be drawn more than once; False by default.
        num_samples: the number of indices per epoch; by default (None), the length of `data_source`.
        generator: the `torch.Generator` to draw from. By default (None), each epoch creates a generator that is seeded
            from PyTorch's global generator.

    Raises:
        TypeError: `replacement` is not a bool.
        ValueError: `num_samples` is not positive.

    Example:
        >>> from torchdata.stateful_dataloader.sampler import RandomSampler
        >>> sampler = RandomSampler(range(5))
        >>> indices = iter(sampler)
        >>> first = next(indices)
        >>> resumed = iter(sampler)
        >>> resumed.load_state_dict(indices.state_dict())
        >>> list(resumed) == list(indices)
        True
    """

    def __iter__(self) -> Iterator[int]:
        """Returns an iterator over the indices of an epoch, with `state_dict` and `load_state_dict`."""
        return RandomIndices(self)


class RandomIndices(Iterator[int]):
    """Yields the indices of one epoch. The order is drawn when the first index is requested."""

    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler, self._yielded = sampler, 0
        self._origin: bytes | None = None
        self._chunks: Iterator[list[int]] = iter(())
        #: The indices that were drawn last. `_offset` is the position of the next index in `_chunk`.
        self._chunk, self._offset = list[int](), 0
        #: Whether Ctrl-C has interrupted `take`, which may have lost indices.
        self._is_broken = False

    def __next__(self) -> int:
        indices = self.take(1)
        if not indices:
            raise StopIteration
        return indices[0]

    def take(self, count: int) -> list[int]:
        """Returns the next `count` indices, or fewer at the end of the epoch."""
        if self._origin is None:
            self._draw(None)
        elif self._is_broken:
            self.load_state_dict(self.state_dict())
        try:
            taken = self._chunk[self._offset : self._offset + count]
            self._offset += len(taken)
            while len(taken) < count:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._chunk, self._offset = chunk, count - len(taken)
                taken += chunk[: self._offset]
                self._offset = min(self._offset, len(chunk))
            self._yielded += len(taken)
        except Exception:
            raise
        except BaseException:
            self._is_broken = True
            raise
        return taken

    def _draw(self, state: bytes | None) -> None:
        """Draws the order, after setting the generator to `state` if `state` is not None."""
        generator, before = self._sampler.generator, torch.get_rng_state()
        try:
            if generator is None:
                generator = torch.Generator()
                if state is None:
                    generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
            if state is not None:
                write(generator, state)
            origin, chunks = read(generator), self._drawn(generator)
        except BaseException:  # after Ctrl-C, the order is drawn a second time
            torch.set_rng_state(before)
            raise
        self._origin, self._chunks, self._chunk, self._offset, self._yielded = origin, chunks, [], 0, 0

    def _drawn(self, generator: torch.Generator) -> Iterator[list[int]]:
        sampler, there = self._sampler, len(self._sampler.data_source)
        if sampler.replacement:
            for _ in range(sampler.num_samples // _CHUNK):
                yield torch.randint(there, (_CHUNK,), dtype=torch.int64, generator=generator).tolist()
            rest = sampler.num_samples % _CHUNK
            yield torch.randint(there, (rest,), dtype=torch.int64, generator=generator).tolist()
        else:
            for _ in range(sampler.num_samples // there):
                yield torch.randperm(there, generator=generator).tolist()
            # Like PyTorch's sampler, this code always draws a last permutation, even an unused one, because each draw
            # affects the orders of later epochs.
            yield torch.randperm(there, generator=generator).tolist()[: sampler.num_samples % there]

    def state_dict(self) -> dict[str, Any]:
        return self.state_before(0)

    def state_before(self, count: int) -> dict[str, Any]:
        """Returns the state from before the last `count` indices were yielded."""
        origin = None if self._origin is None else encoded(self._origin)
        return {"yielded": self._yielded - count, "generator": origin}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a position. The order is redrawn from the saved state of the generator."""
        yielded, origin = parse_indices(IndicesState, state_dict)
        if origin is None and not yielded:
            self._origin, self._yielded = None, 0
            return
        left = yielded
        self._draw(decoded(torch.Generator(), origin))
        while left > 0:
            self._chunk = next(self._chunks, [])
            if not self._chunk:
                raise ValueError(
                    f"the saved epoch had yielded {yielded} indices, but this sampler yields {yielded - left}: its "
                    "data has become shorter"
                )
            self._offset = min(left, len(self._chunk))
            left -= self._offset
        self._yielded, self._is_broken = yielded, False


class BatchSampler(torch.utils.data.BatchSampler):
    """PyTorch's `BatchSampler`, with iterators that can be saved and restored.

    Args:
        sampler: the sampler that provides the indices. If neither the sampler nor its iterator has the methods
            `state_dict` and `load_state_dict`, a restored iterator skips the indices that were already yielded.
        batch_size: the number of indices per batch.
        drop_last: whether to drop a shorter last batch.

    Raises:
        ValueError: `batch_size` is not a positive int, or `drop_last` is not a bool.

    Example:
        >>> from torchdata.stateful_dataloader.sampler import BatchSampler
        >>> sampler = BatchSampler(range(5), batch_size=2, drop_last=False)
        >>> batches = iter(sampler)
        >>> next(batches)
        [0, 1]
        >>> resumed = iter(sampler)
        >>> resumed.load_state_dict(batches.state_dict())
        >>> list(resumed)
        [[2, 3], [4]]
    """

    def __iter__(self) -> Iterator[list[int]]:
        return BatchIndices(self)


class BatchIndices(Iterator[list[int]]):
    """Yields the batches of one epoch. The sampler is not read before the first batch is requested."""

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self.inner: Iterator[int] | None = None
        self.samples_yielded = 0
        #: Whether the sampler has returned all indices. `_dropped` is the number of indices at the end that did not
        #: fill a batch.
        self.has_ended, self._dropped = False, 0
        #: Indices of later batches that were already read: before Ctrl-C interrupted `__next__`, or for larger batches.
        self._batch: list[int] = []

    @property
    def keeps_position(self) -> bool:
        if is_stateful(self._batches.sampler):
            return True
        return is_stateful(self.inner) and type(self.inner) is not RandomIndices

    def __next__(self) -> list[int]:
        if self.has_ended and not self._batch:
            raise StopIteration
        if self.inner is None:
            self.inner = iter(self._batches.sampler)
        size = self._batches.batch_size
        if type(self.inner) is not RandomIndices:
            missing = 0 if self.has_ended else max(0, size - len(self._batch))
            self._batch.extend(itertools.islice(self.inner, missing))
        elif not self._batch:
            self._batch = self.inner.take(size)
        batch, rest = self._batch[:size], self._batch[size:]
        count = len(batch)
        if not batch or (self._batches.drop_last and count < size):
            self._dropped, self.has_ended, self._batch = count, True, []
            raise StopIteration
        # KeyboardInterrupt cannot be raised in the following lines, which contain neither calls nor loops.
        self.samples_yielded += count
        self.has_ended, self._batch = self.has_ended or count < size, rest
        return batch

    def put_back(self, indices: list[int]) -> None:
        self._batch = [*indices, *self._batch]
        self.samples_yielded -= len(indices)

    def pass_samples(self, count: int, most_missing: int = 0) -> None:
        """Skips `count` indices of the sampler; the last `most_missing` of these indices may be missing because the
        sampler has ended.
        """
        if self.inner is None:
            self.inner = iter(self._batches.sampler)
        pass_over(self.inner, count - most_missing)
        self.samples_yielded += count - most_missing + sum(1 for _ in itertools.islice(self.inner, most_missing))

    def state_dict(self) -> dict[str, Any]:
        sampler, inner = self._batches.sampler, self.inner
        own = sampler.state_dict() if is_stateful(sampler) else UNKNOWN
        of_inner = inner.state_dict() if is_stateful(inner) else self._inner_before(0)
        return BatchesState(self.samples_yielded, of_inner, own, self.has_ended, self._batch[:] or UNKNOWN).dump()

    def state_before(self, count: int) -> dict[str, Any]:
        """Returns the state before the last `count` samples. The returned state does not contain the state of a
        user-defined sampler.
        """
        return BatchesState(self.samples_yielded - count, self._inner_before(count)).dump()

    def _inner_before(self, count: int) -> Any:
        sampler, inner = self._batches.sampler, self.inner
        if inner is None and type(sampler) is RandomSampler:
            inner = RandomIndices(sampler)
        before = count + self._dropped + len(self._batch)
        return inner.state_before(before) if type(inner) is RandomIndices else UNKNOWN

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        sampler = self._batches.sampler
        self.samples_yielded, of_iterator, of_sampler, ended, rest = parse_indices(BatchesState, state_dict)
        self.has_ended, self._dropped, self._batch = False, 0, []
        restored = of_sampler is not UNKNOWN and is_stateful(sampler)
        if restored:
            load_into(sampler, of_sampler)  # type: ignore[arg-type]
        iterator = self.inner = iter(sampler)
        if of_iterator is not UNKNOWN and is_stateful(iterator):
            load_into(iterator, of_iterator)
            restored = True
        if restored:
            self._batch = [] if rest is UNKNOWN else listed(rest, "rest")
        elif not isinstance(sampler, _InfiniteConstantSampler):
            pass_over(self.inner, self.samples_yielded)
        self.has_ended = flag({"ended": ended}, "ended")
        if self.has_ended and next(self.inner, _NONE) is not _NONE and is_stateful(sampler):
            # The sampler has returned an index after its last index, so it has begun its next epoch. Loading the saved
            # state a second time moves the sampler back to the end of its epoch.
            load_into(sampler, of_sampler)


class StatefulDistributedSampler(torch.utils.data.distributed.DistributedSampler[Any]):
    """PyTorch's `DistributedSampler`, which can be saved and restored. As in PyTorch, your code must call `set_epoch`
    before each epoch.

    Args:
        dataset: the dataset to sample from.
        num_replicas: the number of ranks; by default (None), the world size in `torch.distributed`.
        rank: the rank of this process; by default (None), the rank in `torch.distributed`.
        shuffle: whether the order is random; True by default.
        seed: the seed, which must be the same on all ranks; 0 by default.
        drop_last: whether to drop indices, so that all ranks get the same number of indices. With `drop_last=False`,
            some indices are repeated, so that all ranks get the same number of indices.

    Raises:
        ValueError: `rank` is out of range.

    Example:
        >>> from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
        >>> sampler = StatefulDistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> next(iter(sampler))
        0
        >>> state = sampler.state_dict()
        >>> sampler = StatefulDistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> sampler.load_state_dict(state)
        >>> list(sampler)
        [2, 4]
    """

    _YIELDED = "yielded"

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.yielded = 0
        # The number of indices that the next iterator skips; None unless a state was loaded.
        self.next_yielded: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over the indices of this rank; after `load_state_dict`, over the remaining indices."""
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        """Returns a state with the number of indices that were yielded in this epoch."""
        return {self._YIELDED: self.yielded if self.next_yielded is None else self.next_yielded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator resume from a saved position.

        Args:
            state_dict: a result of `state_dict`.

        Raises:
            ValueError: the argument was not returned by the method `state_dict()`.
        """
        if self._YIELDED not in state_dict:
            raise ValueError("Invalid state_dict: the state of a StatefulDistributedSampler has 'yielded'")
        self.next_yielded = count_in(state_dict, self._YIELDED)


def pass_over(iterator: Iterator[Any], count: int) -> None:
    if count > 0 and not seek(iterator, count) and next(itertools.islice(iterator, count - 1, None), _NONE) is _NONE:
        raise ValueError(
            f"{count} indices were read before the state was saved, but the sampler yields fewer: its data has become "
            "shorter, or the state is damaged"
        )
