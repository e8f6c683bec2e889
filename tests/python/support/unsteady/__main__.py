"""Runs a command on a machine that is busy elsewhere: its processes stand still for moments, each at its own time.

A test that takes for granted which of two processes is first passes a thousand times, and fails on another machine.
Here it fails within a few runs: processes rest when they are born, so that others get ahead of them, and any of them is
stopped now and then, for up to 0.4 s.

    python -m unsteady python -m pytest -n 2 -m alone
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from leftovers import descendants

#: How often a process is chosen, and how many seconds it stands still on average and at most.
EVERY, MEAN, MOST = 0.1, 0.06, 0.4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of processes that are stopped")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(options.command, env=environment) as command:
        while command.poll() is None:
            time.sleep(draw.expovariate(1 / EVERY))
            there = [pid for pid in descendants(command.pid) if not _is_stopped(pid)]
            if there:
                _stop(draw.choice(there), min(draw.expovariate(1 / MEAN), MOST))
    return command.returncode


def _stop(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    """Whether a process has ended, or a test has stopped it itself."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "tTZ"
    return True


if __name__ == "__main__":
    raise SystemExit(main())
