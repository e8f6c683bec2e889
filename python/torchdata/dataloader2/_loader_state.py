"""The layout of a loader's state, and the checks that it is one.

Role: pure data, no loader. A state is plain data. The pipe in it is a pickle, and so is what pipes hold that only
pickle can: unpickling runs any code that their writer likes, so nothing of that happens here.

A state lies in files for a long time, and comes from hubs. Damage is told by the checksums of its fields. Checksums say
nothing of who has written them: so all numbers and kinds are checked before anything is done with them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any

from torchdata._engine.snapshots import is_sealed, seal_of, unseal
from torchdata.dataloader2._contents import check_contents, refuse_pickled_contents
from torchdata.dataloader2._marks import check_iteration
from torchdata.dataloader2.graph.serialization import damaged
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.interface import READING_SERVICE_STATE_KEY_NAME
from torchdata.datapipes._pipe.fingerprint import Fingerprint, check_fingerprint
from torchdata.datapipes._pipe.plain import refuse_pickled

__all__ = [
    "STATE_VERSION",
    "check_state",
    "checksums",
    "fingerprint_in",
    "pack_randomness",
    "refuse_pickled_state",
    "unpack_randomness",
]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"
VERSION_KEY_NAME = "version"
#: Place of the state inside an epoch; None if the state says only which epoch it is.
ITERATION_STATE_KEY_NAME = "iteration_state"

#: A checksum of each of the first three fields, by its name; absent in states of torchdata 0.9.
CHECKSUMS_KEY_NAME = "checksums"

#: Version of the layout written here. States without a version are those of torchdata 0.9, which had the
#: first two or three keys.
STATE_VERSION = 3

#: The fingerprint of the pipeline, and how many bytes it has.
PIPELINE_KEY_NAME = "pipeline"

#: The rank of the loader, how many there were, and whether their epoch had the seeds of one without ranks; absent where
#: there were none.
RANKS_KEY_NAME = "ranks"

#: The user's seed, whether it is still to be applied, the generator now and at the beginning of the epoch.
Randomness = tuple[int | None, bool, SeedGenerator, SeedGenerator]


def check_state(state: Any) -> None:
    """Raises an error if `state` is not the state of a loader that this release can read."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a loader's state is the dictionary that state_dict() returned, but got {state!r}")
    missing = [k for k in (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME) if k not in state]
    if missing:
        raise ValueError(
            f"this is not the state of a DataLoader2: it lacks {', '.join(map(repr, missing))} and has "
            f"{sorted(map(str, state))}"
        )
    version = state.get(VERSION_KEY_NAME)
    if version is not None and (type(version) is not int or version != STATE_VERSION):
        raise ValueError(
            f"this loader state has version {version!r}, but this release reads version {STATE_VERSION}; load it with "
            "the release that saved it"
        )
    place = state.get(ITERATION_STATE_KEY_NAME)
    _check_layout(state, place)
    expected = state.get(CHECKSUMS_KEY_NAME)
    if expected is not None:
        _check_checksums(state, expected)
    if place is not None:
        with _naming(ITERATION_STATE_KEY_NAME):
            check_contents(place)


def _check_layout(state: Mapping[str, Any], place: Any) -> None:
    """Raises ValueError if a field, apart from what is sealed in it, holds anything else than it should."""
    if place is not None:
        with _naming(ITERATION_STATE_KEY_NAME):
            check_iteration(place)
    if PIPELINE_KEY_NAME in state:
        with _naming(PIPELINE_KEY_NAME):
            _check_outline(state[PIPELINE_KEY_NAME])
    _check_ranks(state.get(RANKS_KEY_NAME))
    unpack_randomness(state)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Lets errors of what is not as it should be name the field. Layouts have no circles, and are not deep."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(field, str(error)) from None
    except RecursionError:
        raise damaged(field, "it is nested deeper than any state") from None


def _check_outline(outline: Any) -> None:
    if not isinstance(outline, dict) or type(outline.get("length")) is not int:
        raise ValueError("it does not say what the pipeline is made of")
    check_fingerprint(fingerprint_in(outline))


def fingerprint_in(outline: dict[str, Any]) -> Fingerprint:
    """The fingerprint of the pipeline that a state was saved from."""
    found: Fingerprint = json.loads(outline["fingerprint"])
    return found


def _check_checksums(state: Mapping[str, Any], expected: Any) -> None:
    """Raises ValueError if a field is not the one that was saved."""
    found = checksums(state)
    if not isinstance(expected, Mapping):
        raise damaged(CHECKSUMS_KEY_NAME, f"it is of type {type(expected).__name__} where checksums should be")
    for field in {**found, **expected}:
        if expected.get(field) != found.get(field):
            raise damaged(field, "its checksum is not the one that was saved with it")


def refuse_pickled_state(state: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the pipe, if a place, or what shipped services say, has to be unpickled.

    Args:
        state: a state that was checked.
    """
    place, of_service = state.get(ITERATION_STATE_KEY_NAME), state[READING_SERVICE_STATE_KEY_NAME]
    if place is not None:
        refuse_pickled_contents(place)
    if isinstance(of_service, bytes) and is_sealed(of_service):
        refuse_pickled(unseal(of_service, "the state of the services"), "a reading service")


def _check_ranks(ranks: Any) -> None:
    """Raises an error if this is not a rank and how many there were."""
    if ranks is None:
        return
    if not isinstance(ranks, (list, tuple)) or tuple(map(type, ranks)) != (int, int, bool):
        raise damaged(RANKS_KEY_NAME, f"it is {ranks!r} where a rank, and how many there were, should be")
    if not 0 <= ranks[0] < ranks[1]:
        raise damaged(RANKS_KEY_NAME, f"it says rank {ranks[0]} of {ranks[1]}")


def checksums(state: Mapping[str, Any], of_datapipe: int | None = None) -> dict[str, int]:
    """The checksums that stand in a state, by the names of its fields.

    Args:
        state: the state.
        of_datapipe: the checksum of the pipe, if it is known already.
    """
    found = {}
    for field in (ITERATION_STATE_KEY_NAME, PIPELINE_KEY_NAME, RANKS_KEY_NAME):
        if field in state:
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
    return seed, reset_seed, generator.exported(), initial.exported()


def unpack_randomness(state: Mapping[str, Any]) -> Randomness | None:
    """The randomness that a state holds, if any."""
    packed = state.get(RANDOMNESS_STATE_KEY_NAME)
    if packed is None:
        return None
    field = RANDOMNESS_STATE_KEY_NAME
    if not isinstance(packed, (tuple, list)) or len(packed) != 4:
        raise damaged(field, "it is not a seed, whether it applies, and two generators")
    seed, reset_seed = packed[:2]
    if not all(type(generator) is bytes for generator in packed[2:]):
        raise damaged(field, "it does not hold the bytes of two generators")
    with _naming(field):
        generators = [SeedGenerator.imported(generator) for generator in packed[2:]]
    if not (seed is None or (type(seed) is int and 0 <= seed < 2**64)) or type(reset_seed) is not bool:
        raise damaged(field, f"its seed is a {type(seed).__name__}, or too large, or it is not told whether it applies")
    return seed, reset_seed, generators[0], generators[1]
