"""If the limit on processes prevents a loader from starting, an error is raised, and everything is cleaned up."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can switch to an unused user id"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="the test needs setpriv to change the user"),
]

PROGRAM = """
    import contextlib, json, os, resource, sys, time
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

    ITEMS = list(range(20))

    def mine():
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                    with open(f"/proc/{pid}/stat") as file:
                        state = file.read().rpartition(")")[2].split()[0]
                    found[int(pid)] = state, len(os.listdir(f"/proc/{pid}/task"))
            except OSError:
                pass
        return found

    def same(x):
        return x

    def make(method, graph):
        pipe = IterableWrapper(ITEMS)
        if graph == "dispatch":
            pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        else:
            pipe = pipe.sharding_filter()
        if graph == "prefetch":
            pipe = pipe.prefetch(3)
        pipe = pipe.threadpool_map(same) if graph == "pool" else pipe.map(same)
        service = None if method == "none" else MultiProcessingReadingService(2, method)
        return DataLoader2(pipe, reading_service=service)

    def limit(tasks):
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, resource.getrlimit(resource.RLIMIT_NPROC)[1]))

    def attempt(method, graph, room):
        begun, said = time.monotonic(), {"room": room}
        limit(sum(tasks for _, tasks in mine().values()) + room)
        loader = make(method, graph)
        try:
            said["complete"] = sorted(loader) == ITEMS
        except Exception as error:
            said["error"] = f"{type(error).__name__}: {error}"
        loader.shutdown()
        for pid in mine():  # the fork server has inherited the limit
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NPROC, (resource.getrlimit(resource.RLIMIT_NPROC)[1],) * 2)
        with make(method, graph) as loader:
            said["again"] = sorted(loader) == ITEMS
        said["seconds"] = time.monotonic() - begun
        os.write(1, (json.dumps(said) + "\\n").encode())

    def main(method, graph, rooms):
        for room in rooms:
            # Each attempt needs a process without a running resource tracker or fork server.
            if os.fork() == 0:
                attempt(method, graph, room)
                sys.exit()
            os.wait()
            until = time.monotonic() + 120
            # Zombies are ignored. A zombie without a parent remains until the system's first process reaps it.
            while left := [pid for pid, (state, _) in mine().items() if pid != os.getpid() and state not in "ZX"]:
                assert time.monotonic() < until, f"these processes still run: {left}"
                time.sleep(0.01)

    if __name__ == "__main__":
        main(sys.argv[1], sys.argv[2], map(int, sys.argv[3:]))
"""

WHO = ("worker process ", "the dispatching process", "resource tracker", "torchdata-prefetch", "torchdata-threadpool")
users = itertools.count(70_000 + os.getpid() % 1000 * 100)


def attempts_of(path, method, graph, rooms):
    path.write_text(textwrap.dedent(PROGRAM))
    user = next(users)
    may = "-all,+dac_read_search,+dac_override"
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    command += [f"--inh-caps={may}", f"--ambient-caps={may}", f"--bounding-set={may}"]
    with tempfile.TemporaryDirectory(prefix="h") as home:  # socket names may have only 107 bytes
        os.chown(home, user, user)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HOME": home,
            "TMPDIR": home,
        }
        program = [*command, sys.executable, str(path), method, graph, *map(str, rooms)]
        done = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=250, cwd=home)
    assert done.returncode == 0, done.stderr
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [attempt["room"] for attempt in attempts] == list(rooms), done.stderr
    return attempts, done.stderr


@pytest.mark.parametrize(
    ("method", "graph", "rooms"),
    [
        ("fork", "plain", [*range(4), 30]),
        ("fork", "dispatch", [3, 5, 7]),
        ("fork", "prefetch", [4, 6, 8]),
        ("fork", "pool", [5, 7]),
        ("spawn", "plain", [0, 5]),
        ("spawn", "prefetch", [6]),
        ("forkserver", "plain", [0, 2, 5]),
        ("none", "prefetch", range(2)),
        ("none", "pool", range(2)),
    ],
)
def test_an_error_names_the_child_that_could_not_be_started_and_the_limit(tmp_path, method, graph, rooms):
    attempts, printed = attempts_of(tmp_path / "program.py", method, graph, rooms)
    for attempt in attempts:
        if "error" in attempt:
            assert "ulimit -u" in attempt["error"]
            assert any(who in attempt["error"] for who in WHO)
            assert "fewer workers" in attempt["error"]
        else:
            assert attempt["complete"]
        assert attempt["again"]
        assert attempt["seconds"] < 100  # the limit detects a hang, and measures nothing
    if 0 in rooms:
        assert "error" in attempts[0]
    if 30 in rooms:  # The first attempts exceed the process limit, and the last attempt does not.
        assert ["error" in attempt for attempt in (*attempts[:3], attempts[-1])] == [True, True, True, False]
    assert "Exception ignored" not in printed
    assert "cannot join" not in printed
