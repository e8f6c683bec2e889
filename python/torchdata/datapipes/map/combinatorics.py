"""Pipes that read a map pipe in an order of their own: Shuffler, IndexSampler. They are iter pipes, because order is
all that they add.

Run in whichever process iterates the pipeline. They own the order of the current iteration.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, TypeVar

from torchdata.datapipes._checks import check_iterable, length_of
from torchdata.datapipes._random import PrivateRandomness, draw_seed
from torchdata.datapipes._unloaded import Load, Step
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe, token_of
from torchdata.datapipes.map._sources import check_map_pipe

__all__ = ["IndexSampler", "Shuffler"]

T_co = TypeVar("T_co", covariant=True)


class Shuffler(IterDataPipe[T_co]):
    """Yields the items of a map pipe in random order.

    The order is a function of the seed alone, the one that torchdata 0.9 gives for the same seed.

    Args:
        datapipe: the map pipe to read.
        indices: the indices to read; None: 0 to the pipe's length.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> sorted(SequenceWrapper(range(5)).shuffle().set_seed(0))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, datapipe: MapDataPipe[T_co], *, indices: Iterable[Any] | None = None) -> None:
        check_map_pipe("Shuffler", datapipe)
        if indices is not None:
            check_iterable("Shuffler", "indices", indices)
        self.datapipe = datapipe
        self.indices = list(range(length_of(self, datapipe)) if indices is None else indices)
        self._enabled = True
        self._seed: int | None = None
        self._epoch_seed: int | None = None
        #: Indices in the order in which this iteration reads them, and how many it had read where it was restored.
        self._order: list[Any] = []
        self._read = 0

    def set_shuffle(self, shuffle: bool = True) -> Shuffler[T_co]:
        """Turns shuffling on or off from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Shuffler[T_co]:
        """Sets the seed of the next iteration (only that one). Returns the pipe itself."""
        self._seed = seed
        return self

    def epoch_seed(self) -> int | None:
        """The seed of the current iteration; before the first one, the seed that was set for it, if any."""
        return self._seed if token_of(self).current == 0 and self._seed is not None else self._epoch_seed

    def reset(self) -> None:
        """Draws the order, by `set_seed`'s seed or by a fresh one."""
        self._read = 0
        if self._enabled:
            self._epoch_seed = draw_seed(self._epoch_seed) if self._seed is None else self._seed
            self._seed = None
        self._order = self._ordered(self._epoch_seed if self._enabled else None)

    def _ordered(self, seed: int | None) -> list[Any]:
        if seed is None:
            return self.indices
        order = random.Random(seed).sample(self.indices, len(self.indices))
        order.reverse()  # upstream takes from the end
        return order

    def __iter__(self) -> Iterator[T_co]:
        # A generator rather than map(): a StopIteration from the pipe must not look like the end.
        for index in islice(self._order, self._read, None):
            yield self.datapipe[index]

    def _can_wait(self) -> bool:
        return True

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        return islice(self._order, self._read, None), Step(self, self.datapipe.__getitem__)

    def __len__(self) -> int:
        return len(self.indices)

    def state_dict(self) -> dict[str, Any]:
        """The seeds of this iteration and, where set, of the next, and the number of items yielded."""
        token = token_of(self)
        return {
            "shuffling": self._order is not self.indices,
            "seed": self._epoch_seed,
            "next_seed": self._seed,
            "read": self._read if token.armed else token.yielded,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Draws the saved order again and goes to the saved place in it."""
        self._epoch_seed, self._seed = state_dict["seed"], state_dict["next_seed"]
        self._order = self._ordered(self._epoch_seed if state_dict["shuffling"] else None)
        self._read = state_dict["read"]

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_order": [], "_read": 0}


class IndexSampler(IterDataPipe[T_co]):
    """Yields the items of a map pipe in the order of a sampler, which is read anew in each epoch.

    Functional form of MapDataPipe: `sample_by`.

    What a sampler draws from the global generators of Python, NumPy and torch follows from the pipe's seed, and leaves
    these generators as they were. So before a `sharding_filter` the sampler gives one order in all workers and ranks. A
    generator of the sampler's own goes on as it would elsewhere. A sampler with `set_epoch`, as torch's
    `DistributedSampler` has it, is told the number of the epoch, counted from what its `epoch` was.

    Args:
        datapipe: the map pipe to read.
        sampler: an iterable of indices that can be read again and again: a `torch.utils.data.Sampler`, a sequence, or
            an object with `__iter__`. One that knows its length is read whole when an epoch begins, any other as the
            items are asked for.

    Raises:
        TypeError: `datapipe` is no map pipe, or `sampler` cannot be iterated over, or only once.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> list(SequenceWrapper("abcd").sample_by([3, 0, 3]))
        ['d', 'a', 'd']
    """

    item_attributes = frozenset({"_order"})

    def __init__(self, datapipe: MapDataPipe[T_co], sampler: Iterable[Any]) -> None:
        check_map_pipe("IndexSampler", datapipe)
        check_iterable("IndexSampler", "sampler", sampler)
        if hasattr(type(sampler), "__next__"):
            raise TypeError(
                f"IndexSampler: sampler is read anew in each epoch, but {sampler!r} of type {type(sampler).__name__} "
                "can be read once; give a list of its indices"
            )
        self.datapipe = datapipe
        self.sampler = sampler
        self._seed: int | None = None
        self._epoch_seed: int | None = None
        self._epoch = 0
        self._first_epoch = getattr(sampler, "epoch", 0)
        self._read = 0
        #: The order of the running iteration, of samplers that know their length.
        self._order: list[Any] | None = None

    def set_seed(self, seed: int) -> IndexSampler[T_co]:
        """Sets the seed of the next iteration (only that one). Returns the pipe itself."""
        self._seed = seed
        return self

    def epoch_seed(self) -> int | None:
        """The seed of the current iteration; before the first one, the seed that was set for it, if any."""
        return self._seed if token_of(self).current == 0 and self._seed is not None else self._epoch_seed

    def reset(self) -> None:
        """Lets the sampler give a new order, by `set_seed`'s seed or by a fresh one."""
        self._epoch_seed = draw_seed(self._epoch_seed) if self._seed is None else self._seed
        self._seed = None
        self._read, self._order = 0, None
        self._epoch += 1

    def __iter__(self) -> Iterator[T_co]:
        item_at = self.datapipe.__getitem__
        for index in self._indices():
            yield item_at(index)

    def _can_wait(self) -> bool:
        return True

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        return self._indices(), Step(self, self.datapipe.__getitem__)

    def _indices(self) -> Iterator[Any]:
        """The indices that this iteration still has to read."""
        if self._order is None:
            assert self._epoch_seed is not None
            drawn = self._drawn(PrivateRandomness(self._epoch_seed))
            if not isinstance(self.sampler, Sized):
                return islice(drawn, self._read, None)
            self._order = list(drawn)
        return islice(self._order, self._read, None)

    def _drawn(self, randomness: PrivateRandomness) -> Iterator[Any]:
        """What the sampler yields with its own course of the global generators."""
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

    def state_dict(self) -> dict[str, Any]:
        """The order (where the sampler knows its length), the seeds, the number of the epoch and of items yielded."""
        token = token_of(self)
        return {
            "order": self._order,
            "seed": self._epoch_seed,
            "next_seed": self._seed,
            "epoch": self._epoch,
            "read": self._read if token.armed else token.yielded,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the order over, or draws it again, and goes to the saved place in it."""
        self._order, self._read = state_dict["order"], state_dict["read"]
        self._epoch_seed, self._seed = state_dict["seed"], state_dict["next_seed"]
        self._epoch = state_dict["epoch"]

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_order": None, "_read": 0}


MapDataPipe.register_datapipe_as_function("shuffle", Shuffler)
MapDataPipe.register_datapipe_as_function("sample_by", IndexSampler)
