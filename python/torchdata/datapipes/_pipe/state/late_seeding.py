"""Seeds libraries that are imported in the middle of an epoch.

Role: a child process seeds the global generators of the loaded libraries when an epoch begins. A user's function may
import a library later, as often happens with the start method spawn. Such a library would seed its generator from the
system's entropy, so the run could not be reproduced. To prevent this, each library is seeded right after its import,
before the importing code continues. This module's code runs in workers and in the dispatching process.
`process_reset_fn` provides the seeds of each epoch. States contain the pending seeds. A process that resumes at the
beginning of an epoch needs these seeds for libraries that it has already imported, although the original run imported
the libraries later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torchdata._importing import call_when_imported

__all__ = ["await_again", "awaited", "awaited_seeds", "seed_now_or_when_imported", "seed_when_imported"]

_SEED: Mapping[str, Callable[[Any, int], object]] = {
    "torch": lambda torch, seed: torch.manual_seed(seed),
    "numpy.random": lambda numpy_random, seed: numpy_random.seed(seed),
}

#: The seeds of modules that are not loaded, by their full names. A process has one dict for each of its shards.
awaited: dict[str, int] = {}


def seed_when_imported(seeds: Mapping[str, int]) -> None:
    """Seeds a module's generator once, right after the module is imported.

    Args:
        seeds: the seeds of modules that are not loaded, by full module name ("torch", "numpy.random"). The mapping
            replaces the seeds of the previous epoch, so an empty mapping only removes the previous seeds.
    """
    global awaited
    awaited = dict(seeds)
    call_when_imported("seeds", {name: partial(_seed, name) for name in seeds})


def seed_now_or_when_imported(seeds: Mapping[str, int]) -> None:
    """Seeds several modules: imported modules now, and other modules right after their import."""
    seed_when_imported({name: seed for name, seed in seeds.items() if name not in sys.modules})
    for name, seed in seeds.items():
        if name in sys.modules:
            _SEED[name](sys.modules[name], seed)


def await_again(seeds: dict[str, int]) -> None:
    """Sets `awaited` to `seeds`, which was its value when the shard last ran. A module that another shard has imported
    in the meantime is seeded immediately."""
    global awaited
    awaited = seeds
    if seeds and not sys.modules.keys().isdisjoint(seeds):
        for name in [name for name in seeds if name in sys.modules]:
            _seed(name, sys.modules[name])


def awaited_seeds() -> dict[str, int]:
    return dict(awaited)


def _seed(name: str, module: Any) -> None:
    seed = awaited.pop(name, None)
    if seed is not None:
        _SEED[name](module, seed)
