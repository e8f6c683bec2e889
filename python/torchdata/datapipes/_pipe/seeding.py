"""`Seeded`: the base class of pipes that draw random numbers from a generator that a loader can seed."""

from __future__ import annotations

from typing import Self

from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.record import record_of


class Seeded:
    _epoch_seed: int | None = state(lasts=True, copied=True)  # the seed of the current iteration
    _seed: int | None = state(lasts=True, copied=True)  # the seed of the next iteration

    def set_seed(self, seed: int) -> Self:
        """Sets the seed of the next iteration, but not of later iterations. Returns the pipe itself."""
        self._seed = seed
        return self

    def _take_seed(self) -> int:
        seed = draw_seed(self._epoch_seed, record_of(self).seeded) if self._seed is None else self._seed
        self._epoch_seed, self._seed = seed, None
        return seed
