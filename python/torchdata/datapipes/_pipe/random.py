"""Draws seeds for random pipes without an explicit seed, and runs code with private states of the global random
generators."""

from __future__ import annotations

import random
import sys
from typing import Any

from torchdata._importing import loaded

#: Whether this process runs a copy of a graph that other processes run, too. Worker processes set this variable to
#: True.
is_replica = False


def draw_seed(last: int | None = None, follows: bool = False) -> int:
    """Returns a new 63-bit seed from the global random generator of torch, or of Python if torch is not loaded.

    A loader sets the seed of each pipe in each epoch. With different seeds in two workers, a `sharding_filter` would
    lose or duplicate items. If an epoch reads the pipe several times (`cycle`), each further seed is derived from the
    previous seed (`last`).

    Args:
        last: the seed of the pipe's previous iteration.
        follows: whether to derive the new seed from the previous seed (`last`). Worker processes always derive it.
    """
    if last is not None and (is_replica or follows):
        return random.Random(f"after {last}").getrandbits(63)
    torch = loaded("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    return random.getrandbits(63)


class PrivateRandomness:
    """A context manager within which the global random generators of Python, NumPy and torch produce a private sequence
    of numbers.

    The first `with` block starts the private sequence from the seed, and each later `with` block continues the
    sequence. After a `with` block, the generators have the states that they had before the block. Generators of
    libraries that are not imported stay unchanged.
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
