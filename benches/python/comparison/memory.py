"""Reads the memory of a process and its children from /proc, while a child of the harness runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.25
ALLOWED_GROWTH = 0.01
"""The maximum growth in the second half that counts as flat, as a fraction of the level (but at least 1 MB)."""


def family(pid: int) -> list[int]:
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in children.read_text().split())
            except OSError:
                continue  # the thread or process has ended meanwhile
    return found


def proportional(pids: list[int]) -> tuple[int, int]:
    """Returns the total memory and the shared memory of processes in bytes. Each shared page counts once."""
    total = shared = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        kibibytes = {key: int(rest.split()[0]) for key, rest in (line.split(":", 1) for line in lines)}
        total += kibibytes["Pss"] * 1024
        shared += kibibytes["Pss_Shmem"] * 1024
    return total, shared


@dataclass(frozen=True)
class Course:
    level: float
    growth: float
    peak: float
    peak_shared: float

    @property
    def flat(self) -> bool:
        return self.growth <= max(1e6, ALLOWED_GROWTH * self.level)


def watch(pid: int, seconds: float, running: Callable[[], bool]) -> Course:
    """Samples the memory until `seconds` have passed or the process exits. The growth of the memory is the median of
    the last quarter of the samples minus the median of the third quarter."""
    samples: list[tuple[int, int]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until and running():
        samples.append(proportional(family(pid)))
        time.sleep(INTERVAL_S)
    quarter = len(samples) // 4
    if quarter < 2:
        raise RuntimeError(f"only {len(samples)} samples of memory: the run was too short")
    third, last = samples[2 * quarter : 3 * quarter], samples[3 * quarter :]
    before, after = (statistics.median(total for total, _ in part) for part in (third, last))
    peak, peak_shared = (max(column) for column in zip(*samples, strict=True))
    return Course(before, after - before, peak, peak_shared)
