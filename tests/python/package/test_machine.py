"""The package finds how many processors the program may use, even if a control group limits this number."""

from torchdata import _machine as machine


def test_processors_are_those_of_the_affinity_and_the_control_group(monkeypatch):
    files = {
        "/proc/self/cgroup": "0::/job/step",
        "/sys/fs/cgroup/job/cpu.max": "250000 100000",
        "/sys/fs/cgroup/cpu.max": "max 100000",
    }
    monkeypatch.setattr(machine, "read", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert machine.cores() == 3
    files["/sys/fs/cgroup/job/cpu.max"] = "max 100000"
    assert machine.cores() == 8


def test_control_groups_of_the_first_version_limit_processors(monkeypatch):
    files = {
        "/proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job/step\n1:name=systemd:/job\n0::/",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    }
    monkeypatch.setattr(machine, "read", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert machine.cores() == 2
