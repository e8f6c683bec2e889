"""The generator of 0.9 by its name, based on the present generator. Its numbers are other ones than there.

Role: for code that made its seeds by `PhiloxEngine` itself. Runs wherever that code runs; nothing here uses it.
"""

from __future__ import annotations

import copy
import warnings

from torchdata.dataloader2.random.seed_generator import SeedGenerator

__all__ = ["PhiloxEngine"]

_UINT64 = (1 << 64) - 1


class PhiloxEngine:
    """A stream of seeds that follow from one number. Deprecated: use `SeedGenerator`, which it draws from.

    Args:
        seed: an integer, of which the lower 64 bits count; None: `seed` is called before numbers are drawn.

    Raises:
        TypeError: the seed is not an integer.
    """

    def __init__(self, seed: int | None = None) -> None:
        warnings.warn(
            "PhiloxEngine is deprecated and generates other numbers than in torchdata 0.9; use "
            "torchdata.dataloader2.random.SeedGenerator",
            DeprecationWarning,
            stacklevel=2,
        )
        self._generator: SeedGenerator | None = None
        if seed is not None:
            self.seed(seed)

    def _seeded(self) -> SeedGenerator:
        if self._generator is None:
            raise AssertionError("PhiloxEngine has no seed yet. Please provide seed to PhiloxEngine: call its `seed`")
        return self._generator

    def seed(self, seed: int) -> PhiloxEngine:
        """Starts over from `seed`. Returns the engine itself."""
        self._generator = SeedGenerator(seed & _UINT64)
        return self

    def generate(self) -> int:
        """The next number, from 0 to 2**64 - 1.

        Raises:
            AssertionError: there is no seed yet.
        """
        return self._seeded().generate_seed()

    def clone(self) -> PhiloxEngine:
        """An engine that continues alike."""
        return copy.deepcopy(self)

    def spawn(self, index: int) -> PhiloxEngine:
        """The engine number `index` of those that are independent of this one and of each other.

        Raises:
            AssertionError: there is no seed yet, or `index` is negative.
        """
        if index < 0:
            raise AssertionError(f"Expected a non-negative value for spawn, but found {index}")
        spawned = copy.copy(self)
        spawned._generator = self._seeded().spawn(index)
        return spawned
