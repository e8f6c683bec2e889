"""Leftovers of a process, seen in /proc: processes, descriptors, shared memory. Imports no test tool."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

#: Where POSIX shared memory is. Neither the library nor its tests put anything there that stays.
SHARED_MEMORY = Path("/dev/shm")


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def all_children(pid="self"):
    """Process numbers of a process's children."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def children():
    """Process numbers of this process's children without helpers: trackers, fork servers, ours and the tests' own.

    The kernel lists one that nobody has to wait for, as SIGCHLD is ignored, a moment longer than it is there.
    """
    there = [pid for pid in all_children() if state(pid) != "X"]
    names = b"tracker", b"forkserver", b"fresh_processes"
    helpers = {pid for pid in there if any(name in cmdline(pid) for name in names)}
    return [pid for pid in there if pid not in helpers and pid != fork_server()]


def fork_server():
    """The number of the process that forks this program's workers under "forkserver"; None where there is none."""
    forker = getattr(sys.modules.get("torchdata._engine.processes.forker"), "_of_program", None)
    return None if forker is None or forker.is_over else forker.pid


def descendants(pid):
    """Process numbers of all direct and indirect children of a process, while the processes in between run."""
    found, unseen = [], all_children(pid)
    while unseen:
        found.append(unseen.pop())
        unseen += all_children(found[-1])
    return found


def descriptors(pid="self"):
    """How many file descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


#: Shared memory of this package in /proc: a memfd or, on the portable fallback, a file without a name or with one of
#: this package.
OURS = r"(?:memfd:torchdata |/#\d+ \(deleted\)|/\.torchdata-)"
#: Names that torch and this library give files in shared memory, with the number of the process.
NAMED = re.compile(r"(?:torch_|\.torchdata-)(\d+)[-_]")


def shared_mappings(pid="self"):
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(re.search(OURS, line) is not None for line in lines)


def held_files(pid="self"):
    """Paths of the files that a process has open or mapped, as far as /proc shows them; deleted ones left out."""
    held = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            held.update(line.split(maxsplit=5)[5:])
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(os.readlink(descriptor))
    return held


def shared_files(ended=()):
    """Names of the files in shared memory of this process and its descendants; other programs have theirs there.

    A file belongs to the process that has it open or mapped, or whose number is in its name. Names that torch and this
    library choose begin with this number. So what processes leave that have ended is found, too. MPI has numbers of
    another kind.

    Args:
        ended: numbers of descendants that may have ended.
    """
    own = [os.getpid(), *descendants("self")]
    held = set().union(*map(held_files, own))
    numbers = {*map(str, own), *map(str, ended)}
    return {
        name
        for name in os.listdir(SHARED_MEMORY)
        if str(SHARED_MEMORY / name) in held or ((named := NAMED.match(name)) is not None and named[1] in numbers)
    }


@contextlib.contextmanager
def started_children():
    """Notes the numbers of all processes that multiprocessing starts meanwhile, for when they have ended."""
    numbers, start = [], BaseProcess.start

    def noting(process):
        start(process)
        numbers.append(process.pid)

    BaseProcess.start = noting
    try:
        yield numbers
    finally:
        BaseProcess.start = start


def state(pid):
    """The state of a process, in one of ps's letters; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def told(pid):
    """The description of a leftover process: its number, state, parent, threads and command."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kept = [line for line in lines if line.startswith(("State", "PPid", "Threads", "SigBlk", "SigPnd", "ShdPnd"))]
    return f"{pid} {kept} {cmdline(pid)!r}".replace("\\t", " ")


def is_gone(pid):
    """Whether a process has ended; a zombie that nobody has waited for yet counts as ended."""
    return state(pid) in "ZX"
