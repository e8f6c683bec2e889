"""Reads /proc to find processes, descriptors and shared memory that a process has not released."""

import contextlib
import os
import re
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

#: A folder where the package and its tests must not leave files.
SHARED_MEMORY = Path("/dev/shm")


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def all_children(pid="self"):
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def children():
    """Returns the ids of child processes, without resource trackers, fork servers, and helpers of the tests."""
    there = [pid for pid in all_children() if state(pid) != "X"]
    names = b"tracker", b"forkserver", b"fresh_processes"
    helpers = {pid for pid in there if any(name in cmdline(pid) for name in names)}
    return [pid for pid in there if pid not in helpers and pid != fork_server()]


def fork_server():
    forker = getattr(sys.modules.get("torchdata._engine.processes.forker"), "_of_program", None)
    return None if forker is None or forker.is_over else forker.pid


def descendants(pid):
    found, unseen = [], all_children(pid)
    while unseen:
        found.append(unseen.pop())
        unseen += all_children(found[-1])
    return found


def descriptors(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


#: Matches the names of this package's shared memory in /proc: memfds, and files of the portable fallback.
OURS = r"(?:memfd:torchdata |/#\d+ \(deleted\)|/\.torchdata-)"
#: The names of torch's and this package's files contain the process id.
NAMED = re.compile(r"(?:torch_|\.torchdata-)(\d+)[-_]")


def shared_mappings(pid="self"):
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(re.search(OURS, line) is not None for line in lines)


def held_files(pid="self"):
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
    """Yields a list that receives the id of each child process as soon as the child is started."""
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
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def shown(pid):
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kept = [line for line in lines if line.startswith(("State", "PPid", "Threads", "SigBlk", "SigPnd", "ShdPnd"))]
    return f"{pid} {kept} {cmdline(pid)!r}".replace("\\t", " ")


def has_exited(pid):
    return state(pid) in "ZX"
