"""A forked child can use any lock, even if another thread of the main process held the lock during the fork."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from families import TORCH
from fresh_processes import run_program, with_torch
from handlers import handling
from process_checks import children, children_are_killed_soon, loader, nothing_is_left, wait_for  # noqa: F401
from torchdata._engine.processes import fork
from torchdata.datapipes.iter import IterableWrapper

#: Threads of the main process constantly draw random numbers or print while the program starts processes.
BUSY = """
import threading, time
from process_checks import loader
from torchdata.datapipes.iter import IterableWrapper

def torch_numbers():
    import torch
    memory = torch.empty(1_000_000)
    return memory.normal_

def many_small_torch_numbers():
    import torch
    memory = torch.empty(100)
    return memory.normal_

def torch_seeds():
    import torch
    return lambda: torch.manual_seed(5)

def numpy_numbers():
    import numpy
    return lambda: numpy.random.rand(1_000_000)

def output():
    return lambda: print("x" * 1_000_000)

def said(x):
    print("here", flush=True)
    return x

def seeds(x):
    import torch
    torch.manual_seed(x)
    return x

def of_a_loader(function=said, workers=2):
    with loader(IterableWrapper(range(10)).sharding_filter().map(function), workers, timeout=60) as served:
        assert sorted(served) == list(range(10))

def of_one_that_seeds():
    of_a_loader(seeds, 4)

over = threading.Event()

def busy(do):
    while not over.is_set():
        do()

threads = [threading.Thread(target=busy, args=({busy}(),)) for _ in range(3)]
for thread in threads:
    thread.start()
time.sleep(0.05)
try:
    for _ in range({times}):
        {started}()
finally:
    over.set()
for thread in threads:
    thread.join()
"""


@pytest.fixture(scope="module", autouse=True)
def programs_that_have_imported_torch():
    if TORCH:
        with_torch()


@pytest.fixture
def unread():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        yield reader.stdin


@pytest.mark.parametrize(
    ("busy", "started", "times"),
    [
        ("torch_numbers", "of_a_loader", 4),
        ("many_small_torch_numbers", "of_a_loader", 4),
        ("numpy_numbers", "of_a_loader", 4),
        ("output", "of_a_loader", 4),
        ("torch_seeds", "of_one_that_seeds", 8),
    ],
)
def test_loaders_start_while_threads_of_main_draw_seed_or_print(busy, started, times, unread, tmp_path):
    script = BUSY.format(busy=busy, started=started, times=times)
    if "torch" not in busy:
        return run_apart(script, unread)
    if not TORCH:
        pytest.skip("the threads draw from PyTorch's generator, but PyTorch is not installed")
    (tmp_path / "program.py").write_text(script)
    run = run_program(tmp_path / "program.py", ignored="Warning")
    assert (run.returncode, run.stderr) == (0, "")


def replacing_loaders():
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.nodes import IterableWrapper as Source
    from torchdata.nodes import Loader, ParallelMapper
    from torchdata.stateful_dataloader import StatefulDataLoader

    def seeded(x):
        sys.modules["torch"].manual_seed(x)
        return x

    service = MultiProcessingReadingService(2, "fork", on_worker_exit="restart", worker_prefetch_cnt=1)
    node = ParallelMapper(Source(range(20)), seeded, 2, method="process", on_worker_exit="restart")
    return {
        "DataLoader2": DataLoader2(IterableWrapper(range(20)).sharding_filter().map(seeded), reading_service=service),
        "StatefulDataLoader": StatefulDataLoader(
            range(20), None, num_workers=2, collate_fn=seeded, prefetch_factor=1, on_worker_exit="restart"
        ),
        "nodes": Loader(node),
    }


@pytest.mark.filterwarnings("ignore:.*was killed by SIGKILL")
@pytest.mark.parametrize("name", ["DataLoader2", "StatefulDataLoader", "nodes"])
def test_a_worker_is_replaced_while_a_thread_holds_the_device_lock_of_torch(name):
    torch = pytest.importorskip("torch", reason="the test takes a lock of torch")
    loader = replacing_loaders()[name]
    iterator = iter(loader)
    items = [next(iterator)]
    holds, over = threading.Event(), threading.Event()

    def hold():
        with torch.cuda._initialization_lock:
            holds.set()
            over.wait(200)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holds.wait(60)
        os.kill(loader.worker_pids()[0], signal.SIGKILL)
        items += iterator
    finally:
        over.set()
        thread.join()
        getattr(loader, "shutdown", lambda: None)()
    assert items == list(range(20))


def run_apart(script, output):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONUNBUFFERED", None)  # Python uses a lock only for buffered output
    command = [sys.executable, "-W", "ignore", "-c", script]
    run = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.PIPE, timeout=250)
    assert not run.stderr, run.stderr.decode()
    assert run.returncode == 0


#: The program registers its fork hook before the package does, because Python calls these hooks in reverse order.
IMPORTING = """
import gc, os, sys, threading, time

def import_meanwhile():
    if "{library}" not in sys.modules and "torchdata.dataloader2" in sys.modules:
        threading.Thread(target=__import__, args=["{library}"]).start()
        while "{library}" not in sys.modules:
            time.sleep(0)

