"""Defines when a child process takes a snapshot of its state, and the data that a child needs to resume.

The main process stores a snapshot without decoding its bytes, and sends the snapshot to a child that resumes an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchdata import _machine as machine
from torchdata._native import Collector

#: After a snapshot that took c seconds, a process takes the next snapshot at least max(SECONDS, FACTOR * n * c) seconds
#: later (for n, see `FEWEST`). Because FACTOR * n is at least 100, snapshots take at most 1 % of the time. If a
#: snapshot takes more than a millisecond, its duration c counts the time beyond the first millisecond five times (see
#: `Cadence`). A process that must sleep until its reader continues may take the next snapshot after half of this time.
SECONDS, FACTOR = 0.005, 50.0
#: In the formula for the pause between snapshots, n is the number of processes, but at least FEWEST and at most MOST.
#: The pause after a snapshot grows with the number of processes, because a main process that takes items in strict
#: order may wait for the snapshots of all processes. A snapshot slows down other processes, because it evicts the data
#: of these processes from the processor's caches. If several processes share a processor, n is at least twice their
#: number per processor, so that all snapshots together take at most 1 % of the processors' time.
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

_REASON, _LONGEST_REASON = Collector.REASON, 2000


class Announced:
    """Integer codes for the snapshots that a child sends before the first item of an epoch."""

    NONE = 0
    OWN = 1
    #: The child forwards the dispatching process's snapshot to the main process, and then sends its own snapshot.
    DISPATCHED = 2


def cadence(processes: int) -> tuple[float, float]:
    together = 2 * processes / machine.cores() if processes > MOST else FEWEST
    return SECONDS, FACTOR * max(min(processes, MOST), together)


def largest(budget: int | None, processes: int) -> int | None:
    return None if budget is None else budget // (COPIES * processes)


@dataclass(frozen=True)
class Resumption:
    """The position in an epoch where one child resumes.

    Args:
        content: the sealed snapshot; None if the child starts at the epoch's beginning.
        starts: for each link over which the child sends items, a tuple of three values. The first value of each tuple
            is the `Account` (number and checksum) of the items that were sent over this link before the snapshot. The
            second value of each tuple is the number of items after the snapshot that the child recomputes but does not
            send again. The third value of each tuple is the checksum after the recomputed items; None if checksums are
            not compared.
        turn: the index of the shard (in a worker) or of the link (in the dispatching process) for the next item.
        passed: for a worker, the number of completed iterations over the dispatched items.
        share: for a worker, the number and the checksum of the items that the worker had received in its current
            iteration over the dispatched items.
        strict: whether sources check that the items that they reread equal the items before the snapshot.
    """

    content: bytes | None = None
    starts: list[tuple[Account, int, int | None]] | None = None
    turn: int = 0
    passed: int = 0
    share: Account = (0, 0)
    strict: bool = True


def reason(error: Exception) -> bytes:
    return _REASON + str(error).encode()[:_LONGEST_REASON]


def reason_in(content: bytes | None) -> str | None:
    """Returns the reason why a child took no snapshot; None if the content is a snapshot."""
    if content is None or not content.startswith(_REASON):
        return None
    return content[len(_REASON) :].decode(errors="replace")
