"""The package finds how many processors the program may use, even if a control group limits this number."""

import pytest

from torchdata import _machine as machine

UNIFIED = {"/proc/self/cgroup": "0::/job/step", "/sys/fs/cgroup/cpu.max": "max 100000"}
FIRST_VERSION = {
    "/proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job/step\n1:name=systemd:/job\n0::/",
    "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
    "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (UNIFIED | {"/sys/fs/cgroup/job/cpu.max": "250000 100000"}, 3),
        (UNIFIED | {"/sys/fs/cgroup/job/cpu.max": "max 100000"}, 8),
        (FIRST_VERSION, 2),
    ],
)
def test_processors_are_counted_by_the_affinity_and_the_control_group(files, cores, monkeypatch):
    monkeypatch.setattr(machine, "read", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert machine.cores() == cores
