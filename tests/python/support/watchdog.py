"""Runs a process under a watchdog, which collects its output, its stacks if it hangs, and leftover processes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torchdata
from leftovers import cmdline, descendants, is_gone

TESTS = Path(__file__).resolve().parent
#: Set for a process that prints the stacks of its threads on SIGUSR1, and for its children.
STACKS = "TESTS_SHOW_STACKS"


@dataclass
class Ran:
    """The result of a run."""

    ok: bool
    #: The reason for a failure, in one line.
    why: str
    output: str
    seconds: float


def environment():
    """Returns the environment for a process that must find the tests' modules and the package under test."""
    package = Path(torchdata.__file__).resolve().parents[1]
    paths = [str(TESTS), str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), STACKS: "1"}


def show_stacks_on_demand():
    """Must be called where a program's functions are defined, so that its children also call it."""
    if os.environ.get(STACKS):
        faulthandler.register(signal.SIGUSR1, all_threads=True)


def run_module(arguments, limit):
    """Runs `python -m` with the arguments, for at most `limit` seconds."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that everything that it starts can be found by the session id
            env=environment(),
        )
        try:
            hung = False
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                hung = True
                show_stacks(process.pid, output)
            survivors = [] if hung else survivors_of(process.pid)
        finally:
            end_session(process)
        output.seek(0)
        text = output.read()
    seconds = time.monotonic() - started
    if hung:
        return Ran(False, f"it hung: not done after {limit:.0f} s", text, seconds)
    if process.returncode != 0:
        last = text.rstrip().rsplit("\n", 1)[-1]
        return Ran(False, f"exit code {process.returncode}: {last}", text, seconds)
    if survivors:
        return Ran(False, f"processes outlived it: {survivors}", text, seconds)
    return Ran(True, "", text, seconds)


def session_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return None


def session(number):
    """Returns the running processes of a session, including children that lost their parent."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if session_of(pid) == number and not is_gone(pid)]


def survivors_of(number, seconds=5.0):
    """Returns the processes of a session that remain after a while. The main process has exited, so all further
    processes should exit.
    """
    deadline = time.monotonic() + seconds
    while (left := session(number)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"{pid} ({cmdline(pid).replace(bytes(1), b' ').decode()[:80]})" for pid in left]


def show_stacks(main, output):
    """Makes every process print its stacks, in the order of their start."""
    for pid in sorted([main, *descendants(main)]):
        if _catches(pid, signal.SIGUSR1):
            output.seek(0, os.SEEK_END)
            output.write(f"-- process {pid}{', main' * (pid == main)}\n")
            output.flush()
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.3)  # stacks of several processes would be mixed in the file


def _catches(pid, number):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def end_session(process):
    """Kills a process and its whole session."""
    number = process.pid
    for pid in session(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
