"""Iterable-style pipes that read a map-style pipe in another order: Shuffler, IndexSampler."""

from __future__ import annotations

import random
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import partial
from typing import Any

from torchdata._native import sample_order
from torchdata.datapipes._pipe.checks import check_iterable, check_map_pipe, length_of, with_type
from torchdata.datapipes._pipe.datasets import in_fixed_order
from torchdata.datapipes._pipe.random import PrivateRandomness
from torchdata.datapipes._pipe.sampled_streams import SampledStream
from torchdata.datapipes._pipe.seeding import Seeded, Switched
from torchdata.datapipes._pipe.seeking import iterate_by_index
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.state.record import passed
from torchdata.datapipes._pipe.unloaded import ReadsByIndex
from torchdata.datapipes.datapipe import MapDataPipe, T_co

__all__ = ["IndexSampler", "Shuffler"]


class Shuffler(Switched, ReadsByIndex[T_co]):
    """Yields the items of a map pipe in random order.

    The order depends only on the seed. torchdata 0.9 yields the same order for the same seed.

    Args:
        datapipe: the map pipe to read.
        indices: the indices to read; None (the default) for all indices from 0 to the pipe's length.

    Raises:
        TypeError: `datapipe` is not a map pipe, or `indices` is not iterable.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> sorted(SequenceWrapper(range(5)).shuffle().set_seed(0))
        [0, 1, 2, 3, 4]
    """

    data_attributes = frozenset({"indices"})
    #: The indices in the order of the running iteration.
    _order: Any = state(saved=False)

    def __init__(self, datapipe: MapDataPipe[T_co], *, indices: Iterable[Any] | None = None) -> None:
        check_map_pipe("Shuffler", datapipe)
        if indices is not None:
            check_iterable("Shuffler", "indices", indices)
        self.datapipe = datapipe
        self.indices: Sequence[Any] = (
            range(length_of(self, datapipe)) if indices is None else list(in_fixed_order(indices))
        )

    def _indices(self) -> Iterator[Any]:
        if self._order is None:
            self._order = self.indices if not self._shuffling else _sampled(self.indices, self._epoch_seed)
        return iterate_by_index(self._order, passed(self))

    def __len__(self) -> int:
        return len(self.indices)


#: The shuffled orders in use, by seed and length. Several shards in one process share one array of indices.
_orders: weakref.WeakValueDictionary[tuple[int, int], array[int]] = weakref.WeakValueDictionary()


def _sampled(indices: Sequence[Any], seed: int | None) -> Sequence[Any]:
    """Returns `random.Random(seed).sample(indices, len(indices))` in reverse order."""
    rng = random.Random(seed)
    if len(indices) >= 1 << 32:
        order = rng.sample(indices, len(indices))
        order.reverse()
        return order
    key = None if seed is None else (seed, len(indices))
    positions = None if key is None else _orders.get(key)
    if positions is None:
        _, state, _ = rng.getstate()
        positions = array("I", sample_order(array("I", state[:-1]).tobytes(), state[-1], len(indices)))
        positions.reverse()
        if key is not None:
            _orders[key] = positions
    return positions if isinstance(indices, range) else [indices[position] for position in positions]


class IndexSampler(Seeded, ReadsByIndex[T_co]):
    """Yields the items of a map pipe at the indices that a sampler yields. The sampler is iterated again in each epoch.

    Functional form of MapDataPipe: `sample_by`.

    Random numbers that a sampler draws from the global generators depend only on the pipe's seed. All workers and ranks
    therefore use the same order of indices, which a later `sharding_filter` requires. After each index, the pipe
    restores the global generators, so that the sampler does not change the random numbers of other code. A sampler may
    instead draw from its own random generator. If a sampler has a method `set_epoch`, as torch's `DistributedSampler`
    does, the method receives the number of each epoch. The number of the first epoch is the sampler's attribute
    `epoch`, or 0.

    Args:
        datapipe: the map pipe to read.
        sampler: an iterable of indices that can be read several times: a `torch.utils.data.Sampler`, a sequence, or an
            object with `__iter__`. A sampler with a length is read completely when an epoch begins. A sampler without a
            length is read when items are requested.

    Raises:
        TypeError: `datapipe` is not a map pipe, or `sampler` cannot be iterated several times.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> list(SequenceWrapper("abcd").sample_by([3, 0, 3]))
        ['d', 'a', 'd']
    """

    data_attributes = frozenset({"sampler"})
    _order: Any = checked_state((range | list | None,), items=True)
    _epoch: int = state(0, lasts=True, copied=True)
    _stream: SampledStream | None = state(None, saved=False)
    #: Whether a resumed iteration compares the sampler's reread indices with the original indices.
    _is_strict = True

    def __init__(self, datapipe: MapDataPipe[T_co], sampler: Iterable[Any]) -> None:
        check_map_pipe("IndexSampler", datapipe)
        check_iterable("IndexSampler", "sampler", sampler)
        if hasattr(type(sampler), "__next__"):
            raise TypeError(
                f"IndexSampler: sampler is iterated again in each epoch, but {with_type(sampler)} can be read once; "
                "give a list of its indices"
            )
        self.datapipe = datapipe
        self.sampler = sampler
        self._first_epoch = getattr(sampler, "epoch", 0)

    def reset(self) -> None:
        """Sets the seed of the random numbers that the sampler draws: the seed from `set_seed`, or a new seed."""
        super().reset()
        self._take_seed()
        self._epoch += 1

    def _indices(self) -> Iterator[Any]:
        if self._order is None:
            assert self._epoch_seed is not None
            randomness = PrivateRandomness(self._epoch_seed)
            if not isinstance(self.sampler, Sized):
                self._stream = self._stream or SampledStream(self._name())
                make = partial(self._drawn, randomness)
                return self._stream.read(make, passed(self), is_strict=self._is_strict)
            self._order = list(self._drawn(randomness))
        return iterate_by_index(self._order, passed(self))

    def _name(self) -> str:
        return f"the sampler {type(self.sampler).__name__}"

    def state_dict(self) -> dict[str, Any]:
        # If the sampler lacks a length, the state contains a checksum of some indices instead of all indices.
        return self._declared_state() | ({} if self._stream is None else {"stream": self._stream.state()})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._load_declared(state_dict)
        stream = state_dict.get("stream")
        self._stream = None if stream is None else SampledStream(self._name(), stream)

    def _compare(self, is_strict: bool) -> None:
        self._is_strict = is_strict

    def _drawn(self, randomness: PrivateRandomness) -> Iterator[Any]:
        """Yields the sampler's indices. While the sampler runs, the global generators produce numbers that depend only
        on the pipe's seed."""
        with randomness:
            set_epoch = getattr(self.sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._first_epoch + self._epoch - 1)
            indices = iter(self.sampler)
        while True:
            with randomness:
                try:
                    index = next(indices)
                except StopIteration:
                    return
            yield index

    def __len__(self) -> int:
        return length_of(self, self.sampler)


MapDataPipe.register_datapipe_as_function("shuffle", Shuffler)
MapDataPipe.register_datapipe_as_function("sample_by", IndexSampler)
