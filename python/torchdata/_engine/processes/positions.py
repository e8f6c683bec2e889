"""Files that forked children read through one file position: found after an epoch, and told in a warning.

Role: main's side, for start method "fork". A file that is open when children are forked has one position for the main
process and all of them. A process that reads moves the position for the others, which then read wrong bytes without an
error.

The warning is certain: the position of a file that is open for reading has changed, no thread of the main process has
read anything meanwhile, and at least two children have read something. The kernel counts the reads of each process
(`/proc/PID/io`). Reads of reaped children count as reads of the main process. Where it does
not, nothing is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchdata._redacting import printable

__all__ = ["SharedPositions"]

#: Names in one warning.
MOST = 3
#: The files that were told of, by device and number.
_told: set[tuple[int, int]] = set()


@dataclass(frozen=True)
class _Mark:
    """What was so when an epoch began.

    Args:
        positions: of each descriptor.
        reads: by child, how many times it had read.
        own: how many times main had read, before it found that out.
    """

    positions: Mapping[int, int]
    reads: Mapping[int, int]
    own: int


class SharedPositions:
    """The files that children of one group have inherited, to be made right before they are forked.

    Args:
        pids: gives the numbers of the children that run.
        differ: whether some children read other things than the rest, as a dispatching process does. The first epoch is
            then not checked, because children read while they start.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], differ: bool) -> None:
        self._pids, self._skips = pids, differ
        self._files = _open_for_reading()
        self._mark: _Mark | None = None

    def begin(self) -> None:
        """Notes where the files are, as an epoch begins."""
        self._mark = None
        if self._skips:
            self._skips = False
            return
        files = {number: identity for number, identity in self._files.items() if identity not in _told}
        reads = {pid: count for pid in self._pids() if (count := _reads_of(pid)) is not None} if files else {}
        own = _reads_of(os.getpid()) if len(reads) > 1 else None
        if own is not None:
            self._mark = _Mark({number: _position(number, files[number]) for number in files}, reads, own)

    def look(self) -> str | None:
        """Returns the words on files that children have read through one position since `begin`; None: no such file."""
        mark, self._mark = self._mark, None
        if mark is None:
            return None
        moved = [
            number
            for number, before in mark.positions.items()
            if before not in (-1, position := _position(number, self._files[number])) and position != -1
        ]
        if not moved or _reads_of(os.getpid()) != mark.own + 1:  # that of `begin` itself
            return None
        readers = [pid for pid in self._pids() if (_reads_of(pid) or 0) > mark.reads.get(pid, 0)]
        if len(readers) < 2:
            return None
        _told.update(self._files[number] for number in moved)
        return _words([os.readlink(f"/proc/self/fd/{number}") for number in moved])


def _open_for_reading() -> dict[int, tuple[int, int]]:
    """The regular files that this process has open for reading alone, but for standard input."""
    found = {}
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # that of the list itself, for one
                status = os.fstat(number)
                is_read_only = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                if number > 0 and is_read_only and stat.S_ISREG(status.st_mode):
                    found[number] = status.st_dev, status.st_ino
    return found


def _position(number: int, identity: tuple[int, int]) -> int:
    """The position of a descriptor; -1 if it is another file's by now."""
    try:
        status = os.fstat(number)
        return os.lseek(number, 0, os.SEEK_CUR) if (status.st_dev, status.st_ino) == identity else -1
    except OSError:
        return -1


def _reads_of(pid: int) -> int | None:
    """How many times a process has read; None if that is not known. It is one read of this process."""
    try:
        descriptor = os.open(f"/proc/{pid}/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        counts = os.read(descriptor, 4096)
        return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith(b"syscr:")), None)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _words(paths: list[str]) -> str:
    names = [f"`{printable(os.path.basename(path))}`" for path in paths[:MOST]]
    more = f" and {len(paths) - MOST} more" if len(paths) > MOST else ""
    it = "it" if len(paths) == 1 else "them"
    return (
        f"workers read {', '.join(names)}{more} through a file position that they share: open {it} in the worker. "
        "A file that is open when workers are forked has one position for all of them, and each read moves the "
        f"position for the others, so items may have wrong contents ({printable(paths[0])})"
    )
