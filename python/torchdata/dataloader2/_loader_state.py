"""The layout of a loader's state, and the checks that it is one.

Role: pure data, no loader. A state is a dictionary that pickles. Unpickling it runs code: load only what you
    trust.

A state lies in files for a long time, and a damaged pickle does not only fail in any way there is, it may also make
something else, or ask for all memory. So checksums of its fields are compared before anything is unpickled.
"""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from torchdata.dataloader2.random import SeedGenerator

__all__ = ["STATE_VERSION", "check_state", "checksums", "pack_randomness", "unpack_randomness", "unpickled"]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"
VERSION_KEY_NAME = "version"
#: Place of the state inside an epoch; None where the state says only which epoch it is.
ITERATION_STATE_KEY_NAME = "iteration_state"

#: A checksum of each of the first three fields, by its name; absent in states of torchdata 0.9.
CHECKSUMS_KEY_NAME = "checksums"

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
    expected = state.get(CHECKSUMS_KEY_NAME)
    if expected is None:
        return
    found = checksums(state)
    if not isinstance(expected, Mapping):
        raise _damaged(CHECKSUMS_KEY_NAME, f"it is {expected!r} where checksums should be")
    for field in {**found, **expected}:
        if expected.get(field) != found.get(field):
            raise _damaged(field, "its checksum is not the one that was saved with it")


def checksums(state: Mapping[str, Any]) -> dict[str, int]:
    """The checksums that stand in a state, by the names of its fields."""
    found = {}
    for field in (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME, RANDOMNESS_STATE_KEY_NAME):
        value = state.get(field)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        # A user's service may return anything from `checkpoint`; what that prints need not be the same later.
        if all(type(part) in (bytes, int, bool, NoneType) for part in parts):
            found[field] = _checksum(parts)
    return found


def _checksum(parts: Iterable[Any]) -> int:
    """CRC-32 of all parts, their types and their lengths."""
    crc = 0
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        crc = zlib.crc32(data, zlib.crc32(f"{type(part).__name__} {len(data)} ".encode(), crc))
    return crc


def unpickled(field: str, pickled: Any) -> Any:
    """What a field of a state holds as a pickle.

    Raises:
        ValueError: it cannot be unpickled; the message tells damage from modules that are missing here.
    """
    if not isinstance(pickled, bytes):
        raise _damaged(field, f"it holds an object of type {type(pickled).__name__} where bytes should be")
    try:
        return pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        name = re.search(r"attribute '(.+?)' on <module '__(?:mp_)?main__'", str(error))
        if name is not None:
            raise ValueError(
                f"the field {field!r} of this loader state cannot be loaded, because it names {name[1]!r} of the "
                "program's own file (`__main__`), and the program that runs now defines no such name there: define "
                "it, or put it into a module that both programs import and save the state anew"
            ) from error
        raise ValueError(
            f"the field {field!r} of this loader state cannot be loaded, because something that it was made of cannot "
            f"be imported here ({type(error).__name__}: {error}); load it where the modules and names of the program "
            "that saved it exist. If they do, the state is damaged"
        ) from error
    except Exception as error:
        raise _damaged(field, f"unpickling it fails with {type(error).__name__}: {error}") from error


def _damaged(field: str, how: str) -> ValueError:
    return ValueError(f"this loader state is damaged in its field {field!r}: {how}; load another copy of it")


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
    field = RANDOMNESS_STATE_KEY_NAME
    if not isinstance(packed, (tuple, list)) or len(packed) != 4:
        raise _damaged(field, "it is not a seed, whether it applies, and two generators")
    seed, reset_seed = packed[:2]
    generators = [unpickled(field, generator) for generator in packed[2:]]
    if not all(isinstance(generator, SeedGenerator) for generator in generators):
        raise _damaged(field, f"it holds {generators!r} where two SeedGenerators should be")
    if not (seed is None or (type(seed) is int and 0 <= seed < 2**64)) or type(reset_seed) is not bool:
        raise _damaged(field, f"its seed is {seed!r}, and whether that is still to be applied {reset_seed!r}")
    return seed, reset_seed, generators[0], generators[1]
