"""The random generators that an order of samples may depend on: taken down, and set for a while.

Role: pure functions. Main uses them around samplers that keep no place of their own, workers around what is read again.
What is taken down is made of values that a checkpoint may hold: tensors, lists, numbers, strings.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch

__all__ = ["global_state", "restored_afterwards", "set_global_state", "states_of", "under"]


def global_state() -> dict[str, Any]:
    """The states of the global generators of torch (on the CPU), Python and NumPy."""
    version, numbers, gauss = random.getstate()
    legacy: Any = numpy.random.get_state(legacy=False)
    key = legacy["state"]
    return {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "numpy": [
            torch.from_numpy(key["key"].astype("int64")),
            int(key["pos"]),
            int(legacy["has_gauss"]),
            float(legacy["gauss"]),
        ],
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Sets the global generators.

    Args:
        state: what `global_state` returned.
    """
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    key, place, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", key.numpy().astype("uint32"), place, has_gauss, gauss))


def states_of(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    """The states of generators, in their order."""
    return [generator.get_state() for generator in generators]


@contextmanager
def restored_afterwards(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Context that leaves the global generators, and these, as they were before."""
    before, own = global_state(), states_of(generators)
    try:
        yield
    finally:
        set_global_state(before)
        for generator, state in zip(generators, own, strict=True):
            generator.set_state(state)


@contextmanager
def under(
    state: dict[str, Any],
    generators: Sequence[torch.Generator] = (),
    own: Sequence[torch.Tensor] = (),
    go_on: bool = False,
) -> Iterator[None]:
    """Context in which the global generators are in a saved state. These generators are set to theirs, and stay.

    Args:
        state: what `global_state` returned.
        generators: generators of users'.
        own: what `states_of` returned for them.
        go_on: what is drawn was never drawn before: where the program has brought its generators into that state by
            itself, they stay as the drawing leaves them, as in the run that was saved.
    """
    with contextlib.nullcontext() if go_on and _is_now(state) else restored_afterwards():
        set_global_state(state)
        for generator, one in zip(generators, own, strict=False):
            generator.set_state(one)
        yield


def _is_now(state: dict[str, Any]) -> bool:
    now = global_state()
    return all(_is_equal(one, other) for one, other in zip(_flat(now), _flat(state), strict=True))


def _flat(state: dict[str, Any]) -> list[Any]:
    return [state["torch"], *state["python"], *state["numpy"]]


def _is_equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
