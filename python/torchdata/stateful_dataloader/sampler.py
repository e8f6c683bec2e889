"""Samplers that know their place: torch's own, whose iterators can be saved and restored.

Role: `StatefulDataLoader` puts them where torch's loader has its own. They give the order that torch's give, and draw
from generators what those draw, when those draw it. The states are those of torchdata 0.11.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.utils.data
import torch.utils.data.distributed
from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._stateful import give, is_stateful
from torchdata.datapipes._pipe.seeking import seek
from torchdata.stateful_dataloader._generators import decoded, encoded, read, write

__all__ = ["BatchSampler", "RandomSampler", "StatefulDistributedSampler"]

#: Indices that are drawn at once with replacement, as torch's sampler does.
_CHUNK = 32
#: Stands for an index if there is none.
_NONE: Any = object()


class RandomSampler(torch.utils.data.RandomSampler):
    """Torch's `RandomSampler`, with iterators that can be saved and restored.

    Args:
        data_source: what is sampled from; its length counts.
        replacement: whether an index may come again.
        num_samples: how many indices an epoch has; None for as many as there are.
        generator: what is drawn from. None: each epoch has a generator of its own, seeded by torch's global one.

    Raises:
        TypeError: `replacement` is no bool.
        ValueError: `num_samples` is not positive.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(data_source, replacement, num_samples, generator)

    def __iter__(self) -> Iterator[int]:
        """The indices of an epoch; the iterator has `state_dict` and `load_state_dict`."""
        return RandomIndices(self)

    def __len__(self) -> int:
        return self.num_samples