def needs_it(x):
    import {library}
    return x

if "{when}" == "right before the fork":
    os.register_at_fork(before=import_meanwhile)
from process_checks import loader
from torchdata.datapipes.iter import IterableWrapper
served = loader(IterableWrapper(range(10)).sharding_filter().map(needs_it))
if "{when}" == "before the start":
    import_meanwhile()
assert sorted(served) == list(range(10))
assert "{library}" in sys.modules
served.shutdown()
gc.freeze()  # the interpreter then exits faster
"""


@pytest.mark.parametrize(
    ("library", "when"),
    [("numpy", "before the start"), ("numpy", "right before the fork"), ("torch", "right before the fork")],
)
def test_loaders_start_while_a_thread_imports_what_children_need(library, when, unread):
    pytest.importorskip(library, reason=f"the test imports {library}")
    run_apart(IMPORTING.format(library=library, when=when), unread)


def hang():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@pytest.fixture
def lock(monkeypatch, tmp_path):
    def add(take):
        main, marks = os.getpid(), tmp_path / "forked"
        marks.touch()

        def count_and_take():
            assert os.getpid() != main
            file = os.open(marks, os.O_WRONLY | os.O_APPEND)
            os.write(file, b"|")
            number = os.lseek(file, 0, os.SEEK_CUR)  # the numbers differ even if several processes write
            os.close(file)
            take(number)

        monkeypatch.setattr(fork, "LOCKS", {**fork.LOCKS, "plays the accordion": count_and_take})
        monkeypatch.setattr(fork, "_BEGUN", len(fork.LOCKS) + 1)
        return lambda: marks.stat().st_size

    monkeypatch.setattr(fork, "LIMITS", (1.0, 1.0, 60.0, 60.0))  # long limits, because a busy machine delays processes
    return add


@pytest.mark.parametrize("reaped", ["by us", "by the kernel"])
def test_a_child_that_finds_a_lock_held_is_forked_again(lock, reaped):
    forked = lock(lambda number: hang() if number < 3 else None)
    action = signal.SIG_DFL if reaped == "by us" else signal.SIG_IGN
    with handling(action, signal.SIGCHLD), loader(IterableWrapper(range(20)), 1) as served:
        assert list(served) == list(range(20))
    assert forked() == 3


def test_only_the_failed_child_of_several_is_forked_again(lock, monkeypatch):
    forked = lock(lambda number: hang() if number == 2 else None)
    monkeypatch.setattr(fork, "LIMITS", (2.0, 60.0))
    with loader(IterableWrapper(range(20)).sharding_filter(), 3) as served:
        assert sorted(served) == list(range(20))
    assert forked() == 4


def test_an_error_names_the_owner_of_a_lock_that_is_never_free(lock, monkeypatch):
    forked = lock(lambda _: hang())
    monkeypatch.setattr(fork, "LIMITS", (0.5,) * 4)
    with pytest.raises(
        OSError, match=re.escape("worker process 0 could not be started: it was forked 4 times")
    ) as error:
        iter(loader(IterableWrapper(range(20)), 1))
    assert "each time another thread" in str(error.value)
    assert "this thread plays the accordion" in str(error.value)
    assert "multiprocessing_context='forkserver'" in str(error.value)
    assert forked() == 4


def test_ctrl_c_does_not_wait_for_a_held_lock(lock, monkeypatch):
    lock(lambda _: hang())
    monkeypatch.setattr(fork, "LIMITS", (1000.0,))
    monkeypatch.setattr(fork, "TIMEOUT", 1000.0)

    def press():
        wait_for(lambda: len(children()) >= 1)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    served = loader(IterableWrapper(range(20)).sharding_filter(), 2)
    pressing = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        pressing.start()
        iter(served)
    pressing.join()


def test_a_child_that_exits_before_it_begins_is_reported(lock):
    forked = lock(lambda _: os._exit(3))
    with pytest.raises(RuntimeError, match=r"worker process 0 \(pid \d+\) exited with code 3"):
        list(loader(IterableWrapper(range(20)), 1))
    assert forked() == 1


@pytest.mark.usefixtures("children_are_killed_soon")
def test_the_main_process_does_not_wait_endlessly_for_a_stopped_child(lock, monkeypatch):
    lock(lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    monkeypatch.setattr(fork, "TIMEOUT", 0.2)
    with (
        loader(IterableWrapper(range(20)), 1, timeout=0.5) as served,  # a stopped worker sends no item
        pytest.raises(TimeoutError, match="no item came from worker process 0 within"),
    ):
        list(served)


def test_alarms_of_the_program_are_not_changed():
    def on_alarm(_number, _frame):
        raise AssertionError("no alarm was set")

    def alarms(_x):
        blocked = signal.SIGALRM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return signal.getsignal(signal.SIGALRM) is on_alarm, blocked, signal.getitimer(signal.ITIMER_REAL)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    with handling(on_alarm, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 100)
        with loader(IterableWrapper([0]).map(alarms), 1) as served:
            assert list(served) == [(False, True, (0.0, 0.0))]  # workers must not have the main process's handler
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
