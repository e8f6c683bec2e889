"""Processes that are stopped by SIGSTOP do not outlive a main process that exits without shutting its loader down."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from process_checks import has_exited, wait_for

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="the test needs Linux's parent-death signal"),
]

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.mark.parametrize(
    ("method", "when", "ending"),
    [
        *((method, "running", "SIGKILL") for method in ("fork", "spawn", "forkserver")),
        *(("fork", "running", ending) for ending in ("os._exit", "end of the program")),
        *((method, "starting", "SIGKILL") for method in ("spawn", "forkserver")),
    ],
)
def test_no_stopped_process_outlives_the_main_process(method, when, ending, tmp_path):
    # In a new session, the exit of the main process does not make the kernel resume the program's stopped processes.
    found = tmp_path / "pids"
    program = [sys.executable, "-W", "ignore", "-m", "stopped_processes", method, when, ending, found]
    with subprocess.Popen(program, cwd=SUPPORT, start_new_session=True) as running:
        try:
            assert running.wait(120) == (-signal.SIGKILL if ending == "SIGKILL" else 0)
            pids = [int(pid) for pid in found.read_text().split()]
            assert pids
            wait_for(lambda: all(map(has_exited, pids)))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
