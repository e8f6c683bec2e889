"""If a loader exceeds a limit of the system, the error names the limit, and explains how to raise it."""

import pytest

from programs import run

pytestmark = pytest.mark.alone

PROGRAM = """
import os, resource, sys
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

workers = int(sys.argv[2])
if sys.argv[1] == "AS":
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + (200 << 20)
else:
    limit = int(sys.argv[3])
if sys.argv[1] != "none":
    resource.setrlimit(getattr(resource, "RLIMIT_" + sys.argv[1]), (limit, limit))
service = MultiProcessingReadingService(workers, "fork")
try:
    with DataLoader2(IterableWrapper(range(9)).sharding_filter(), reading_service=service) as loader:
        list(loader)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "workers", "value", "environment", "words"),
    [
        ("NOFILE", 60, 64, {}, ("ulimit -n", "fewer workers")),
        ("FSIZE", 2, 1 << 16, {"TORCHDATA_PORTABLE": ""}, ("ulimit -f", "memory_budget=")),
        ("AS", 2, 0, {}, ("ulimit -v", "memory_budget=")),
        ("none", 2, 0, {"TORCHDATA_PORTABLE": "1", "TMPDIR": "/nowhere/at/all"}, ("TMPDIR",)),
    ],
)
def test_an_error_names_the_limit_and_the_way_out(limit, workers, value, environment, words):
    done = run(PROGRAM, limit, workers, value, options=["-W", "ignore"], **environment)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
