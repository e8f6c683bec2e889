"""The package finds how many processors and how much memory the program may use, even within control groups."""

from __future__ import annotations

from torchdata import _machine as machine


def test_processors_are_those_of_the_affinity_and_the_control_group(monkeypatch):
    files = {
        "/proc/self/cgroup": "0::/job/step",
        "/sys/fs/cgroup/job/cpu.max": "250000 100000",
        "/sys/fs/cgroup/job/memory.max": str(3 << 30),
        "/sys/fs/cgroup/job/memory.current": str(1 << 30),
        "/sys/fs/cgroup/cpu.max": "max 100000",
        "/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8388608 kB",
    }
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert (machine.cores(), machine.memory_left()) == (3, 2 << 30)
    files["/sys/fs/cgroup/job/cpu.max"] = "max 100000"
    files["/sys/fs/cgroup/job/memory.max"] = "max"
    assert (machine.cores(), machine.memory_left()) == (8, 8 << 30)


def test_control_groups_of_the_first_version_limit_processors_and_memory(monkeypatch):
    memory, unlimited = "/sys/fs/cgroup/memory", str((1 << 63) - 4096)
    files = {
        "/proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job/step\n1:name=systemd:/job\n0::/",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        f"{memory}/memory.limit_in_bytes": unlimited,
        f"{memory}/memory.usage_in_bytes": str(6 << 30),
        f"{memory}/job/memory.limit_in_bytes": str(4 << 30),
        f"{memory}/job/memory.usage_in_bytes": str(3 << 30),
        f"{memory}/job/memory.stat": f"cache 5\ninactive_file 7\ntotal_inactive_file {1 << 29}",
        f"{memory}/job/step/memory.limit_in_bytes": unlimited,
        f"{memory}/job/step/memory.usage_in_bytes": str(1 << 30),
        "/proc/meminfo": "MemAvailable: 8388608 kB",
    }
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert (machine.cores(), machine.memory_left()) == (2, 3 << 29), "what the group around allows"
    files["/proc/self/cgroup"] = "4:memory:/docker/1f\n0::/"  # the host's path; the container's own is /
    files[f"{memory}/memory.limit_in_bytes"] = str(7 << 30)
    assert machine.memory_left() == 1 << 30
