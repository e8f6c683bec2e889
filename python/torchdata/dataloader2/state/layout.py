"""The layout of a loader's state: its fields, its marks, its checksums.

Role: pure data, no loader. A state is plain data. The pipe in it is a pickle, and so is what pipes hold that only
pickle can: unpickling runs any code that their writer likes, so nothing of that happens here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any

from torchdata._engine.snapshots import seal_of
from torchdata.dataloader2.graph.serialization import damaged
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint

__all__ = [
    "STATE_VERSION",
    "Mark",
    "checksum_of",
    "checksums",
    "fingerprint_in",
    "is_of_0_9",
    "naming",
    "pack_randomness",
    "unpack_randomness",
]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
#: The key of a service's own state.
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
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


@dataclass(frozen=True)
class Mark:
    """A place at which main's part of the graph was looked at."""

    #: Items of the epoch that were given by then.
    given: int
    #: The state of main's part, sealed; None if it begins, or holds nothing that counts.
    graph: bytes | None = None
    #: The global generators, sealed, where main runs functions of the user's.
    generators: bytes | None = None
    #: The place of the workers.
    workers: dict[str, Any] | None = None
    #: Whether no worker processes run the graph.
    in_main: bool = True
    #: The generators with which the epoch began, where they are needed to begin it anew.
    beginning: bytes | None = None
    #: Why the place of the workers does not tell what lasts in them beyond the pass that ran then, if it does not.
    untold: str | None = None

    def at(self, given: int, ended: bool) -> dict[str, Any]:
        """The mark, and how many items behind it were given, as they stand in a state."""
        return {
            "given": given,
            "drop": given - self.given,
            "ended": ended,
            "graph": self.graph,
            "generators": self.generators,
            "beginning": self.beginning,
            "workers": self.workers,
            "in_main": self.in_main,
        }


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Lets errors of what is not as it should be name the field. Layouts have no circles, and are not deep."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(field, str(error)) from None
    except RecursionError:
        raise damaged(field, "it is nested deeper than any state") from None


def fingerprint_in(outline: dict[str, Any]) -> Fingerprint:
    """The fingerprint of the pipeline that a state was saved from."""
    found: Fingerprint = json.loads(outline["fingerprint"])
    return found


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


def is_of_0_9(state: Mapping[str, Any]) -> bool:
    """Whether a state was saved by torchdata 0.9, which saved no version and no position inside an epoch."""
    return state.keys().isdisjoint(
        (VERSION_KEY_NAME, ITERATION_STATE_KEY_NAME, CHECKSUMS_KEY_NAME, PIPELINE_KEY_NAME, RANKS_KEY_NAME)
    )


def unpack_randomness(state: Mapping[str, Any]) -> Randomness | None:
    """The randomness that a state holds, if any.

    The generators of torchdata 0.9 are pickles, and draw other numbers. They are not opened: the user's seed applies
    again.
    """
    packed = state.get(RANDOMNESS_STATE_KEY_NAME)
    if packed is None:
        return None
    field = RANDOMNESS_STATE_KEY_NAME
    if not isinstance(packed, (tuple, list)) or len(packed) != 4:
        raise damaged(field, "it is not a seed, whether it applies, and two generators")
    seed, reset_seed = packed[:2]
    if not all(type(generator) is bytes for generator in packed[2:]):
        raise damaged(field, "it does not hold the bytes of two generators")
    if is_of_0_9(state):
        reset_seed, generators = True, [SeedGenerator(), SeedGenerator()]
    else:
        with naming(field):
            generators = [SeedGenerator.imported(generator) for generator in packed[2:]]
    if not (seed is None or (type(seed) is int and 0 <= seed < 2**64)) or type(reset_seed) is not bool:
        raise damaged(field, f"its seed is a {type(seed).__name__}, or too large, or it is not told whether it applies")
    return seed, reset_seed, generators[0], generators[1]
