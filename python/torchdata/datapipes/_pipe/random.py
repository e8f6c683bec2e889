"""Seeds for random pipes that were given none, and a course of the global generators of one's own.

Role: decides which global generator provides seeds. Runs in the process that iterates the
pipe, at the start of an iteration.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from torchdata._importing import loaded

#: Whether this process runs a replica of a graph, as a worker does. Its runtime says so.
is_replica = False


def draw_seed(last: int | None = None, follows: bool = False) -> int:
    """A fresh seed of 63 bits: from torch's global generator if torch is loaded, else from Python's.

    So `torch.manual_seed` (or, without torch, `random.seed`) makes a run repeatable. The replicas of a pipe before a
    `sharding_filter` must draw the same numbers, because items would otherwise be lost and repeated. Their global
    generators differ. If a loader seeds the pipes, the seed of a pipe that is read again in one epoch (`cycle`)
    therefore follows from its last seed. So the order is the same for any numbers of workers, none included, and of
    ranks.

    Args:
        last: the seed of the pipe's last iteration.
        follows: whether the pipe is one of a loader that seeds it.
    """
    if last is not None and (is_replica or follows):
        return random.Random(f"after {last}").getrandbits(63)
    torch = loaded("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    return random.getrandbits(63)


class PrivateRandomness:
    """Lets code draw from the global generators of Python, NumPy and torch as if it were alone with them.

    Within `with` they resume from the seed, or from where the last such block left them; after it they are as they were
    before. Generators of libraries that are not loaded do not count.

    Args:
        seed: the seed of the generators, of at most 63 bits.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: list[Any] | None = None
        self._outside: list[Any] = []

    def __enter__(self) -> None:
        self._outside = _states()
        if self._inside is not None:
            _restore(self._inside)
            return
        random.seed(self._seed)
        numpy_random, torch = loaded("numpy.random"), loaded("torch")
        if numpy_random is not None:
            numpy_random.seed(self._seed & 0xFFFF_FFFF)  # the legacy generator takes 32 bits
        if torch is not None:
            torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        self._inside = _states()
        _restore(self._outside)


def _states() -> list[Any]:
    """The states of the global generators; None for libraries that are not imported."""
    numpy_random, torch = loaded("numpy.random"), loaded("torch")
    return [
        random.getstate(),
        None if numpy_random is None else numpy_random.get_state(),
        None if torch is None else torch.default_generator.get_state(),
    ]


def _restore(states: list[Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy.random"].set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].default_generator.set_state(states[2])
