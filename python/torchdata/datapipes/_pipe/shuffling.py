"""Parts that pipes that shuffle share: the switch, the seeds, and a generator of their own.

Role: the base of Shuffler and InBatchShuffler. Runs in the process that iterates the pipe; the pipe owns the
generator, which is seeded anew when an iteration begins.
"""

from __future__ import annotations

import random
from typing import ClassVar, Self

from torchdata.datapipes._pipe.seeding import Seeded
from torchdata.datapipes._pipe.state.declared import random_state, state

__all__ = ["Shuffling"]


class Shuffling(Seeded):
    """Seeds and switch of a pipe that shuffles. Subclasses add to `reset` and to `iteration_state`."""

    #: What the adapter `Shuffle` sets.
    set_by_adapters: ClassVar[dict[str, str]] = {"Shuffle.enable": "_enabled"}

    _shuffling: bool = state(True, copied=True)  # whether the current iteration shuffles
    _rng: random.Random = random_state()

    _enabled: bool = True  # what `set_shuffle` said last

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turns shuffling on or off from the next iteration on. Returns the pipe itself."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        """Seeds the generator, by `set_seed`'s seed or by a fresh one."""
        super().reset()  # type: ignore[misc]
        self._shuffling = self._enabled
        if self._shuffling:
            self._rng.seed(self._take_seed())
