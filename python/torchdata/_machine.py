"""The processors and the memory that a loader may use, according to the kernel and its control groups.

Role: reads `/proc` and `/sys/fs/cgroup`. Runs in the main process. If the system provides no limit, the functions
assume that there is none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"


def cores() -> int:
    """Returns the number of processors that this process may use, according to its affinity and its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        quota, _, period = _read(f"{group}/cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    for group in _first_version_groups("cpu"):
        quota, period = _read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # -1 means no limit
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def memory_left() -> int | None:
    """Returns the bytes of memory that are available to new processes; None if unknown."""
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
        if most.isdigit() and used.isdigit():  # without a limit, this number is larger than any memory
            found.append(max(0, int(most) - int(used) + _reclaimable(group, "total_inactive_file")))
    return min(found, default=None)


def _reclaimable(group: str, wanted: str) -> int:
    """Returns the number of bytes of cached files, which the kernel frees when processes need memory."""
    for line in _read(f"{group}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == wanted:
            return int(value)
    return 0


def _groups() -> Iterator[str]:
    """Yields the folders of this process's control group and of its parents."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            yield from _upwards(_CGROUPS, line[3:])
    yield _CGROUPS  # in a container, this folder is the container's own group


def _first_version_groups(controller: str) -> Iterator[str]:
    """Yields the folders of this process's control groups and their parents in version 1 of control groups. In version
    1, each controller has separate groups."""
    root = f"{_CGROUPS}/{controller}"
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, below = line.split(":", 2)
        if controller in controllers.split(","):
            yield from _upwards(root, below)
    yield root


def _upwards(root: str, below: str) -> Iterator[str]:
    """Yields the folder `below` another folder, and the folders between them."""
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
