"""Reads the processor time and the memory of a process from the system."""

from __future__ import annotations

import os
import subprocess
import time

from torchdata._handlers import FailuresSuppressed

_NS = 1e-9
_ERRORS = (OSError, LookupError, ValueError, subprocess.TimeoutExpired)


def processor_times(pid: int) -> tuple[float, float, float] | None:
    """Returns three times in seconds: running, waiting for a processor, and since the start of the process."""
    ran = waited = 0
    with FailuresSuppressed(_ERRORS):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                numbers = file.read().split()
            ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
        began = stat_fields(pid)[19] / os.sysconf("SC_CLK_TCK")
        return ran * _NS, waited * _NS, time.clock_gettime(time.CLOCK_BOOTTIME) - began
    return None


def working_time(pid: int) -> float | None:
    """Returns the seconds that the threads of a process have run or waited for a processor. The sum includes only
    threads that have not ended, so it decreases when a thread ends."""
    times = processor_times(pid)
    if times is not None:
        return times[0] + times[1]
    with FailuresSuppressed(_ERRORS):
        fields = stat_fields(pid)
        return (fields[11] + fields[12]) / os.sysconf("SC_CLK_TCK")
    return None if os.path.isdir("/proc/self") else _time_in_ps(pid)


def anonymous_memory(pid: int) -> tuple[int, int]:
    """Returns two sizes of a process's anonymous memory (without files and shared memory): the full size, and the size
    if each page counts only 1/n because n processes share it. Both sizes are 0 if the system does not report them.
    """
    with FailuresSuppressed(_ERRORS), open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = {name: int(size) << 10 for name, size, *_ in map(str.split, file.readlines()[1:])}
        return sizes["Anonymous:"], sizes["Pss_Anon:"]
    return 0, 0


def stat_fields(pid: int) -> list[int]:
    """Returns the fields after the name in `/proc/PID/stat` as numbers, with 0 instead of the state letter."""
    with open(f"/proc/{pid}/stat") as file:
        return [0, *map(int, file.read().rpartition(")")[2].split()[1:])]


def _time_in_ps(pid: int) -> float | None:
    with FailuresSuppressed(_ERRORS):
        output = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, timeout=5).stdout
        days, _, clock = output.strip().rpartition("-")
        seconds = 86_400.0 * int(days or 0)
        for power, part in enumerate(reversed(clock.split(":"))):
            seconds += float(part) * 60**power
        return seconds
    return None
