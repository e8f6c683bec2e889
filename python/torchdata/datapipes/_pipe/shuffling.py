"""Parts that pipes that shuffle share: the switch, the seeds, and a generator of their own.

Role: the base of Shuffler and InBatchShuffler. Runs in the process that iterates the pipe; the pipe owns the
generator, which is seeded anew when an iteration begins.
"""

from __future__ import annotations

import random
from typing import Self

from torchdata.datapipes._pipe.declared import random_state, state
from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.record import record_of
from torchdata.datapipes.datapipe import token_of

__all__ = ["Shuffling"]


class Shuffling:
    """Seeds and switch of a pipe that shuffles. Subclasses add to `reset` and to `iteration_state`."""

    _shuffling: bool = state(True, copied=True)  # whether the current iteration shuffles
    _rng: random.Random = random_state()
    _epoch_seed: int | None = state(lasts=True, copied=True)  # of the current iteration
    _seed: int | None = state(lasts=True, copied=True)  # of the next one

    _enabled: bool = True  # what `set_shuffle` said last

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turns shuffling on or off from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Self:
        """Sets the seed of the next iteration (only that one). Returns the pipe itself."""
        self._seed = seed
        return self

    def epoch_seed(self) -> int | None:
        """The seed of the current iteration; before the first one, the seed that was set for it, if any."""
        return self._seed if token_of(self).current == 0 and self._seed is not None else self._epoch_seed

    def reset(self) -> None:
        """Seeds the generator, by `set_seed`'s seed or by a fresh one."""
        super().reset()  # type: ignore[misc]
        self._shuffling = self._enabled
        if self._shuffling:
            self._epoch_seed = draw_seed(self._epoch_seed, record_of(self).seeded) if self._seed is None else self._seed
            self._rng.seed(self._epoch_seed)
            self._seed = None
