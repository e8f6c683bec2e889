"""The pipe that reads a map pipe in random order: Shuffler. It is an iter pipe, because order is all it adds.

Runs in whichever process iterates the pipeline. It owns the order of the current iteration.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from torchdata.datapipes._checks import check_iterable, length_of
from torchdata.datapipes._random import draw_seed
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe, token_of
from torchdata.datapipes.map._sources import check_map_pipe

__all__ = ["Shuffler"]

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


MapDataPipe.register_datapipe_as_function("shuffle", Shuffler)
