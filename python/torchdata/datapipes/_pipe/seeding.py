"""Parts that pipes share which draw random numbers: the seeds that loaders give them.

Role: the base of pipes that shuffle or augment. Runs in the process that iterates the pipe.
"""

from __future__ import annotations

from typing import Self

from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.record import record_of
from torchdata.datapipes.datapipe import token_of

__all__ = ["Seeded"]


class Seeded:
    """Seeds of a pipe: of the iteration that continues, and of the next one."""

    _epoch_seed: int | None = state(lasts=True, copied=True)  # of the current iteration
    _seed: int | None = state(lasts=True, copied=True)  # of the next one

    def set_seed(self, seed: int) -> Self:
        """Sets the seed of the next iteration (only that one). Returns the pipe itself."""
        self._seed = seed
        return self

    def epoch_seed(self) -> int | None:
        """The seed of the current iteration; before the first one, the seed that was set for it, if any."""
        return self._seed if token_of(self).current == 0 and self._seed is not None else self._epoch_seed

    def _take_seed(self) -> int:
        """The seed of the iteration that begins: `set_seed`'s, or a fresh one."""
        seed = draw_seed(self._epoch_seed, record_of(self).seeded) if self._seed is None else self._seed
        self._epoch_seed, self._seed = seed, None
        return seed
