"""Warns if forked children read a file through a file position that they share.

With start method "fork", the main process runs this check in each epoch. A file that is open during the fork has one
position in all processes. Each read in one process moves the shared file position, so other processes silently read
wrong bytes.

The check warns if, within one epoch, a file's position has changed, at least two children have read data, and the main
process has read nothing. The kernel counts the reads of each process (`/proc/PID/io`). If a child exits, the kernel
adds the child's reads to the reads of the main process, so the check issues no warning for this epoch.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import printable

MOST = 3
#: The device and inode numbers of files that a warning has named.
_reported: set[tuple[int, int]] = set()


@dataclass(frozen=True)
class _Mark:
    positions: Mapping[int, int]
    reads: Mapping[int, int]
    own: int


class SharedPositions:
    """A `SharedPositions` must be created right before the children are forked.

    Args:
        differ: whether one of the children is the dispatching process. If `differ` is True, the first epoch is not
            checked, because the reads of all children at their start would cause a warning even if only the dispatching
            process uses an open file.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], differ: bool) -> None:
        self._pids, self._skips = pids, differ
        self._files = _open_for_reading()
        self._mark: _Mark | None = None

    def begin(self) -> None:
        self._mark = None
        if self._skips:
            self._skips = False
            return
        files = {number: identity for number, identity in self._files.items() if identity not in _reported}
        reads = {pid: count for pid in self._pids() if (count := _reads_of(pid)) is not None} if files else {}
        own = _reads_of(os.getpid()) if len(reads) > 1 else None
        if own is not None:
            self._mark = _Mark({number: _position(number, files[number]) for number in files}, reads, own)

    def look(self) -> str | None:
        """Returns the warning about files that children have read through a shared position since `begin`."""
        mark, self._mark = self._mark, None
        if mark is None:
            return None
        moved = [
            number
            for number, before in mark.positions.items()
            if before not in (-1, position := _position(number, self._files[number])) and position != -1
        ]
        # `_reads_of` itself reads a file, so a difference of 1 means that the main process has read no other file
        if not moved or _reads_of(os.getpid()) != mark.own + 1:
            return None
        readers = [pid for pid in self._pids() if (_reads_of(pid) or 0) > mark.reads.get(pid, 0)]
        if len(readers) < 2:
            return None
        _reported.update(self._files[number] for number in moved)
        return _words([os.readlink(f"/proc/self/fd/{number}") for number in moved])


def _open_for_reading() -> dict[int, tuple[int, int]]:
    """Returns a dict from file descriptors to (device, inode) of all read-only files except standard input."""
    found = {}
    with FailuresSuppressed(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            # `os.listdir` also returns the file descriptor that it has used and closed.
            with FailuresSuppressed(OSError):
                status = os.fstat(number)
                is_read_only = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                if number > 0 and is_read_only and stat.S_ISREG(status.st_mode):
                    found[number] = status.st_dev, status.st_ino
    return found


def _position(number: int, identity: tuple[int, int]) -> int:
    with FailuresSuppressed(OSError):
        status = os.fstat(number)
        return os.lseek(number, 0, os.SEEK_CUR) if (status.st_dev, status.st_ino) == identity else -1
    return -1


def _reads_of(pid: int) -> int | None:
    """Returns how often a process has called `read`, from `/proc`; None if the kernel does not count these calls. If
    `pid` is the current process, the count includes one `read` by `_reads_of` itself."""
    with FailuresSuppressed(OSError):
        descriptor = os.open(f"/proc/{pid}/io", os.O_RDONLY | os.O_CLOEXEC)
        try:
            counts = os.read(descriptor, 4096)
            return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith(b"syscr:")), None)
        finally:
            os.close(descriptor)
    return None


def _words(paths: list[str]) -> str:
    names = [f"`{printable(os.path.basename(path))}`" for path in paths[:MOST]]
    more = f" and {len(paths) - MOST} more" if len(paths) > MOST else ""
    it = "it" if len(paths) == 1 else "them"
    return (
        f"workers read {', '.join(names)}{more} through a file position that they share: open {it} in the worker. "
        "A file that is open when workers are forked has one position for all of them, and each read moves the "
        f"position for the others, so items may have wrong contents ({printable(paths[0])})"
    )
