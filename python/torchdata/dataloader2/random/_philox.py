"""The seed generator `PhiloxEngine` of torchdata 0.9, for old code.

The numbers differ from torchdata 0.9, because a `SeedGenerator` draws them.
"""

from __future__ import annotations

import copy
import warnings

from torchdata.dataloader2.random.seed_generator import SeedGenerator

_UINT64 = (1 << 64) - 1


class PhiloxEngine:
    """Generates seeds that are all derived from one number. Deprecated: use `SeedGenerator`."""

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
        self._generator = SeedGenerator(seed & _UINT64)
        return self

    def generate(self) -> int:
        return self._seeded().generate_seed()

    def clone(self) -> PhiloxEngine:
        """The copy generates the same numbers as the original from now on."""
        return copy.deepcopy(self)

    def spawn(self, index: int) -> PhiloxEngine:
        """Returns a random engine for worker `index`. The engines that `spawn` returns for different workers generate
        independent numbers."""
        if index < 0:
            raise AssertionError(f"Expected a non-negative value for spawn, but found {index}")
        spawned = copy.copy(self)
        spawned._generator = self._seeded().spawn(index)
        return spawned
