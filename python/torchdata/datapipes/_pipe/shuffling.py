"""Shared code of Shuffler, InBatchShuffler and ShuffledFlatMapper: seeds, a private random generator, and the switch
that turns shuffling off."""

from __future__ import annotations

import random
from typing import ClassVar, Self

from torchdata.datapipes._pipe.seeding import Seeded
from torchdata.datapipes._pipe.state.declared import random_state, state


class Shuffling(Seeded):
    #: The setting `enable` of the adapter `Shuffle` changes the attribute `_enabled`.
    set_by_adapters: ClassVar[dict[str, str]] = {"Shuffle.enable": "_enabled"}

    _shuffling: bool = state(True, copied=True)  # whether the current iteration shuffles
    _rng: random.Random = random_state()

    _enabled: bool = True  # the most recent argument of `set_shuffle`

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turns shuffling on or off from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self._shuffling = self._enabled
        if self._shuffling:
            self._rng.seed(self._take_seed())
