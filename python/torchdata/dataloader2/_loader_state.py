"""The layout of a loader's state, and the checks that it is one.

Role: pure data, no loader. A state is a dictionary that pickles. Unpickling it runs code: load only what you trust.

A state lies in files for a long time, and a damaged pickle does not only fail in any way there is, it may also make
something else, or ask for all memory. So checksums of its fields are compared before anything is unpickled.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from torchdata._engine.snapshots import check_seal, seal_of
from torchdata.dataloader2._marks import check_iteration
from torchdata.dataloader2.graph.serialization import damaged, unpickled
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.interface import READING_SERVICE_STATE_KEY_NAME

__all__ = ["STATE_VERSION", "check_state", "checksums", "pack_randomness", "unpack_randomness"]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"
VERSION_KEY_NAME = "version"
#: Place of the state inside an epoch; None where the state says only which epoch it is.
ITERATION_STATE_KEY_NAME = "iteration_state"

#: A checksum of each of the first three fields, by its name; absent in states of torchdata 0.9.
CHECKSUMS_KEY_NAME = "checksums"

#: Version of the layout written here. States without a version are those of torchdata 0.9, which had the
#: first two or three keys.
STATE_VERSION = 2

#: Those that are read, too. Version 1 had no place inside an epoch, and always the pipe.
_READ = (1, STATE_VERSION)

#: What the pipeline is made of, and a hash of it as bytes.
PIPELINE_KEY_NAME = "pipeline"

#: The rank of the loader, how many there were, and whether their epoch had the seeds of one without ranks; absent where
#: there were none.
RANKS_KEY_NAME = "ranks"

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
    version = state.get(VERSION_KEY_NAME, 1)
    if version not in _READ:
        raise ValueError(
            f"this loader state has version {version!r}, but this release reads versions {_READ[0]} to {_READ[-1]}; "
            "load it with the release that saved it"
        )
    expected = state.get(CHECKSUMS_KEY_NAME)
    if expected is None:
        _check_place(state.get(ITERATION_STATE_KEY_NAME))
        _check_ranks(state.get(RANKS_KEY_NAME))
        return
    found = checksums(state)
    if not isinstance(expected, Mapping):
        raise damaged(CHECKSUMS_KEY_NAME, f"it is {expected!r} where checksums should be")
    for field in {**found, **expected}:
        if expected.get(field) != found.get(field):
            raise damaged(field, "its checksum is not the one that was saved with it")
    _check_place(state.get(ITERATION_STATE_KEY_NAME))
    _check_ranks(state.get(RANKS_KEY_NAME))


def _check_ranks(ranks: Any) -> None:
    """Raises an error where this is not a rank and how many there were."""
    if ranks is None:
        return
    if not isinstance(ranks, (list, tuple)) or tuple(map(type, ranks)) != (int, int, bool):
        raise damaged(RANKS_KEY_NAME, f"it is {ranks!r} where a rank, and how many there were, should be")
    if not 0 <= ranks[0] < ranks[1]:
        raise damaged(RANKS_KEY_NAME, f"it says rank {ranks[0]} of {ranks[1]}")


def _check_place(place: Any) -> None:
    """Raises an error where a place inside an epoch is not whole."""
    if place is None:
        return
    try:
        check_iteration(place)
        for sealed in _sealed_in(place):
            check_seal(sealed, "a snapshot")
    except ValueError as error:
        raise damaged(ITERATION_STATE_KEY_NAME, str(error)) from None


def _sealed_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _sealed_in(part)


def checksums(state: Mapping[str, Any], of_datapipe: int | None = None) -> dict[str, int]:
    """The checksums that stand in a state, by the names of its fields.

    Args:
        state: the state.
        of_datapipe: the checksum of the pipe, where it is known already.
    """
    found = {}
    for field in (ITERATION_STATE_KEY_NAME, PIPELINE_KEY_NAME, RANKS_KEY_NAME):
        if field in state and state.get(VERSION_KEY_NAME, 1) >= 2:
            found[field] = zlib.crc32("".join(_outline(state[field])).encode())
    for field in (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME, RANDOMNESS_STATE_KEY_NAME):
        if of_datapipe is not None and field == SERIALIZED_DATAPIPE_KEY_NAME:
            found[field] = of_datapipe
            continue
        value = state.get(field)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        # A user's service may return anything from `checkpoint`; what that prints need not be the same later.
        if all(type(part) in (bytes, int, bool, NoneType) for part in parts):
            found[field] = _checksum(parts)
    return found


def _outline(value: Any) -> Iterator[str]:
    """A value in words, of snapshots the seals alone: these have checksums of their own."""
    if isinstance(value, bytes):
        yield seal_of(value).hex()
    elif isinstance(value, dict):
        for name, part in value.items():
            yield f"{name}:"
            yield from _outline(part)
    elif isinstance(value, (list, tuple)):
        yield f"[{len(value)}]"
        for part in value:
            yield from _outline(part)
    else:
        yield f"{value!r};"


def checksum_of(data: bytes) -> int:
    """The checksum of a field that holds bytes alone."""
    return _checksum((data,))


def _checksum(parts: Iterable[Any]) -> int:
    """CRC-32 of all parts, their types and their lengths."""
    crc = 0
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        crc = zlib.crc32(data, zlib.crc32(f"{type(part).__name__} {len(data)} ".encode(), crc))
    return crc


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
        raise damaged(field, "it is not a seed, whether it applies, and two generators")
    seed, reset_seed = packed[:2]
    generators = [unpickled(field, generator) for generator in packed[2:]]
    if not all(isinstance(generator, SeedGenerator) for generator in generators):
        raise damaged(field, f"it holds {generators!r} where two SeedGenerators should be")
    if not (seed is None or (type(seed) is int and 0 <= seed < 2**64)) or type(reset_seed) is not bool:
        raise damaged(field, f"its seed is {seed!r}, and whether that is still to be applied {reset_seed!r}")
    return seed, reset_seed, generators[0], generators[1]
