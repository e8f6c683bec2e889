"""The processors and the memory that a loader may use, as the kernel and its control groups have it.

Role: looks at `/proc` and `/sys/fs/cgroup`. Runs in main. If the system does not tell, nothing is limited.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

__all__ = ["cores", "memory_left"]

_CGROUPS = "/sys/fs/cgroup"


def cores() -> int:
    """Processors that this process may use: those of its affinity, and no more than its control groups allow."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        quota, _, period = _read(f"{group}/cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    for group in _first_version_groups("cpu"):
        quota, period = _read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # -1 where nothing is limited
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def memory_left() -> int | None:
    """Bytes of memory that new processes may take; None if that is not known."""
    found = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    for group in _groups():
        most, used = _read(f"{group}/memory.max"), _read(f"{group}/memory.current")
        if most.isdigit() and used.isdigit():
            found.append(max(0, int(most) - int(used) + _reclaimable(group, "inactive_file")))
    for group in _first_version_groups("memory"):
        most, used = _read(f"{group}/memory.limit_in_bytes"), _read(f"{group}/memory.usage_in_bytes")
        if most.isdigit() and used.isdigit():  # where nothing is limited, a number beyond all memory
            found.append(max(0, int(most) - int(used) + _reclaimable(group, "total_inactive_file")))
    return min(found, default=None)


def _reclaimable(group: str, wanted: str) -> int:
    """Bytes of files that the kernel keeps at hand, and that it gives up for processes."""
    for line in _read(f"{group}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == wanted:
            return int(value)
    return 0


def _groups() -> Iterator[str]:
    """The folders of the control group that this process is in, and of those around it."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            yield from _upwards(_CGROUPS, line[3:])
    yield _CGROUPS  # in a container it is its own


def _first_version_groups(controller: str) -> Iterator[str]:
    """The same for version 1 of control groups, in which each controller has separate groups."""
    root = f"{_CGROUPS}/{controller}"
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, below = line.split(":", 2)
        if controller in controllers.split(","):
            yield from _upwards(root, below)
    yield root


def _upwards(root: str, below: str) -> Iterator[str]:
    """The folder `below` another one, and those between."""
    below = below.rstrip("/")
    while below:
        yield root + below
        below = below.rpartition("/")[0]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
