"""What the tests of worker processes share: making loaders, and looking for what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter.sharding import SHARDING_PRIORITIES

METHODS = ["fork", "spawn", "forkserver"]
MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


def children():
    """Process numbers of this process's children, multiprocessing's own helpers left out."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"tracker" not in cmdline(pid) and b"forkserver" not in cmdline(pid)]


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def shared_mappings():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:torchdata" in line or "/.torchdata-" in line for line in lines)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process, file, descriptor or mapping is left by a test; import it where that is to be checked."""
    gc.collect()
    before = descriptors(), set(children()), set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    assert set(children()) <= before[1], "a process was left behind"
    assert set(os.listdir("/dev/shm")) <= before[2], "a file was left in /dev/shm"
    # multiprocessing keeps a few descriptors of its own (resource tracker, fork server).
    assert descriptors() <= before[0] + 6, "descriptors were left open"
    assert shared_mappings() == 0, "shared memory was left mapped"


def loader(datapipe, num_workers=2, **options):
    options.setdefault("multiprocessing_context", "fork")
    return DataLoader2(datapipe, reading_service=MultiProcessingReadingService(num_workers, **options))


def identity(x):
    return x
