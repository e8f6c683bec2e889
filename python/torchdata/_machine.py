"""The number of processors that a loader may use, according to the kernel and its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"


def cores() -> int:
    """Considers the affinity and the control groups of this process."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        quota, _, period = _read(f"{group}/cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    for group in _first_version_groups():
        quota, period = _read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # -1 means no limit
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def _groups() -> Iterator[str]:
    """Yields the folders of this process's control group and of its parents."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            yield from _upwards(_CGROUPS, line[3:])
    yield _CGROUPS  # in a container, this folder is the container's own group


def _first_version_groups() -> Iterator[str]:
    """In version 1 of control groups, each controller has separate groups."""
    root = f"{_CGROUPS}/cpu"
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, below = line.split(":", 2)
        if "cpu" in controllers.split(","):
            yield from _upwards(root, below)
    yield root


def _upwards(root: str, below: str) -> Iterator[str]:
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
