"""Creates loaders, and checks that their processes, files and memory are gone after a test."""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from leftovers import (  # noqa: F401 - tests take some from here
    children,
    cmdline,
    descriptors,
    fork_server,
    has_exited,
    shared_files,
    shared_mappings,
    started_children,
    state,
)
from torchdata._engine.processes import shutdown
from torchdata._engine.processes.process import ChildProcess
from torchdata._observe.outside.attaching import find
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES
from waiting import wait_for

#: Pytest marks for tests that find loaders by the names of their shared memory, which only memfds have.
FINDS_MEMORY = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory is found by its name in Linux's /proc"),
    pytest.mark.skipif(os.environ.get("TORCHDATA_PORTABLE") == "1", reason="temporary files have no names in /proc"),
]
METHODS = ["fork", "spawn", "forkserver"]
MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


def with_methods(first, *others):
    return [*((method, first) for method in METHODS), *(("fork", case) for case in others)]


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.collect()
    before = descriptors(), set(children()), shared_files(), shared_mappings()
    with started_children() as started:
        yield
    gc.collect()
    left = set(children()) - before[1]
    assert not left, f"processes still run: {[(state(pid), cmdline(pid)) for pid in left]}"
    files = shared_files(started) - before[2]
    assert not files, f"files remain in /dev/shm: {files}"
    # Up to six descriptors of multiprocessing's resource tracker and fork server are not leaks.
    assert descriptors() <= before[0] + 6, "descriptors were left open"
    assert shared_mappings() <= before[3], "shared memory is still mapped"


@pytest.fixture
def children_are_killed_soon(monkeypatch):
    monkeypatch.setattr(shutdown, "ASKED", 0.2)


@pytest.fixture(autouse=True)
def no_earlier_loader():
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)  # pytest keeps the frames of a failed test, which may refer to a loader
    gc.collect()
    if _holds_counters():
        gc.unfreeze()  # Garbage collection does not free a frozen loader.
        wait_for(lambda: gc.collect() >= 0 and not _holds_counters())
        gc.freeze()


def _holds_counters():
    maps = Path("/proc/self/maps")
    return bool(find(os.getpid())) or (maps.exists() and "torchdata-stats" in maps.read_text())


def loader(datapipe, num_workers=2, **options):
    options.setdefault("multiprocessing_context", "fork")
    return DataLoader2(datapipe, reading_service=MultiProcessingReadingService(num_workers, **options))


def identity(x):
    return x


def kill_fork_server():
    pid = fork_server()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class ExitsAt:
    def __init__(self, at, after=0.0):
        self.at, self.after = at, after

    def __call__(self, x):
        if x == self.at:
            time.sleep(self.after)
            os._exit(7)
        return x


class Sleeps:
    def __init__(self, at, seconds=1000.0):
        self.at = at
        self.seconds = seconds

    def __call__(self, x):
        if x == self.at:
            time.sleep(self.seconds)
        return x


def patch_start(monkeypatch, start):
    real_start = ChildProcess.start
    choose = lambda child: (start if child.name.startswith("worker") else real_start)(child)  # noqa: E731
    monkeypatch.setattr(ChildProcess, "start", choose)
    return real_start
