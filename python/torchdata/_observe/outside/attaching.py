"""Finding running loaders from outside, and looking at them without touching them.

Role: runs in an observer. The counters of a loader lie in anonymous memory of which its main process holds a
descriptor; `/proc` shows that to those who may look into the process: the same user, and root. The memory is mapped for
reading alone, and nothing is left behind. Only a stack is asked for by a signal (see `stacks`).

Root looks into other users' processes, and what calls itself a board may be anything. It must be sealed against
shrinking, its numbers are compared with its size, and texts are freed of what a terminal would obey. A board that does
not check out is named and left out. A loader in a container says numbers of processes as they are there.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torchdata._native import StatsBoard
from torchdata._observe.outside.stacks import ask_for_stack, kernel_state
from torchdata._observe.show.shown import ShownStats
from torchdata._observe.stats.model import LoaderStats, Reading
from torchdata._observe.stats.reading import name_of_process, read_board, summarise
from torchdata._redacting import HIDDEN, is_private, is_secret, printable, redacted

__all__ = ["Attached", "NoLoaderError", "attach", "find"]

_NAME = "/memfd:torchdata-stats"

#: Where the system tells of processes.
_PROC = "/proc"

#: Bytes of a command line that are looked at.
_LONGEST_COMMAND = 4096

#: The warnings of this process.
_told: set[str] = set()


class NoLoaderError(LookupError):
    """There is no loader to look at."""


@dataclass(frozen=True)
class Attached:
    """A loader of another process.

    Attributes:
        pid: its main process.
        command: the command line of that, without the secrets in it.
        board: its counters.
        numbers: by the number that a process has in the loader's container, the one that it has here; None if these
            are the same.
    """

    pid: int
    command: str
    board: StatsBoard
    numbers: Mapping[int, int] | None = None

    def reading(self) -> Reading:
        """The statistics of the loader, without those of processes whose pages are damaged."""
        return read_board(self.board, self.numbers)

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        """Its statistics, as `DataLoader2.stats` gives them in its own process."""
        return summarise(self.reading(), None if since is None else since.reading)

    def is_running(self) -> bool:
        """Whether its main process runs."""
        return kernel_state(self.pid) not in ("ended", "dead")

    def stacks(self) -> list[tuple[str, str]]:
        """Where each process stands: (name, number and state in a line; Python stack)."""
        reading = self.reading()
        stats = summarise(reading)
        pages = {name_of_process(page): page for page in reading.pages.values()}
        found = []
        for process in stats.processes:
            if process.node is not None:
                head = f"{process.called} (pid {process.pid} there), {process.state}"
                found.append((head, "its stack is not to be had from here: the main process asks for it if it hangs"))
                continue
            head = f"{process.name} (pid {process.pid}), {process.state}; {kernel_state(process.pid)}"
            page = pages[process.name]
            try:
                stack = ask_for_stack(process.pid, page["signal"], page["stack"])
            except OSError:
                stack = None
            found.append((head, printable(stack or "it gives no Python stack", lines=True)))
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
    """The command line of a process, without secrets."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = file.read(_LONGEST_COMMAND).decode(errors="replace").strip("\0").split("\0")
    except OSError:
        return ""
    hidden = [
        HIDDEN if is_secret(part) or (before.startswith("-") and "=" not in before and is_private(before)) else part
        for before, part in pairwise(["", *parts])
    ]
    return printable(redacted(" ".join(hidden)))


def _numbers(pid: int) -> dict[int, int] | None:
    """By the numbers that processes have in the container of one of them, those that they have here.

    None if there is no container, or this process is in the same one.
    """
    try:
        inside = os.readlink(f"{_PROC}/{pid}/ns/pid")
        if inside == os.readlink(f"{_PROC}/self/ns/pid"):
            return None
    except OSError:
        return None
    found = {}
    for name in filter(str.isdigit, os.listdir(_PROC)):
        with contextlib.suppress(OSError, StopIteration, ValueError):
            if os.readlink(f"{_PROC}/{name}/ns/pid") == inside:
                with open(f"{_PROC}/{name}/status") as file:
                    # The innermost is the last.
                    own = next(line.split()[-1] for line in file if line.startswith("NSpid:"))
                found[int(own)] = int(name)
    return found


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
                if identity not in found and (attached := _attached(candidate, identity, path)) is not None:
                    found[identity] = attached
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


def _attached(candidate: int, identity: tuple[int, int], path: str) -> Attached | None:
    """The loader of a board that a process holds; None if another one is its main process, or it is no board."""
    try:
        board = StatsBoard.observe(path)
        damage = board.damage()
    except (ValueError, RuntimeError) as error:  # somebody's who means harm, or of another release
        damage = str(error)
    if damage is not None:
        _warn(f"process {candidate} has counters that are left out: {printable(damage)}")
        return None
    owner, _ = board.made()
    numbers = _numbers(candidate)
    here = owner if numbers is None else numbers.get(owner, candidate)
    # A child that was forked from main may hold the descriptor, too.
    if here != candidate and _holds(here, identity):
        return None
    inside = "" if numbers is None else f" (in a container, where it is {owner})"
    return Attached(here, _command(here) + inside, board, numbers)


def _warn(message: str) -> None:
    """Says so once in a process: a live view looks every second."""
    if message not in _told:
        _told.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)


def _holds(pid: int, identity: tuple[int, int]) -> bool:
    try:
        return any(one == identity for one, _ in _boards_of(pid))
    except OSError:
        return False


def attach(pid: int | None = None) -> list[Attached]:
    """Like `find`; if a process has no loader itself, those of its parent, whose worker it may be.

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
    return {page["pid"] for page in attached.reading().pages.values() if not page["place"]}
