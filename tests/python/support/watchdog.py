"""Runs a process under a watchdog, which collects the output, leftover processes, and stacks if the process hangs."""

import contextlib
import os
import signal
import time
from pathlib import Path

from leftovers import cmdline, descendants, has_exited


def session_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return None


def session(number):
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if session_of(pid) == number and not has_exited(pid)]


def survivors_of(number, seconds=5.0):
    deadline = time.monotonic() + seconds
    while (left := session(number)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"{pid} ({cmdline(pid).replace(bytes(1), b' ').decode()[:80]})" for pid in left]


def show_stacks(main, output):
    """Makes one process after another print its stacks, because the stacks of several processes must not be mixed."""
    for pid in sorted([main, *descendants(main)]):
        if _catches(pid, signal.SIGUSR1):
            output.seek(0, os.SEEK_END)
            output.write(f"-- process {pid}{', main' * (pid == main)}\n")
            output.flush()
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.3)


def _catches(pid, number):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def end_session(process):
    number = process.pid
    for pid in session(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