class RandomIndices(Iterator[int]):
    """One epoch of a `RandomSampler`. Draws its order when the first index is asked for.

    Args:
        sampler: whose epoch it is.
    """

    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler = sampler
        self._yielded = 0
        #: The generator's state before the order was drawn; None before that.
        self._origin: bytes | None = None
        self._chunks: Iterator[list[int]] = iter(())
        self._chunk: list[int] = []
        #: Where in the chunk the next index is.
        self._place = 0

    def __next__(self) -> int:
        indices = self.take(1)
        if not indices:
            raise StopIteration
        return indices[0]

    def take(self, count: int) -> list[int]:
        """The next indices, fewer than `count` where the epoch ends."""
        if self._origin is None:
            self._draw(None)
        taken = self._chunk[self._place : self._place + count]
        self._place += len(taken)
        while len(taken) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._chunk, self._place = chunk, count - len(taken)
            taken += chunk[: self._place]
            self._place = min(self._place, len(chunk))
        self._yielded += len(taken)
        return taken

    def _draw(self, state: bytes | None) -> None:
        """Begins the order, of a generator in this state if one is given."""
        generator = self._sampler.generator
        if generator is None:
            generator = torch.Generator()
            if state is None:
                generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        if state is not None:
            write(generator, state)
        self._origin = read(generator)
        self._chunks = self._drawn(generator)
        self._chunk, self._place, self._yielded = [], 0, 0

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
            # Drawn also if none of it is used: later epochs depend on it.
            yield torch.randperm(there, generator=generator).tolist()[: sampler.num_samples % there]

    def state_dict(self) -> dict[str, Any]:
        """How many indices were yielded, and of which generator they are."""
        return self.state_before(0)

    def state_before(self, count: int) -> dict[str, Any]:
        """The state before so many of the indices were yielded."""
        origin = None if self._origin is None else encoded(self._origin)
        return {"yielded": self._yielded - count, "generator": origin}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a saved place. A generator of the sampler's own is set to where that leaves it.

        Args:
            state_dict: what `state_dict` returned.
        """
        if isinstance(state_dict, dict) and state_dict.get("generator") is None:  # nothing was drawn
            self._origin, self._yielded = None, 0
            return
        left = yielded = count_in(state_dict, "yielded")
        self._draw(decoded(torch.Generator(), state_dict["generator"]))
        while left > 0:
            self._chunk = next(self._chunks, [])
            if not self._chunk:
                raise ValueError(
                    f"the saved epoch had yielded {yielded} indices, but this sampler gives {yielded - left}: "
                    "the data it samples from has become shorter"
                )
            self._place = min(left, len(self._chunk))
            left -= self._place
        self._yielded = yielded


class BatchSampler(torch.utils.data.BatchSampler):
    """Torch's `BatchSampler`, with iterators that can be saved and restored.

    Args:
        sampler: gives the indices. If neither it nor its iterator has `state_dict` and `load_state_dict`, a restored
            iterator passes over those that had been yielded.
        batch_size: indices of a batch.
        drop_last: whether a last batch that is shorter is dropped.

    Raises:
        ValueError: `batch_size` is no positive int, or `drop_last` no bool.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        super().__init__(sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch; the iterator has `state_dict` and `load_state_dict`."""
        return BatchIndices(self)


class BatchIndices(Iterator[list[int]]):
    """One epoch of a `BatchSampler`. Reads the sampler when the first batch is asked for.

    Args:
        batches: whose epoch it is.
    """

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self._iterator: Iterator[int] | None = None
        self._yielded = 0
        #: Whether the sampler has ended, and how many indices were left for no batch.
        self._ended, self._dropped = False, 0

    @property
    def keeps_place(self) -> bool:
        """Whether what is below has a state that is a user's."""
        if is_stateful(self._batches.sampler):
            return True
        return is_stateful(self._iterator) and type(self._iterator) is not RandomIndices

    def __next__(self) -> list[int]:
        if self._ended:
            raise StopIteration
        if self._iterator is None:
            self._iterator = iter(self._batches.sampler)
        size = self._batches.batch_size
        if type(self._iterator) is RandomIndices:
            batch = self._iterator.take(size)
        else:
            batch = list(itertools.islice(self._iterator, size))
        self._ended = len(batch) < size
        if not batch or (self._batches.drop_last and self._ended):
            self._dropped = len(batch)
            raise StopIteration
        self._yielded += len(batch)
        return batch

    @property
    def samples_yielded(self) -> int:
        """How many indices were yielded."""
        return self._yielded

    @property
    def has_ended(self) -> bool:
        """Whether the sampler has ended."""
        return self._ended

    def start_from(self, iterator: Iterator[int], yielded: int) -> None:
        """Has the next batches come of an iterator of the sampler.

        Args:
            iterator: the iterator.
            yielded: how many of its indices were yielded before.
        """
        self._iterator, self._yielded = iterator, yielded

    def pass_samples(self, count: int, most_missing: int = 0) -> None:
        """Takes so many indices of the sampler, or at its end some less, whatever batches they were in."""
        if self._iterator is None:
            self._iterator = iter(self._batches.sampler)
        pass_over(self._iterator, count - most_missing)
        self._yielded += count - most_missing + sum(1 for _ in itertools.islice(self._iterator, most_missing))

    def state_dict(self) -> dict[str, Any]:
        """How many indices were yielded, and the states of what is below if it has any."""
        state = self.state_before(0)
        if self._ended:
            state["ended"] = True
        if is_stateful(self._batches.sampler):
            state["sampler_state"] = self._batches.sampler.state_dict()
        if is_stateful(self._iterator):
            state["sampler_iter_state"] = self._iterator.state_dict()
        return state

    def state_before(self, count: int) -> dict[str, Any]:
        """The state before so many of the samples were yielded, where what is below keeps no place of a user's."""
        state: dict[str, Any] = {"samples_yielded": self._yielded - count}
        if type(self._iterator) is RandomIndices:
            state["sampler_iter_state"] = self._iterator.state_before(count + self._dropped)
        elif self._iterator is None and type(self._batches.sampler) is RandomSampler:
            state["sampler_iter_state"] = RandomIndices(self._batches.sampler).state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a saved place.

        Args:
            state_dict: what `state_dict` returned.
        """
        sampler = self._batches.sampler
        self._yielded = count_in(state_dict, "samples_yielded")
        self._ended, self._dropped = False, 0
        restored = False
        if "sampler_state" in state_dict and is_stateful(sampler):
            give(sampler, state_dict["sampler_state"])
            restored = True
        iterator = self._iterator = iter(sampler)
        if "sampler_iter_state" in state_dict and is_stateful(iterator):
            give(iterator, state_dict["sampler_iter_state"])
            restored = True
        if not restored and not isinstance(sampler, _InfiniteConstantSampler):
            pass_over(self._iterator, self._yielded)
        self._ended = bool(state_dict.get("ended"))
        if self._ended and next(self._iterator, _NONE) is not _NONE and is_stateful(sampler):
            # It had made itself ready for the next epoch, and begins that now: it is to begin it later.
            give(sampler, state_dict["sampler_state"])


class StatefulDistributedSampler(torch.utils.data.distributed.DistributedSampler[Any]):
    """Torch's `DistributedSampler`, which can be saved and restored. `set_epoch` is yours to call, as there.

    Args:
        dataset: what is sampled from.
        num_replicas: how many ranks there are; None for those of `torch.distributed`.
        rank: which of them this is; None for the one of `torch.distributed`.
        shuffle: whether the order is random.
        seed: what all ranks seed it with.
        drop_last: whether indices are left out, rather than repeated, so that all ranks have as many.

    Raises:
        ValueError: `rank` is none of them.
    """

    # The field of a state, by the name that programs read of torchdata 0.11's.
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
        # Indices that were yielded in this epoch.
        self.yielded = 0
        # How many the next epoch is to pass over; None for none.
        self.next_yielded: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """The indices of this rank; after `load_state_dict`, those that are left."""
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        """How many indices were yielded."""
        return {self._YIELDED: self.yielded if self.next_yielded is None else self.next_yielded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator go on from a saved place.

        Args:
            state_dict: what `state_dict` returned.

        Raises:
            ValueError: it did not.
        """
        if self._YIELDED not in state_dict:
            raise ValueError("Invalid state_dict: the state of a StatefulDistributedSampler has 'yielded'")
        self.next_yielded = count_in(state_dict, self._YIELDED)


def count_in(state: Any, name: str) -> int:
    """A count that stands in a state.

    Raises:
        ValueError: it is none.
    """
    count = state.get(name) if isinstance(state, dict) else None
    if isinstance(count, int) and count < 0:
        raise ValueError(f"Cannot load state_dict with negative {name} value: {count}")
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValueError(f"the state is damaged: its {name!r} is {count!r}, no number of indices")
    return count


def pass_over(iterator: Iterator[Any], count: int) -> None:
    """Takes so many indices of an iterator.

    Raises:
        ValueError: it has not so many.
    """
    if count > 0 and not seek(iterator, count) and next(itertools.islice(iterator, count - 1, None), _NONE) is _NONE:
        raise ValueError(
            f"the state says that {count} indices were read, and the sampler gives fewer: what it samples from has "
            "become shorter, or the state is damaged"
        )
