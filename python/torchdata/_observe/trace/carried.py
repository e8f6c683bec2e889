"""The log of a worker on another machine: kept there by its host, and brought to main piece by piece.

Role: `KeptLog` runs in the host, beside the worker that writes; `CarriedLog` runs in main. Pieces come with the
worker's counts while the trace goes on, so those of a machine that dies are there; the rest is asked for at the end.

The two machines have clocks of their own. Each message says when it was sent, by the clock of its sender, and cannot
have arrived before. So those from main tell how far the clocks are apart at least, and those to main how far at most.
The middle is taken: nothing is seen in main before it was sent, and half of what lies between is the bound of the
error. Bounds are those of one trace, as clocks drift. Source: F. Cristian, "Probabilistic clock synchronization", 1989.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from torchdata._native import TraceLog

__all__ = ["CarriedLog", "KeptLog", "Piece"]

#: Each log's own number in main, which a host knows it by.
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Piece:
    """A part of a log.

    Args:
        number: whose.
        first: the position of its first record.
        behind: the position behind its last one.
        records: those of them that are finished.
        pid: who writes; 0: nobody yet.
        left_out: records that found no room so far.
        ahead: nanoseconds that main's clock is ahead of the host's at least; None: nobody knows.
    """

    number: int
    first: int
    behind: int
    records: bytes
    pid: int
    left_out: int
    ahead: int | None


class KeptLog:
    """A log beside its worker.

    Args:
        number: its number in main.
        capacity: the most records.
    """

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self._log = TraceLog(capacity, _name(number))
        self._lock = threading.Lock()
        self._position = 0
        self._ahead: int | None = None

    def hear(self, sent: int) -> None:
        """Notes that something has come which main had sent then, by its clock."""
        ahead = sent - time.monotonic_ns()
        if self._ahead is None or ahead > self._ahead:
            self._ahead = ahead

    def take(self, is_last: bool) -> Piece:
        """The next piece."""
        with self._lock:
            piece = self._piece(self._position, is_last)
            self._position = piece.behind
        return piece

    def end(self, position: int) -> Piece:
        """Lets the worker write no more; all from that position on, taken before or not."""
        self._log.stop()
        return self._piece(position, True)

    def _piece(self, first: int, is_last: bool) -> Piece:
        behind, records = self._log.read_on(first, is_last)
        return Piece(self.number, first, behind, records, *self._log.counts(), self._ahead)


class CarriedLog:
    """The same log, as far as main has it.

    Args:
        capacity: the most records.
        place: says the machine and the actor of the worker; None where it has none yet.
        rest: asks the host to end the log, and for all from a position on.
    """

    def __init__(
        self,
        capacity: int,
        place: Callable[[], tuple[str, str] | None],
        rest: Callable[[CarriedLog], Future[Piece | None] | None],
    ) -> None:
        self.number, self.capacity = next(_numbers), capacity
        self.is_stopped = False
        self._place, self._ask = place, rest
        self._lock = threading.Lock()
        self._asked: Future[Piece | None] | None = None
        #: How much of it has come, in records of the host's.
        self.position = 0
        self._pieces: list[bytes] = []
        self.pid = self.left_out = 0
        self._least: int | None = None
        self._most: int | None = None

    @property
    def path(self) -> str:
        """How the worker finds it: a name, and no path of main's machine."""
        return _name(self.number)

    @property
    def place(self) -> tuple[str, str] | None:
        """The machine and the actor of the worker."""
        return self._place()

    def came(self, then: int, piece: Piece | None) -> None:
        """Notes what a host has sent, and when, by its clock."""
        here = time.monotonic_ns()
        with self._lock:
            if not self.is_stopped and (self._most is None or here - then < self._most):
                self._most = here - then
            if piece is not None:
                self._add(piece)

    def _add(self, piece: Piece) -> None:
        if piece.number != self.number or piece.first != self.position:
            return  # of an earlier trace, or the rest was there before it
        self._pieces.append(piece.records)
        self.position, self.pid, self.left_out = piece.behind, piece.pid, piece.left_out
        if piece.ahead is not None and (self._least is None or piece.ahead > self._least):
            self._least = piece.ahead

    def stop(self) -> None:
        """Lets the worker write no more, and asks for what has not come; see `finish`."""
        with self._lock:
            self.is_stopped = True
        self._asked = self._ask(self)

    def finish(self, seconds: float) -> None:
        """Waits for that for so long at most. A host that is gone has sent what there is."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            piece = asked.result(max(seconds, 0.0))
        except Exception:  # whatever says that it does not answer
            return
        if piece is not None:
            with self._lock:
                self._add(piece)

    def read(self) -> tuple[int, int, bytes]:
        """The process that writes it, how many records found no room, and the others, by its machine's clock."""
        with self._lock:
            return self.pid, self.left_out, b"".join(self._pieces)

    def clock(self) -> tuple[int, int | None]:
        """Nanoseconds that main's clock is ahead of the worker's, and by how many that may be wrong; None: unknown."""
        with self._lock:
            least, most = self._least, self._most
        if least is None or most is None:
            return most or least or 0, None
        if least > most:  # they have drifted by more than messages take
            return most, least - most
        return (least + most) // 2, (most - least + 1) // 2


def _name(number: int) -> str:
    return f"torchdata-trace-{number}"
