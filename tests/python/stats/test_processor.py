"""The statistics report the same processor time of a process as the operating system."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from torchdata._observe.stats import processor
from waiting import check_in_forked_child, compute


def without_schedstat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "processor_times", lambda _pid: None)


@pytest.mark.parametrize("sandboxed", [False, True])
def test_the_processor_time_grows_by_the_time_of_a_computation(
    sandboxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sandboxed:
        without_schedstat(monkeypatch)

    def check() -> None:
        before = processor.working_time(os.getpid())
        compute(0.1)
        after = processor.working_time(os.getpid())
        assert before is not None
        assert after is not None
        assert after - before > 0.05

    check_in_forked_child(check)  # threads of earlier tests may end at any time


def test_an_exited_process_has_no_loaders() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processor.working_time(process.pid) is None


@pytest.mark.parametrize(
    ("output", "seconds"),
    [("00:01:30\n", 90.0), ("  0:01.50\n", 1.5), ("1-02:03:04\n", 93_784.0), ("", None), ("no such process", None)],
)
def test_without_proc_the_processor_time_comes_from_ps(
    monkeypatch: pytest.MonkeyPatch, output: str, seconds: float | None
) -> None:
    def run(command: list[str], **_options: Any) -> SimpleNamespace:
        assert command == ["ps", "-o", "time=", "-p", "17"]
        return SimpleNamespace(stdout=output)

    def nothing(_pid: int) -> list[int]:
        raise FileNotFoundError

    without_schedstat(monkeypatch)
    monkeypatch.setattr(processor, "stat_fields", nothing)
    monkeypatch.setattr(processor.os.path, "isdir", lambda _path: False)
    monkeypatch.setattr(processor.subprocess, "run", run)
    assert processor.working_time(17) == seconds
