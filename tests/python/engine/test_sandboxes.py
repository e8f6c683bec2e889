"""If the system lacks or forbids features of Linux, loaders use the portable fallback, and report this once."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters system calls"),
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "aarch64"), reason="the test lacks this machine's system call numbers"
    ),
]

PROGRAM = """
import json, os, sys, warnings
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

method, deaths = sys.argv[1], sys.argv[2:]

def dying(x):
    for flag in deaths:
        if x == 11 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), 9)
    return x

def main():
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            service = MultiProcessingReadingService(2, method, on_worker_exit="restart" if deaths else "error")
            pipe = IterableWrapper(range(40)).sharding_filter().map(dying)
            with DataLoader2(pipe, reading_service=service) as loader:
                found.append(list(loader) == list(range(40)))
    print(json.dumps([found, [str(one.message) for one in caught]]))

if __name__ == "__main__":
    main()
"""


def run(tmp_path, code, calls, *arguments, **environment):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "sandboxed", code, calls, str(program), *arguments],
        cwd=Path(__file__).parents[1] / "support",
        env={**os.environ, "TORCHDATA_PORTABLE": "", **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    found, shown = json.loads(done.stdout)
    assert found == [True, True]
    return shown


@pytest.mark.parametrize(
    ("method", "code", "calls"),
    [
        ("fork", "EPERM", "memfd_create,pidfd_open"),
        ("spawn", "EPERM", "memfd_create"),
        ("forkserver", "ENOSYS", "pidfd_open"),
    ],
)
def test_a_loader_falls_back_and_warns_once_where_system_calls_are_forbidden(method, code, calls, tmp_path):
    (shown,) = run(tmp_path, code, calls, method)
    assert "no memfd_create or no pidfd_open" in shown
    assert "TMPDIR" in shown


def test_workers_are_replaced_without_descriptors_of_processes(tmp_path):
    flags = [str(tmp_path / "first"), str(tmp_path / "second")]
    shown = run(tmp_path, "EPERM", "memfd_create,pidfd_open", "fork", *flags)
    assert len([one for one in shown if "killed by SIGKILL" in one]) == 2


def test_the_requested_fallback_causes_no_warning_and_needs_no_memfd(tmp_path):
    assert run(tmp_path, "EPERM", "memfd_create", "spawn", TORCHDATA_PORTABLE="1") == []
