"""Finds loaders in other processes, and reads their counters without affecting them.

A loader's counters are in anonymous memory, and the loader's main process keeps a file descriptor of the memory open.
Through `/proc`, other processes of the same user and of root can open this memory and read the counters.

Root may inspect a process of a malicious user, so the contents of the memory are not trusted. The memory with the
counters must be sealed against shrinking, and all offsets in this memory are compared with its size. Control characters
are removed from all texts in this memory. Loaders with invalid counters are reported and omitted.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torchdata._machine import read
from torchdata._native import StatsBoard
from torchdata._observe.outside.stacks import current_frame, kernel_state
from torchdata._observe.show.shown import ShownStats
from torchdata._observe.stats.model import LoaderStats, Reading
from torchdata._observe.stats.processor import stat_fields
from torchdata._observe.stats.reading import name_of_process, read_board, summarise
from torchdata._redacting import HIDDEN, is_private, is_secret, printable, redacted

_NAME = "/memfd:torchdata-stats"

_PROC = "/proc"

_LONGEST_COMMAND = 4096

_reported: set[str] = set()


class NoLoaderError(LookupError):
    """Raised if no loader to inspect was found."""


@dataclass(frozen=True)
class Attached:
    """A loader in another process. If the loader runs in another container, `numbers` maps the process ids in that
    container to ids in this container; otherwise, `numbers` is None."""

    pid: int
    command: str
    board: StatsBoard
    numbers: Mapping[int, int] | None = None

    def reading(self) -> Reading:
        return read_board(self.board, self.numbers)

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        return summarise(self.reading(), None if since is None else since.reading)

    def is_running(self) -> bool:
        return kernel_state(self.pid) not in ("ended", "dead")

    def stacks(self) -> list[tuple[str, str]]:
        reading = self.reading()
        stats = summarise(reading)
        pages = {name_of_process(page): page for page in reading.pages.values()}
        found = []
        for process in stats.processes:
            if process.node is not None:
                head = f"{process.called} (pid {process.pid} there), {process.state}"
                found.append(
                    (head, "its stack is only available in the main process, which requests it if this process hangs")
                )
                continue
            page = pages[process.name]
            where, stack = current_frame(process.pid, page["signal"], page["stack"])
            head = f"{process.name} (pid {process.pid}), {process.state}; {where}"
            found.append((head, printable(stack, lines=True)))
        return found


def _boards_of(pid: int) -> Iterator[tuple[tuple[int, int], str]]:
    """Yields ((device, inode), path) for each memory with counters that a process has open."""
    folder = f"/proc/{pid}/fd"
    for descriptor in os.listdir(folder):
        path = f"{folder}/{descriptor}"
        try:
            if os.readlink(path).startswith(_NAME):
                found = os.stat(path)
                yield (found.st_dev, found.st_ino), path
        except OSError:
            continue


def _command(pid: int) -> str:
    """Returns the command line of a process without secrets."""
    parts = read(f"/proc/{pid}/cmdline")[:_LONGEST_COMMAND].strip("\0").split("\0")
    hidden = [
        HIDDEN if is_secret(part) or (before.startswith("-") and "=" not in before and is_private(before)) else part
        for before, part in pairwise(["", *parts])
    ]
    return printable(redacted(" ".join(hidden)))


def _numbers(pid: int) -> dict[int, int] | None:
    """Returns a dict from process ids in the container of process `pid` to process ids in this container.

    Returns None if process `pid` runs in the same container as this process.
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
                    own = next(line.split()[-1] for line in file if line.startswith("NSpid:"))
                found[int(own)] = int(name)
    return found


def find(pid: int | None = None) -> list[Attached]:
    """Returns the loaders of process `pid`, or of all processes, oldest first."""
    if not os.path.isdir("/proc/self/fd"):
        raise NoLoaderError("loaders are found through /proc, which this system does not have")
    candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()] if pid is None else [pid]
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
                    f"process {pid} belongs to another user: only this user or root may inspect the process"
                ) from None
        except (OSError, RuntimeError):
            continue
    return sorted(found.values(), key=lambda attached: attached.board.made()[1])


def _attached(candidate: int, identity: tuple[int, int], path: str) -> Attached | None:
    """Returns the loader that has its counters in the memory at `path`. Returns None if the memory contains no
    counters, or if process `candidate` is a child of the loader's main process that has inherited the memory."""
    try:
        board = StatsBoard.observe(path)
        damage = board.damage()
    except (ValueError, RuntimeError) as error:  # the counters are malicious, or from another release
        damage = str(error)
    if damage is not None:
        _warn(f"process {candidate} has counters that cannot be shown: {printable(damage)}")
        return None
    owner, _ = board.made()
    numbers = _numbers(candidate)
    here = owner if numbers is None else numbers.get(owner, candidate)
    # The loader is reported only for its main process, `here`, and not for a forked child that has inherited the file
    # descriptor.
    if here != candidate and _holds(here, identity):
        return None
    inside = "" if numbers is None else f" (in a container, where it is {owner})"
    return Attached(here, _command(here) + inside, board, numbers)


def _warn(message: str) -> None:
    """Issues each warning only once, because `top` reads all counters every second."""
    if message not in _reported:
        _reported.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)


def _holds(pid: int, identity: tuple[int, int]) -> bool:
    try:
        return any(one == identity for one, _ in _boards_of(pid))
    except OSError:
        return False


def attach(pid: int | None = None) -> list[Attached]:
    """Like `find`, but also accepts the process id of a worker."""
    found = find(pid)
    if not found and pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the parent may be another user's process
            found = [one for one in find(stat_fields(pid)[1]) if pid in _pids(one)]
    if not found:
        processes = "this user" if pid is None else f"process {pid}"
        raise NoLoaderError(
            f"no running loader of {processes} was found: a DataLoader2, a StatefulDataLoader or a Loader of nodes is "
            "visible from its first epoch to its shutdown"
        )
    return found


def _pids(attached: Attached) -> set[int]:
    return {page["pid"] for page in attached.reading().pages.values() if not page["machine"]}
