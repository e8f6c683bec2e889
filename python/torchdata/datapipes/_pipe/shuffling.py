"""Shared code of the pipes that shuffle: seeds, the switch that turns shuffling off, and a private random generator."""

from __future__ import annotations

import random
from typing import ClassVar, Self

from torchdata.datapipes._pipe.seeding import Seeded
from torchdata.datapipes._pipe.state.declared import random_state, state


class Switched(Seeded):
    #: The setting `enable` of the adapter `Shuffle` changes the attribute `_enabled`.
    set_by_adapters: ClassVar[dict[str, str]] = {"Shuffle.enable": "_enabled"}

    _shuffling: bool = state(True, copied=True)  # whether the current iteration shuffles
    _enabled: bool = True  # the most recent argument of `set_shuffle`

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turns shuffling on or off from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self._shuffling = self._enabled
        if self._shuffling:
            self._begin_order(self._take_seed())

    def _begin_order(self, seed: int) -> None:
        """Called with the seed of each iteration that shuffles."""


class Shuffling(Switched):
    _rng: random.Random = random_state()

    def _begin_order(self, seed: int) -> None:
        self._rng.seed(seed)
