"""Runs a command on a simulated busy machine, by suspending the command's processes at random moments.

A test that relies on one process being faster than another process may pass a thousand times, and fail on another
machine. This module delays new processes, so that older processes overtake them. The module also suspends each process
from time to time, for up to 0.4 s.

    python -m unsteady python -m pytest -n 2 -m alone
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from leftovers import descendants

#: The mean time between two stops, and the mean and maximum duration of a stop, in seconds.
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
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "tTZ"
    return True


if __name__ == "__main__":
    raise SystemExit(main())
