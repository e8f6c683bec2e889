"""The seeds of a loader's epochs: the user's seed, and the generators derived from it.

Role: owned by the loader. Only the thread that begins an epoch, sets the seed or loads a state changes these seeds.
"""

from __future__ import annotations

import copy
from typing import Any

from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.state.position import Randomness


class Seeds:
    """The seeds of a loader's epochs."""

    def __init__(self) -> None:
        self.seed: int | None = None
        #: Whether the next epoch must start from the user's seed, if there is one.
        self.is_due = True
        #: Whether the user gave the seed after a state was loaded.
        self.is_since_load = False
        self.generator = SeedGenerator()
        #: A copy of the generator from the beginning of the last epoch.
        self.initial = copy.copy(self.generator)
        #: Whether the next epoch draws no new seed, because it repeats the seeds of the last epoch.
        self.is_restored = False

    def __copy__(self) -> Seeds:
        duplicate = object.__new__(Seeds)
        vars(duplicate).update(vars(self))
        duplicate.generator, duplicate.initial = copy.copy(self.generator), copy.copy(self.initial)
        return duplicate

    def give(self, seed: int) -> None:
        """Sets the user's seed, which determines all following epochs."""
        self.seed = seed
        self.is_due = self.is_since_load = True
        self.is_restored = False

    def begin_epoch(self) -> None:
        """Draws the seeds of the next epoch."""
        if self.seed is not None and self.is_due:
            self.generator.seed(self.seed)
            self.is_due = False
        elif not self.is_restored:
            # The workers' generators depend only on the seed, not on earlier draws, so each epoch needs a new seed.
            self.generator.seed(None if self.seed is None else self.generator.generate_shared_seed())
        self.is_restored = False
        self.initial = copy.copy(self.generator)

    def go_on(self) -> None:
        """Restores the seeds to their values at the beginning of the resumed epoch."""
        self.generator = copy.copy(self.initial)
        self.is_restored = False

    def repeat(self) -> None:
        self.generator = copy.copy(self.initial)
        self.is_restored = True

    def agree(self) -> None:
        """Reseeds the generator from its own shared seed, as each rank does after the ranks have agreed on a seed."""
        self.generator.seed(self.generator.generate_shared_seed())
        self.initial = copy.copy(self.generator)

    def moment(self) -> tuple[Any, ...]:
        """Returns a copy of the seeds, which `go_back` uses to undo later changes."""
        return self.is_due, self.is_restored, copy.copy(self.generator), self.initial

    def go_back(self, moment: tuple[Any, ...]) -> None:
        self.is_due, self.is_restored, self.generator, self.initial = moment

    def randomness(self) -> Randomness:
        return Randomness(self.seed, self.is_due, self.generator, self.initial)

    def take(self, randomness: Randomness | None) -> None:
        self.is_since_load = False
        if randomness is not None:
            self.seed, self.is_due, generator, initial = randomness
            self.generator, self.initial = copy.copy(generator), copy.copy(initial)
