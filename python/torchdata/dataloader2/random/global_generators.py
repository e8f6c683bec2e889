"""Seeds the global random generators of `random`, NumPy and torch when a shard's epoch begins."""

from __future__ import annotations

import random
from functools import lru_cache
from multiprocessing import parent_process
from typing import Any

from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.datapipes._pipe import random as own_random
from torchdata.datapipes._pipe.state import generators


def _seeds(seed_generator: SeedGenerator, shared: bool) -> dict[str, int]:
    """Returns the seeds of the global generators. Always draws three seeds, even if NumPy or torch is not loaded, so
    that the seeds of the pipes do not depend on the loaded libraries."""
    draw = seed_generator.generate_shared_seed if shared else seed_generator.generate_seed
    return {"random": draw(), "torch": draw(), "numpy.random": draw() >> 32}  # NumPy's generator accepts 32 bits


def seed_global_generators(seed_generator: SeedGenerator, shared: bool) -> None:
    seeds = _seeds(seed_generator, shared)
    random.seed(seeds.pop("random"))
    seeds = generators.seed_loaded(seeds)
    # Libraries that are not imported yet are seeded when they are imported. The main process seeds libraries only while
    # a shard runs, because at other times, the generators of the main process belong to the user.
    if parent_process() is not None or own_random.is_replica:
        generators.seed_when_imported(seeds)


@lru_cache(maxsize=64)  # each shard of this process has its own seeds
def seeded_generators(seeds: bytes, shared: bool) -> dict[str, Any]:
    """Returns the states that `seed_global_generators` would give the global generators. Does not change these
    generators.
    """
    return generators.seeded_generators(_seeds(SeedGenerator.imported(seeds), shared))
