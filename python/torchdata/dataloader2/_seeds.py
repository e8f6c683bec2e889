"""The seeds of a loader's epochs: which one the user gave, and the generators that follow from it.

Role: owned by the loader. Changed by the thread that begins an epoch, sets the seed or loads a state.
"""

from __future__ import annotations

import copy
from typing import Any

from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.state.position import Randomness

__all__ = ["Seeds"]


class Seeds:
    """The seeds of a loader's epochs."""

    def __init__(self) -> None:
        #: The seed that the user gave.
        self.seed: int | None = None
        #: Whether it is still to be applied.
        self.is_due = True
        #: Whether it was given since a state was loaded.
        self.is_since_load = False
        self.generator = SeedGenerator()
        #: The generator as it was at the beginning of the epoch.
        self.initial = copy.copy(self.generator)
        #: Whether the next epoch begins with the generator as it is.
        self.is_restored = False

    def __copy__(self) -> Seeds:
        duplicate = object.__new__(Seeds)
        vars(duplicate).update(vars(self))
        duplicate.generator, duplicate.initial = copy.copy(self.generator), copy.copy(self.initial)
        return duplicate

    def give(self, seed: int) -> None:
        """Takes the user's seed, from which all following epochs follow."""
        self.seed = seed
        self.is_due = self.is_since_load = True
        self.is_restored = False

    def begin_epoch(self) -> None:
        """Draws the seeds of the next epoch."""
        if self.seed is not None and self.is_due:
            self.generator.seed(self.seed)
            self.is_due = False
        elif not self.is_restored:
            # Spawned generators follow from the seed alone, however much was drawn: each epoch needs its own.
            self.generator.seed(None if self.seed is None else self.generator.generate_shared_seed())
        self.is_restored = False
        self.initial = copy.copy(self.generator)

    def go_on(self) -> None:
        """Takes the seeds of the epoch that is resumed, as they were at its beginning."""
        self.generator = copy.copy(self.initial)
        self.is_restored = False

    def repeat(self) -> None:
        """Lets the next epoch have the seeds of the last one."""
        self.generator = copy.copy(self.initial)
        self.is_restored = True

    def agree(self) -> None:
        """Takes the seeds that ranks would have agreed on."""
        self.generator.seed(self.generator.generate_shared_seed())
        self.initial = copy.copy(self.generator)

    def moment(self) -> tuple[Any, ...]:
        """A copy of the seeds, for `go_back` to undo later changes."""
        return self.is_due, self.is_restored, copy.copy(self.generator), self.initial

    def go_back(self, moment: tuple[Any, ...]) -> None:
        """Makes the seeds those of a moment."""
        self.is_due, self.is_restored, self.generator, self.initial = moment

    def randomness(self) -> Randomness:
        """The seeds, as a state holds them."""
        return Randomness(self.seed, self.is_due, self.generator, self.initial)

    def take(self, randomness: Randomness | None) -> None:
        """Takes the seeds of a state, if it has any."""
        self.is_since_load = False
        if randomness is not None:
            self.seed, self.is_due, generator, initial = randomness
            self.generator, self.initial = copy.copy(generator), copy.copy(initial)
