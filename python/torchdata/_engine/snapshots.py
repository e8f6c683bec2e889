"""Snapshots of what a child runs, as bytes, and what a child needs to go on from one.

Role: the words between main and its children about resuming. A child makes snapshots by itself, between two items; main
keeps the bytes unopened, and gives them back with the command that begins an epoch where an earlier run has left it.

A sealed snapshot is a header (magic, version, length, CRC-32) and a pickle of plain data. All of it is compared before
anything is unpickled, and the pickle may name no class: what only pickle can hold lies in it as bytes, marked by
those who put it there.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchdata._native import Calls, Collector
from torchdata._plain_pickles import loads_plain

__all__ = [
    "BETWEEN",
    "FACTOR",
    "SECONDS",
    "UNTOLD",
    "Account",
    "Announced",
    "Call",
    "Kept",
    "KeptDealt",
    "Resumption",
    "cadence",
    "check_seal",
    "is_sealed",
    "place_of",
    "reason",
    "reason_in",
    "seal",
    "seal_of",
    "unseal",
]

#: One process's snapshot that took c seconds to make is followed by the next one after max(SECONDS, FACTOR * c). It
#: costs others about as much again, who copy it and have cold caches behind it: all in all less than 1 % of the time.
SECONDS, FACTOR = 0.02, 250.0
#: Of so many processes at most the pauses add up: if items take less time than a snapshot, who takes them in order
#: waits for each process that makes one. With more of them, what the others have ready covers the wait.
ADDING_UP = 4

#: Items, and their rolling checksum.
Account = tuple[int, int]
#: A worker's snapshot: what it had sent; of its share of dispatched items the pass, and what it had read; the bytes.
Kept = tuple[Account, int, Account, bytes]
#: The place of one who runs no epoch, behind all items, and that of one which cannot be told.
BETWEEN, UNTOLD = Calls.BETWEEN, Calls.UNTOLD
#: Bits of a place for items.
_ITEMS = 32
#: A function of main's: how many items of the epoch it was applied behind, its number, and itself.
Call = tuple[int, int, Callable[[Any], Any]]
#: The dispatching process's: the pass, what it had dealt to each worker, the bytes.
KeptDealt = tuple[int, list[Account], bytes]

#: Magic, version, length and CRC-32 of what follows.
_HEADER = struct.Struct("<4sIQI")
_MAGIC, _VERSION = b"tdrs", 1
_REASON, _LONGEST_REASON = Collector.REASON, 2000


class Announced:
    """With which snapshots a child begins an epoch, before its first item: numbers, which cross without pickle."""

    NONE = 0
    #: With one of its own.
    OWN = 1
    #: With one of its own and the dispatching process's, for which it waits.
    DEALT = 2


def cadence(processes: int) -> tuple[float, float]:
    """How often each of so many processes makes snapshots: after how many seconds, and how many times what one took."""
    return SECONDS, FACTOR * min(processes, ADDING_UP)


def place_of(number: int, items: int) -> int:
    """A place in an epoch, behind so many items of a pass, from 1, as a number that fits beside its check."""
    place = (number - 1 << _ITEMS) + items
    return place if items >> _ITEMS == 0 and place < BETWEEN else UNTOLD


@dataclass(frozen=True)
class Resumption:
    """Where one child goes on in an epoch, instead of at its beginning.

    Args:
        content: the snapshot, sealed; None for the epoch's beginning.
        starts: for each of its links what went out before the snapshot, how many items of those behind it are not to be
            sent again, and the checksum behind these; None if that is not compared.
        turn: the link of the dispatching process that sends the first item; of a worker, the shard whose turn it is.
        passed: passes of the dispatched items that a worker had read whole.
        share: the part of the pass after those that it had read.
        calls: functions that were applied to the graph in this epoch, in their order.
        strict: whether sources compare what they read again.
    """

    content: bytes | None = None
    starts: list[tuple[Account, int, int | None]] | None = None
    turn: int = 0
    passed: int = 0
    share: Account = (0, 0)
    calls: tuple[Call, ...] = ()
    strict: bool = True

    @property
    def made(self) -> int:
        """How many items all its readers were sent before the snapshot."""
        return sum(sent for (sent, _), _, _ in self.starts or ())


def seal(snapshot: Any) -> bytes:
    """Plain data as bytes whose damage is noticed, written once: if states are large, each copy would be felt."""
    sealed = io.BytesIO()
    sealed.write(bytes(_HEADER.size))
    pickle.Pickler(sealed, protocol=5).dump(snapshot)
    with sealed.getbuffer() as written, written[_HEADER.size :] as pickled:
        _HEADER.pack_into(written, 0, _MAGIC, _VERSION, len(pickled), zlib.crc32(pickled))
    return sealed.getvalue()


def unseal(sealed: Any, what: str) -> Any:
    """Returns the object that `seal` was given.

    Args:
        sealed: the bytes.
        what: how messages call it.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    check_seal(sealed, what)
    try:
        return loads_plain(sealed[_HEADER.size :])
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def reason(error: Exception) -> bytes:
    """The content that takes the place of a snapshot that could not be made: the reason."""
    return _REASON + str(error).encode()[:_LONGEST_REASON]


def reason_in(content: bytes | None) -> str | None:
    """The reason why there is no snapshot, read from the content in its place; None if the content is a snapshot."""
    if content is None or not content.startswith(_REASON):
        return None
    return content[len(_REASON) :].decode(errors="replace")


def check_seal(sealed: Any, what: str) -> None:
    """Raises ValueError if what was sealed is damaged, or of another version."""
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        raise ValueError(f"{what} is damaged: it is no snapshot")
    magic, version, length, checksum = _HEADER.unpack_from(sealed)
    pickled = memoryview(sealed)[_HEADER.size :]
    if magic != _MAGIC or length != len(pickled):
        raise ValueError(f"{what} is damaged: it is not as long as it says, or no snapshot")
    if version != _VERSION:
        raise ValueError(f"{what} has version {version}, but this release reads version {_VERSION}")
    if zlib.crc32(pickled) != checksum:
        raise ValueError(f"{what} is damaged: its checksum is not the one that was saved with it")


def is_sealed(sealed: Any) -> bool:
    """Whether the bytes begin and end as a snapshot does; their checksum is not looked at."""
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        return False
    magic, _, length, _ = _HEADER.unpack_from(sealed)
    return bool(magic == _MAGIC and length == len(sealed) - _HEADER.size)


def seal_of(sealed: bytes) -> bytes:
    """The header, which tells one snapshot from another."""
    return sealed[: _HEADER.size]
