"""Snapshots of a child's program, as bytes, and the data with which a child resumes from a snapshot.

Role: defines the messages about resuming between the main process and its children. A child takes snapshots between two
items. The main process stores the bytes of snapshots without decoding them, and returns them with the command that
begins a resumed epoch.

A sealed snapshot consists of a header (magic, version, length, CRC-32) and a pickle of plain data. The whole snapshot
is verified before unpickling, and the pickle may not refer to classes. If a pipe's state contains values that require
pickle, these values are stored as bytes that are marked as a pickle (`to_plain`).
"""

from __future__ import annotations

import pickle
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from torchdata._bounded_pickles import pickle_file
from torchdata._native import Collector
from torchdata._plain_pickles import loads_plain

#: After a snapshot that took c seconds, a process takes the next snapshot after max(SECONDS, FACTOR * c). The snapshot
#: also delays other processes by about c seconds, because it copies memory and evicts their data from caches. With this
#: interval, taking snapshots costs less than 1 % of the running time.
SECONDS, FACTOR = 0.02, 250.0
#: The interval between snapshots is multiplied by the number of processes, but at most by `ADDING_UP`, because a reader
#: in strict order may wait for the snapshot of each process. With more processes, the reader receives items of other
#: processes during a snapshot.
ADDING_UP = 4

#: `BUDGET` is the default for the number of bytes of all snapshots in the main process. `COPIES` is the approximate
#: number of snapshots that the main process keeps of each process.
BUDGET, COPIES = 64 << 20, 2

#: A number of items, and their rolling checksum.
Account = tuple[int, int]
#: A worker's snapshot: a tuple of the items that the worker had sent, the number of its current pass over the
#: dispatched items, the items that it had read in this pass, and the snapshot's bytes.
Kept = tuple[Account, int, Account, bytes]
#: The dispatching process's snapshot: the number of the pass, the items dispatched to each worker, and the bytes.
KeptDealt = tuple[int, list[Account], bytes]

#: Magic, version, length and CRC-32 of the data that follows.
_HEADER = struct.Struct("<4sIQI")
_MAGIC, _VERSION = b"tdrs", 1
_REASON, _LONGEST_REASON = Collector.REASON, 2000


class Announced:
    """Integer codes for the snapshots that a child sends before the first item of an epoch. Integers are sent without
    pickle."""

    NONE = 0
    #: The child's own snapshot.
    OWN = 1
    #: The child waits for the dispatching process's snapshot, sends this snapshot, and then sends its own snapshot.
    DEALT = 2


def cadence(processes: int) -> tuple[float, float]:
    """Returns how often each of `processes` processes takes snapshots, as a pair: the minimum number of seconds between
    two snapshots, and the factor by which the duration of the last snapshot is multiplied.
    """
    return SECONDS, FACTOR * min(processes, ADDING_UP)


def largest(budget: int | None, processes: int) -> int | None:
    """Returns the maximum number of bytes of a snapshot, so that the snapshots of `processes` processes fit into the
    budget. None means that there is no limit."""
    return None if budget is None else budget // (COPIES * processes)


@dataclass(frozen=True)
class Resumption:
    """The position in an epoch from which one child resumes.

    Args:
        content: the sealed snapshot; None for the epoch's beginning.
        starts: for each of the child's links, a tuple: the items that were sent before the snapshot, the number of
            later items to skip, and the checksum after the skipped items (None if checksums are not compared).
        turn: for the dispatching process, the number of the link for the next item; for a worker, the number of the
            shard that sends the next item.
        passed: for a worker, the number of passes over the dispatched items that the worker had completed.
        share: the items that the worker had read in its current pass of the dispatched items.
        strict: whether sources compare the items that they reread with the items that they read before the snapshot.
    """

    content: bytes | None = None
    starts: list[tuple[Account, int, int | None]] | None = None
    turn: int = 0
    passed: int = 0
    share: Account = (0, 0)
    strict: bool = True


def seal(snapshot: Any) -> bytes:
    """Returns the pickle of plain data, with a checksum. The pickle is written directly after its header,
    because joining two byte strings would copy the state."""
    with pickle_file() as sealed:
        sealed.write(bytes(_HEADER.size))
        pickle.Pickler(sealed, protocol=5).dump(snapshot)
    with sealed.getbuffer() as written, written[_HEADER.size :] as pickled:
        if written.nbytes:  # if the data is too large for the caller's `bounded` context, nothing is written
            _HEADER.pack_into(written, 0, _MAGIC, _VERSION, len(pickled), zlib.crc32(pickled))
    return sealed.getvalue()


def unseal(sealed: Any, what: str) -> Any:
    """Returns the object that was passed to `seal`.

    Raises ValueError if the bytes are damaged, or have another version.
    """
    check_seal(sealed, what)
    try:
        return loads_plain(sealed[_HEADER.size :])
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def reason(error: Exception) -> bytes:
    """Returns the bytes that are sent instead of a snapshot: the reason why no snapshot could be taken."""
    return _REASON + str(error).encode()[:_LONGEST_REASON]


def reason_in(content: bytes | None) -> str | None:
    """Returns the reason why a snapshot is missing; None if the contents are a snapshot."""
    if content is None or not content.startswith(_REASON):
        return None
    return content[len(_REASON) :].decode(errors="replace")


def check_seal(sealed: Any, what: str) -> None:
    """Raises ValueError if sealed data is damaged, or has another version."""
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        raise ValueError(f"{what} is damaged: it is not a snapshot")
    magic, version, length, checksum = _HEADER.unpack_from(sealed)
    pickled = memoryview(sealed)[_HEADER.size :]
    if magic != _MAGIC or length != len(pickled):
        raise ValueError(f"{what} is damaged: its length is wrong, or it is not a snapshot")
    if version != _VERSION:
        raise ValueError(f"{what} has version {version}, but this release reads version {_VERSION}")
    if zlib.crc32(pickled) != checksum:
        raise ValueError(f"{what} is damaged: its checksum differs from the saved checksum")


def is_sealed(sealed: Any) -> bool:
    """Returns whether the bytes have the header and the length of a snapshot, without checking the checksum."""
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        return False
    magic, _, length, _ = _HEADER.unpack_from(sealed)
    return bool(magic == _MAGIC and length == len(sealed) - _HEADER.size)


def seal_of(sealed: bytes) -> bytes:
    """Returns the header of a snapshot, which differs between snapshots because the header contains a checksum."""
    return sealed[: _HEADER.size]
