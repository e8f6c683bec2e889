"""Base classes of random pipes: a loader can set the seed of each pipe, and turn shuffling off."""

from __future__ import annotations

import random
from typing import ClassVar, Self

from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.state.declared import random_state, state
from torchdata.datapipes._pipe.state.record import record_of


class Seeded:
    _epoch_seed: int | None = state(lasts=True, copied=True)  # the seed of the current iteration
    _seed: int | None = state(lasts=True, copied=True)  # the seed of the next iteration

    def set_seed(self, seed: int) -> Self:
        """Makes `seed` the seed of the next iteration, but not of later iterations. Returns the pipe itself."""
        self._seed = seed
        return self

    def _take_seed(self) -> int:
        seed = draw_seed(self._epoch_seed, record_of(self).seeded) if self._seed is None else self._seed
        self._epoch_seed, self._seed = seed, None
        return seed


class Switched(Seeded):
    #: The argument `enable` of DataLoader2's adapter `Shuffle` sets the attribute `_enabled`.
    set_by_adapters: ClassVar[dict[str, str]] = {"Shuffle.enable": "_enabled"}

    _shuffling: bool = state(True, copied=True)  # whether the current iteration shuffles
    _enabled: bool = True  # the most recent argument of `set_shuffle`

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turns shuffling on, or with `shuffle=False` off, from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self._shuffling = self._enabled
        if self._shuffling:
            self._begin_order(self._take_seed())

    def _begin_order(self, seed: int) -> None:
        """Called with the seed at the beginning of each iteration that shuffles."""


class Shuffling(Switched):
    _rng: random.Random = random_state()

    def _begin_order(self, seed: int) -> None:
        self._rng.seed(seed)
