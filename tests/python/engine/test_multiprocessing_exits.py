"""Processes that exit, hang or are interrupted are reported in time, and all memory is released."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from process_checks import (  # noqa: F401
    METHODS,
    MULTIPROCESSING,
    Sleeps,
    children_are_killed_soon,
    has_exited,
    identity,
    loader,
    nothing_is_left,
    patch_start,
    wait_for,
    with_methods,
)
from torchdata._engine.processes import shutdown
from torchdata._engine.processes.process import ChildProcess
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper


class Kills:
    def __init__(self, at, number, once=None):
        self.at, self.number, self.once = at, number, once

    def __call__(self, x):
        if x == self.at:
            while self.once is not None and not os.path.exists(self.once):
                time.sleep(0.01)
            time.sleep(0.1)
            os.kill(os.getpid(), self.number)
            time.sleep(1000)
        return x


@pytest.mark.parametrize(("method", "number"), with_methods(signal.SIGSEGV, signal.SIGKILL))
def test_a_killed_worker_is_reported_after_the_items_that_it_had_sent(method, number, tmp_path):
    # The worker that will kill itself waits for the file `up`, which appears when the second worker has started.
    others_are_up = tmp_path / "up"
    datapipe = IterableWrapper(range(40)).sharding_filter().map(Kills(13, number, others_are_up))
    received = []
    with loader(datapipe, multiprocessing_context=method) as dl:
        with pytest.raises(WorkerExitedError, match=rf"worker process 1 .* was killed by {number.name}") as caught:
            for x in dl:
                received.append(x)
                if x == 12:
                    others_are_up.touch()
        assert received == list(range(13))
        assert (caught.value.worker, caught.value.exitcode) == (1, -number)
        with pytest.raises((WorkerExitedError, RuntimeError)):
            list(dl)
    text = str(caught.value)
    if number == signal.SIGSEGV:
        assert "was killed by SIGSEGV; a native library in its pipes" in text
        for words in (
            "a library whose threads do not survive a fork",
            "use multiprocessing_context='forkserver'",
            "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process",
        ):
            assert (words in text) == (method == "fork")


def seconds_until_an_exit_is_reported():
    datapipe = IterableWrapper(range(40)).sharding_filter().map(Sleeps(4))
    with loader(datapipe, worker_prefetch_cnt=1, main_prefetch_cnt=1) as dl:
        iterator = iter(dl)
        assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
        killed = []

        def kill():
            killed.append(time.monotonic())
            os.kill(dl.reading_service._children.pids[1], signal.SIGKILL)

        timer = threading.Timer(0.3, kill)
        timer.start()
        with pytest.raises(WorkerExitedError, match="worker process 1"):
            next(iterator)
        seconds = time.monotonic() - killed[0]
        timer.join()
    return seconds


@pytest.mark.usefixtures("children_are_killed_soon")
def test_a_worker_exit_is_noticed_within_a_second_while_another_worker_is_slow():
    for _ in range(20):  # repeated, because a busy machine may delay the main process
        if seconds_until_an_exit_is_reported() < 1.0:
            return
    raise AssertionError("every attempt took too long")


def test_the_exit_of_the_dispatching_process_is_reported():
    source = IterableWrapper(range(40)).map(Kills(20, signal.SIGKILL))
    datapipe = source.sharding_round_robin_dispatch(MULTIPROCESSING).map(identity)
    received = []
    with loader(datapipe) as dl:
        with pytest.raises(WorkerExitedError, match="the dispatching process .* SIGKILL") as caught:
            for x in dl:
                received.append(x)
        assert caught.value.worker is None
    assert received == list(range(len(received)))


def run_script(script, *arguments, prefix=(), **options):
    return subprocess.Popen(
        [*prefix, sys.executable, "-W", "error", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def script(tmp_path):
    def write(body):
        path = tmp_path / "script.py"
        path.write_text(
            textwrap.dedent(
                """
                import os, sys, time, signal
                from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
                from torchdata.datapipes.iter import IterableWrapper
                from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES
                def nap(x):
                    time.sleep(0.01)
                    return x
                def worker_1_hangs(x):
                    if x == 1:
                        os.write(1, b"hangs\\n")
                        time.sleep(1000)
                    return x
                def make(f, method="fork", dispatch=False, workers=2):
                    dp = IterableWrapper(range(100_000))
                    if dispatch:
                        dp = dp.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
                    else:
                        dp = dp.sharding_filter()
                    return DataLoader2(dp.map(f), reading_service=MultiProcessingReadingService(workers, method))
                """
            )
            + "if __name__ == '__main__':\n"
            + textwrap.indent(textwrap.dedent(body), "    ")
        )
        return str(path)

    return write


@pytest.mark.parametrize("method", METHODS)
def test_children_end_when_the_main_process_is_killed(script, method):
    path = script(
        """
        dl = make(worker_1_hangs, sys.argv[1], dispatch=True)
        it = iter(dl); next(it)
        os.write(1, (" ".join(map(str, dl.reading_service._children.pids)) + "\\n").encode())
        time.sleep(1000)
        """
    )
    process = run_script(path, method)
    lines = sorted(process.stdout.readline().strip() for _ in range(2))
    pids = [int(pid) for pid in lines[0].split()]
    assert (len(pids), lines[1]) == (3, "hangs")
    process.kill()
    process.communicate(timeout=250)
    wait_for(lambda: all(map(has_exited, pids)))


@pytest.mark.parametrize(
    ("method", "ending"), with_methods("pass", "sys.exit(0)", "dl.shutdown(); dl.shutdown()", "del dl, it")
)
def test_the_interpreter_exits_in_every_state_of_the_loader(script, method, ending):
    path = script(
        f"""
        dl = make(nap, {method!r})
        it = iter(dl); next(it); next(it)
        {ending}
        """
    )
    out, err = (process := run_script(path)).communicate(timeout=250)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.usefixtures("children_are_killed_soon")
def test_a_timeout_names_the_worker():
    with loader(IterableWrapper(range(10)).sharding_filter().map(Sleeps(3)), timeout=0.5) as dl:
        iterator = iter(dl)
        wait_for(lambda: [worker.items for worker in dl.stats().workers] == [5, 1])
        with pytest.raises(TimeoutError, match="worker process 1 within 0.5 s"):
            list(iterator)


SMALL_SHM = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
SMALL_SHM += ['mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"']


def runs_small_shm():
    try:
        return subprocess.run([*SMALL_SHM, "true"], capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


def test_four_workers_need_few_descriptors_and_nothing_in_dev_shm(script):
    prefix = SMALL_SHM if runs_small_shm() else []
    path = script(
        """
        import resource
        import numpy as np
        sys.path.append(sys.argv[1])
        from leftovers import shared_files
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        if "small" in sys.argv:
            shm = os.statvfs("/dev/shm")
            assert shm.f_blocks * shm.f_frsize == 64 << 20
            shared_files = lambda: set(os.listdir("/dev/shm"))  # no other program has files in this folder
        dl = make(lambda x: np.zeros(200_000), workers=4, dispatch=True)
        kept = []
        for i, array in enumerate(dl):
            kept.append(array)
            if i % 20 == 0: assert shared_files() == set()
            if i == 200: break
        assert sum(a.nbytes for a in kept) > 64 << 20
        del kept, array
        dl.shutdown()
        print("done")
        """
    )
    arguments = [Path(__file__).parents[1] / "support", *["small"] * bool(prefix)]
    out, err = (process := run_script(path, *arguments, prefix=prefix)).communicate(timeout=250)
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_memory_of_a_long_run_is_flat():
    def usage(pids):
        total = 0
        for pid in [os.getpid(), *pids]:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return total

    with loader(IterableWrapper(range(3100)).sharding_filter().map(lambda x: np.full(40_000, x))) as dl:
        pids, samples = [], []
        for i, array in enumerate(dl):
            assert array[0] == i
            pids = pids or dl.reading_service._children.pids
            if i in (1000, 3000):
                gc.collect()
                samples.append(usage(pids))
        # Workers sent 0.6 GB between the two measurements, so a leak would be far larger than 20 MB.
        assert samples[1] - samples[0] < 20_000, samples


@pytest.mark.parametrize("method", METHODS)
def test_an_exit_during_the_start_is_noticed_before_all_others_have_started(method, monkeypatch):
    started = []

    def start(child):
        real_start(child)
        started.append(child.pid)
        if len(started) == 1:
            os.kill(child.pid, signal.SIGKILL)
            wait_for(lambda: child.ended)

    real_start = patch_start(monkeypatch, start)
    with (
        loader(IterableWrapper(range(9)).sharding_filter(), 6, multiprocessing_context=method) as dl,
        pytest.raises(WorkerExitedError, match="worker process 0 .* was killed by SIGKILL"),
    ):
        list(dl)
    assert len(started) == 2


def test_a_child_that_outlives_its_loader_is_reaped_with_the_next_one(monkeypatch):
    with monkeypatch.context() as stuck:  # In a blocked file system, SIGKILL has no immediate effect.
        stuck.setattr(shutdown, "ASKED", 0.0)
        stuck.setattr(shutdown, "KILLED", 0.0)
        stuck.setattr(ChildProcess, "kill", lambda _child: None)
        dl = loader(IterableWrapper(range(9)).sharding_filter(), 1)
        next(iter(dl))
        (pid,) = dl.reading_service._children.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match=rf"worker process 0 \(pid {pid}\) did not end within"):
            dl.shutdown()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with loader(IterableWrapper(range(9)).sharding_filter(), 1) as dl:
        assert list(dl) == list(range(9))
    assert has_exited(pid)
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
