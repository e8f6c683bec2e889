"""What a process may leave behind, seen in /proc: processes, descriptors, shared memory. Imports no test tool."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
    """Process numbers of this process's children, multiprocessing's own helpers left out."""
    return [pid for pid in all_children() if not {b"tracker", b"forkserver"} & words(cmdline(pid))]


def words(command):
    """Which of multiprocessing's helpers a command line names."""
    return {name for name in (b"tracker", b"forkserver") if name in command}


def descendants(pid):
    """Process numbers of all that a process has started, directly or not, while those in between live."""
    found, unseen = [], all_children(pid)
    while unseen:
        found.append(unseen.pop())
        unseen += all_children(found[-1])
    return found


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def shared_mappings(pid="self"):
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("memfd:torchdata" in line or "/.torchdata-" in line for line in lines)


def is_gone(pid):
    """Whether a process has ended; a zombie that nobody has waited for yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
