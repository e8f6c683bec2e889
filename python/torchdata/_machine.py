"""What the kernel reports about a process: the processors that it may use, and the signals that it handles."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from torchdata._handlers import FailuresSuppressed

_CGROUPS = "/sys/fs/cgroup"


def cores() -> int:
    """Returns the number of processors, limited by the affinity and the control groups of this process."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _limits():
        if quota.isdigit() and period.isdigit():  # other values mean no limit
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def _limits() -> Iterator[tuple[str, str]]:
    """Yields the permitted processor time per period, and this period, for each control group (version 1 or 2)."""
    for line in [*read("/proc/self/cgroup").splitlines(), "0::/", "0:cpu:/"]:
        _, controllers, folder = line.split(":", 2)
        for group in _upwards(folder):
            if not controllers:
                quota, _, period = read(f"{_CGROUPS}{group}/cpu.max").partition(" ")
                yield quota, period.strip()
            elif "cpu" in controllers.split(","):
                prefix = f"{_CGROUPS}/cpu{group}/cpu.cfs_"
                yield read(f"{prefix}quota_us"), read(f"{prefix}period_us")


def _upwards(folder: str) -> Iterator[str]:
    folder = folder.rstrip("/")
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield folder


def caught_signals(pid: int | str) -> int:
    """Returns a mask of the signals that a process handles in Python or in C; 0 if the system does not list them."""
    lines = read(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)


def read(path: str) -> str:
    """Returns the text of a file without outer white space; an empty text if the file cannot be read."""
    with FailuresSuppressed(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""
