"""Seeds for random pipes without an explicit seed, and private states of the global random generators.

Role: chooses the global random generator that provides the seeds. This module's code runs in the process that iterates
the pipe, at the start of an iteration.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from torchdata._importing import loaded

#: Whether this process runs a replica of a graph, as a worker does. The worker's runtime sets this flag.
is_replica = False


def draw_seed(last: int | None = None, follows: bool = False) -> int:
    """Returns a new 63-bit seed from the global random generator of torch, or of Python if torch is not loaded.

    Because of the global generator, `torch.manual_seed` (or, without torch, `random.seed`) makes a run reproducible. A
    loader seeds the replicas of its pipes, because replicas that drew different seeds before a `sharding_filter` would
    lose or duplicate items. If a pipe is read more than once per epoch (`cycle`), each further seed is derived from the
    pipe's previous seed. The order of the items is thus the same for any number of workers, including none, and for any
    number of ranks.

    Args:
        last: the seed of the pipe's previous iteration.
        follows: whether to derive the seed from `last`, because a loader seeds the pipe. In a replica of the pipeline,
            the second seed and all later seeds are always derived from `last`.
    """
    if last is not None and (is_replica or follows):
        return random.Random(f"after {last}").getrandbits(63)
    torch = loaded("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    return random.getrandbits(63)


class PrivateRandomness:
    """Gives code a private sequence of random numbers from the global generators of Python, NumPy and torch.

    Inside the `with` block, the random generators start from the seed, or resume where the previous block ended. After
    the block, the random generators have the same state as before the block. The random generators of libraries that
    are not loaded are not affected.

    Args:
        seed: the seed of the random generators, at most 63 bits.
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
            numpy_random.seed(self._seed & 0xFFFF_FFFF)  # the legacy generator accepts 32 bits
        if torch is not None:
            torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        self._inside = _states()
        _restore(self._outside)


def _states() -> list[Any]:
    """Returns the states of the global random generators; None for libraries that are not imported."""
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
