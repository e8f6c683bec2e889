"""What pipes that shuffle share: the switch, the seeds, and a generator of their own.

Role: the base of Shuffler and InBatchShuffler. Runs in the process that iterates the pipe; the pipe owns the
generator, which is seeded anew when an iteration begins.
"""

from __future__ import annotations

import random
from typing import Any, Self

from torchdata.datapipes._random import draw_seed
from torchdata.datapipes.datapipe import token_of

__all__ = ["Shuffling"]


class Shuffling:
    """Seeds and switch of a pipe that shuffles. Subclasses add to `reset` and to the state."""

    _enabled: bool = True  # what `set_shuffle` said last
    _shuffling: bool = True  # whether the current iteration shuffles
    _seed: int | None = None  # of the next iteration
    _epoch_seed: int | None = None  # of the current one
    _rng: random.Random

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
        self._shuffling = self._enabled
        if self._shuffling:
            self._epoch_seed = draw_seed(self._epoch_seed) if self._seed is None else self._seed
            self._rng.seed(self._epoch_seed)
            self._seed = None

    def state_dict(self) -> dict[str, Any]:
        """The generator and the seeds of this iteration and, where set, of the next."""
        return {
            "shuffling": self._shuffling,
            "rng": self._rng.getstate() if self._shuffling else None,
            "seed": self._epoch_seed,
            "next_seed": self._seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the generator and the seeds over; the state can be loaded again."""
        self._shuffling = state_dict["shuffling"]
        if state_dict["rng"] is not None:
            self._rng.setstate(state_dict["rng"])
        self._epoch_seed, self._seed = state_dict["seed"], state_dict["next_seed"]
