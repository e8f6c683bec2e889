"""The layout of a loader's state, and the checks that it is one.

Role: pure data, no loader. A state is a dictionary that pickles. Unpickling it runs code: load only what you
    trust.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from torchdata.dataloader2.random import SeedGenerator

__all__ = ["STATE_VERSION", "check_state", "pack_randomness", "unpack_randomness"]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"
VERSION_KEY_NAME = "version"
#: Place of the state inside an epoch; None where the state says only which epoch it is.
ITERATION_STATE_KEY_NAME = "iteration_state"

#: Version of the layout written here. States without a version are those of torchdata 0.9, which had the
#: first two or three keys.
STATE_VERSION = 1

#: The user's seed, whether it is still to be applied, the generator now and at the beginning of the epoch.
Randomness = tuple[int | None, bool, SeedGenerator, SeedGenerator]


def check_state(state: Any) -> None:
    """Raises an error where `state` is not the state of a loader that this release can read."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a loader's state is the dictionary that state_dict() returned, but got {state!r}")
    missing = [k for k in (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME) if k not in state]
    if missing:
        raise ValueError(
            f"this is not the state of a DataLoader2: it lacks {', '.join(map(repr, missing))} and has "
            f"{sorted(map(str, state))}"
        )
    version = state.get(VERSION_KEY_NAME, STATE_VERSION)
    if version != STATE_VERSION:
        raise ValueError(
            f"this loader state has version {version!r}, but this release reads version {STATE_VERSION}; "
            "load it with "
            "the release that saved it"
        )
    if state.get(ITERATION_STATE_KEY_NAME) is not None:
        raise ValueError("this loader state was saved inside an epoch, which this release cannot resume")


def pack_randomness(
    seed: int | None, reset_seed: bool, generator: SeedGenerator, initial: SeedGenerator
) -> tuple[int | None, bool, bytes, bytes]:
    """The randomness of a loader, as it stands in its state."""
    return seed, reset_seed, pickle.dumps(generator), pickle.dumps(initial)


def unpack_randomness(state: Mapping[str, Any]) -> Randomness | None:
    """The randomness that a state holds, if any."""
    packed = state.get(RANDOMNESS_STATE_KEY_NAME)
    if packed is None:
        return None
    seed, reset_seed, generator, initial = packed
    return seed, reset_seed, pickle.loads(generator), pickle.loads(initial)
