"""Encodes the state of a child process (a snapshot) as bytes, and defines the data that a child needs to resume.

The main process stores a snapshot without decoding it, and returns it to the child that resumes an epoch.

A sealed snapshot consists of a header (magic number, version, length, CRC-32 checksum) and a pickle of plain data. The
checksum is verified before unpickling. A pickle that refers to classes is rejected.
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

#: After a snapshot that took c seconds, a process takes the next snapshot at least max(SECONDS, FACTOR * n * c) seconds
#: later (for n, see `FEWEST`). Snapshots therefore take at most 1 % of the time, because FACTOR * n is at least 100. If
#: a snapshot takes more than a millisecond, the time beyond a millisecond is multiplied by five in c (`Cadence`). A
#: process that must sleep until its reader continues may take a snapshot after half of the pause.
SECONDS, FACTOR = 0.005, 50.0
#: In the formula for the pause between snapshots, n is the number of processes, but at least FEWEST and at most MOST.
#: The pause after a snapshot grows with the number of processes, because a main process that takes items in strict
#: order may wait for the snapshots of all processes. A snapshot also slows down other processes, because it evicts the
#: data of these processes from the processor's caches.
FEWEST, MOST = 2, 4

#: `BUDGET` is the default for the total size in bytes of all snapshots in the main process. `COPIES` is the approximate
#: number of snapshots of each process that the main process stores.
BUDGET, COPIES = 64 << 20, 2

#: A number of items, and the rolling checksum of these items.
Account = tuple[int, int]
#: A snapshot that a process has just taken: the number of its iteration over the dispatched items, the `Account` of
#: this iteration, and the snapshot's bytes.
Taken = tuple[int, Account, bytes]
#: A worker's snapshot: the `Account` of the sent items, the position in the dispatched items (the number of the
#: iteration, and its `Account`), and the snapshot's bytes.
Kept = tuple[Account, int, Account, bytes]
#: A snapshot of the dispatching process: the number of its iteration, the `Account` of each worker's items, and the
#: snapshot's bytes.
KeptDispatched = tuple[int, list[Account], bytes]

_HEADER = struct.Struct("<4sIQI")
_MAGIC, _VERSION = b"tdrs", 1
_REASON, _LONGEST_REASON = Collector.REASON, 2000


class Announced:
    """Integer codes for the snapshots that a child sends before the first item of an epoch."""

    NONE = 0
    OWN = 1
    #: The child forwards the dispatching process's snapshot to the main process, and then sends its own snapshot.
    DISPATCHED = 2


def cadence(processes: int) -> tuple[float, float]:
    return SECONDS, FACTOR * min(max(processes, FEWEST), MOST)


def largest(budget: int | None, processes: int) -> int | None:
    return None if budget is None else budget // (COPIES * processes)


@dataclass(frozen=True)
class Resumption:
    """The position in an epoch where one child resumes.

    Args:
        content: the sealed snapshot; None for the epoch's beginning.
        starts: for each link over which the child sends items, a tuple of three entries. The tuple's first entry is the
            `Account` of the items that were sent before the snapshot. The tuple's second entry is the number of items
            after the snapshot that the child recomputes but does not send again. The tuple's third entry is the
            checksum after the recomputed items; None if checksums are not compared.
        turn: the index of the worker's shard that sends the next item or, for the dispatching process, the index of the
            link for the next item.
        passed: for a worker, the number of completed iterations over the dispatched items.
        share: for a worker, the number and the checksum of the items that it had received in its current iteration over
            the dispatched items.
        strict: whether sources compare the items that they reread with the items that they read before the snapshot.
    """

    content: bytes | None = None
    starts: list[tuple[Account, int, int | None]] | None = None
    turn: int = 0
    passed: int = 0
    share: Account = (0, 0)
    strict: bool = True


def seal(snapshot: Any) -> bytes:
    """The pickle is written after a gap for its header, because joining two byte strings would copy the state."""
    with pickle_file() as sealed:
        sealed.seek(_HEADER.size)
        pickle.Pickler(sealed, protocol=5).dump(snapshot)
    with sealed.getbuffer() as written, written[_HEADER.size :] as pickled:
        if written.nbytes:  # the file is empty if the data exceed the limit of the caller's `bounded` context
            _HEADER.pack_into(written, 0, _MAGIC, _VERSION, len(pickled), zlib.crc32(pickled))
    return sealed.getvalue()


def unseal(sealed: Any, what: str) -> Any:
    """Raises ValueError if the bytes are damaged, or have another version."""
    check_seal(sealed, what)
    try:
        return loads_plain(sealed[_HEADER.size :])
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def reason(error: Exception) -> bytes:
    return _REASON + str(error).encode()[:_LONGEST_REASON]


def reason_in(content: bytes | None) -> str | None:
    """Returns the reason why a child took no snapshot; None if the content is a snapshot."""
    if content is None or not content.startswith(_REASON):
        return None
    return content[len(_REASON) :].decode(errors="replace")


def check_seal(sealed: Any, what: str) -> None:
    if not is_sealed(sealed):
        raise ValueError(f"{what} is damaged: its length is wrong, or it is not a snapshot")
    _, version, _, checksum = _HEADER.unpack_from(sealed)
    if version != _VERSION:
        raise ValueError(f"{what} has version {version}, but this release reads version {_VERSION}")
    if zlib.crc32(memoryview(sealed)[_HEADER.size :]) != checksum:
        raise ValueError(f"{what} is damaged: its checksum differs from the saved checksum")


def is_sealed(sealed: Any) -> bool:
    """Returns whether the bytes look like a snapshot, without computing the checksum, which takes longer."""
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        return False
    magic, _, length, _ = _HEADER.unpack_from(sealed)
    return bool(magic == _MAGIC and length == len(sealed) - _HEADER.size)


def seal_of(sealed: bytes) -> bytes:
    """Returns the header, which differs between snapshots because it contains a checksum."""
    return sealed[: _HEADER.size]
