"""The seeds of a loader's epochs: the user's seed, and the generators that are derived from it."""

from __future__ import annotations

import copy
from typing import Any

from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.state.position import Randomness


class Seeds:
    def __init__(self) -> None:
        self.seed: int | None = None
        #: Whether the next epoch must start from the seed that the user has set, if there is one.
        self.is_due = True
        #: Whether the user has set the seed after a state was loaded.
        self.is_since_load = False
        self.generator = SeedGenerator()
        #: The generator at the beginning of the last epoch.
        self.initial = copy.copy(self.generator)
        #: Whether the next epoch repeats the seeds of the last epoch.
        self.is_restored = False

    def __copy__(self) -> Seeds:
        duplicate = object.__new__(Seeds)
        vars(duplicate).update(vars(self))
        duplicate.generator, duplicate.initial = copy.copy(self.generator), copy.copy(self.initial)
        return duplicate

    def set_user_seed(self, seed: int) -> None:
        self.seed = seed
        self.is_due = self.is_since_load = True
        self.is_restored = False

    def begin_epoch(self) -> None:
        if self.seed is not None and self.is_due:
            self.generator.seed(self.seed)
            self.is_due = False
        elif not self.is_restored:
            # Workers derive their generators from this generator's seed, so each epoch needs a new seed.
            self.generator.seed(None if self.seed is None else self.generator.generate_shared_seed())
        self.is_restored = False
        self.initial = copy.copy(self.generator)

    def return_to_beginning(self, *, is_restored: bool) -> None:
        self.generator, self.is_restored = copy.copy(self.initial), is_restored

    def agree(self) -> None:
        """Reseeds the generator as the ranks of a distributed job do, so that a loader without ranks gets the same
        seeds."""
        self.generator.seed(self.generator.generate_shared_seed())
        self.initial = copy.copy(self.generator)

    def moment(self) -> tuple[Any, ...]:
        """Returns a copy of the seeds, so that `return_to` can undo later changes."""
        return self.is_due, self.is_restored, copy.copy(self.generator), self.initial

    def return_to(self, moment: tuple[Any, ...]) -> None:
        self.is_due, self.is_restored, self.generator, self.initial = moment

    def randomness(self) -> Randomness:
        return Randomness(self.seed, self.is_due, copy.copy(self.generator), self.initial)

    def take(self, randomness: Randomness | None) -> None:
        self.is_since_load = False
        if randomness is not None:
            self.seed, self.is_due, generator, initial = randomness
            self.generator, self.initial = copy.copy(generator), copy.copy(initial)
