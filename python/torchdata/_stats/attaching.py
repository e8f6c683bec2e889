"""Finding running loaders from outside, and looking at them without touching them.

Role: runs in an observer. The counters of a loader lie in anonymous memory of which its main process holds a
descriptor; `/proc` shows that to whoever may look into the process: the same user, and root. The memory is mapped for
reading alone, and nothing is left behind. Only a stack is asked for by a signal (see `stacks`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from torchdata._native import StatsBoard
from torchdata._stats.model import LoaderStats
from torchdata._stats.reading import Reading, read_board, summarise
from torchdata._stats.stacks import ask_for_stack, kernel_state

__all__ = ["Attached", "NoLoaderError", "attach", "find"]

_NAME = "/memfd:torchdata-stats"


class NoLoaderError(LookupError):
    """There is no loader to look at."""


@dataclass(frozen=True)
class Attached:
    """A loader of another process.

    Attributes:
        pid: its main process.
        command: the command line of that.
        board: its counters.
    """

    pid: int
    command: str
    board: StatsBoard

    def reading(self) -> Reading:
        """What it has counted."""
        return read_board(self.board)

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Its statistics, as `DataLoader2.stats` gives them in its own process."""
        return summarise(self.reading(), None if since is None else since.reading)

    def is_running(self) -> bool:
        """Whether its main process runs."""
        return kernel_state(self.pid) not in ("ended", "dead")

    def stacks(self) -> list[tuple[str, str]]:
        """Where each process stands: (name, number and state in a line; Python stack)."""
        reading = self.reading()
        stats = summarise(reading)
        pages = {page["pid"]: page for page in reading.pages.values()}
        found = []
        for process in stats.processes:
            if process.role == "replaced":
                continue
            head = f"{process.name} (pid {process.pid}), {process.state}; {kernel_state(process.pid)}"
            page = pages[process.pid]
            try:
                stack = ask_for_stack(process.pid, page["signal"], page["stack"])
            except OSError:
                stack = None
            found.append((head, stack or "it gives no Python stack"))
        return found


def _boards_of(pid: int) -> Iterator[tuple[tuple[int, int], str]]:
    """The boards of which a process holds a descriptor: what identifies each, and its path."""
    folder = f"/proc/{pid}/fd"
    for descriptor in os.listdir(folder):
        path = f"{folder}/{descriptor}"
        try:
            if os.readlink(path).startswith(_NAME):
                found = os.stat(path)
                yield (found.st_dev, found.st_ino), path
        except OSError:  # closed meanwhile
            continue


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def find(pid: int | None = None) -> list[Attached]:
    """The loaders of a process, or of all processes of this user, in the order of their making.

    Args:
        pid: a process: a main process, or a child of one.

    Raises:
        PermissionError: the process is another user's.
        ProcessLookupError: there is no such process.
    """
    if not os.path.isdir("/proc/self/fd"):
        raise NoLoaderError("loaders are found through /proc, which this system does not have")
    if pid is None:
        candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    else:
        candidates = [pid]
    found: dict[tuple[int, int], Attached] = {}
    for candidate in candidates:
        try:
            for identity, path in _boards_of(candidate):
                board = StatsBoard.observe(path)
                owner, _ = board.made()
                # A child that was forked from main may hold the descriptor, too.
                if identity not in found and (owner == candidate or not _holds(owner, identity)):
                    found[identity] = Attached(owner, _command(owner), board)
        except FileNotFoundError:
            if pid is not None:
                raise ProcessLookupError(f"there is no process {pid}") from None
        except PermissionError:
            if pid is not None:
                raise PermissionError(
                    f"process {pid} belongs to another user: only its own user, or root, may look into it"
                ) from None
        except (OSError, RuntimeError):  # it ended meanwhile, or another version of this package made it
            continue
    return sorted(found.values(), key=lambda attached: attached.board.made()[1])


def _holds(pid: int, identity: tuple[int, int]) -> bool:
    try:
        return any(one == identity for one, _ in _boards_of(pid))
    except OSError:
        return False


def attach(pid: int | None = None) -> list[Attached]:
    """Like `find`; where a process has no loader itself, those of its parent, whose worker it may be.

    Raises:
        NoLoaderError: there is none.
    """
    found = find(pid)
    if not found and pid is not None:
        found = [one for one in find(_parent(pid)) if pid in _pids(one)]
    if not found:
        whose = "this user" if pid is None else f"process {pid}"
        raise NoLoaderError(
            f"no running loader of {whose} was found: a DataLoader2 can be seen from its first epoch to its shutdown"
        )
    return found


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _pids(attached: Attached) -> set[int]:
    return {page["pid"] for page in attached.board.read()}
