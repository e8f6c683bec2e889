"""If a loader hangs in the main process, a watching thread emits a warning, and this thread never disturbs a fork."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import torchdata
from rank_threads import ThreadGroup, in_ranks
from torchdata._observe.outside.stalls import StallWarning, _watched
from torchdata.dataloader2 import DataLoader2, DistributedReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore::torchdata._observe.outside.stalls.StallWarning")]
PACKAGE_PATH = str(Path(torchdata.__file__).resolve().parents[1])


def watching_threads() -> int:
    found = 0
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/self/task/{number}/comm").read_text().strip() == "torchdata-watch"
    return found


#: A global list, because the loader copies the pipeline, which would also copy a list inside the pipeline.
shown: list[warnings.WarningMessage] = []


def hang_until_two_warnings(item: int) -> int:
    if item == 2:
        wait_for(lambda: len(shown) >= 2)
    return item


def hang_until(condition: Callable[[], bool]) -> Callable[[int], int]:
    def hang(item: int) -> int:
        if item in (2, 3):
            wait_for(condition)
        return item

    return hang


def is_reported(*words: str, without: str = "no such words", of: slice = slice(None)) -> bool:
    texts = ["\nThread ".join(str(one.message).split("\nThread ")[of]) for one in shown]
    return any(all(word in text for word in words) and without not in text for text in texts)


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    global shown
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        yield shown


@pytest.fixture
def a_loader_in_main() -> Iterator[None]:
    """Closes the last loader in the main thread, because only this thread can release the memory for stack traces."""
    with DataLoader2(IterableWrapper([0, 1])) as loader:
        next(iter(loader))
        yield


def test_a_slow_item_of_the_main_process_is_reported_with_its_stack_repeatedly() -> None:
    pipe = IterableWrapper(range(4)).map(hang_until_two_warnings)
    with DataLoader2(pipe, stats="full", stall_warning=0.1) as loader, recorded() as warned:
        assert list(loader) == [0, 1, 2, 3]
    first, second = warned[:2]
    assert first.category is StallWarning
    text = str(first.message)
    assert text.startswith("no item has come for "), text
    assert "main itself is computing it, in Mapper(hang_until_two_warnings)" in text
    assert f"main (pid {os.getpid()}) is " in text
    assert "Stack (most recent call first):" in text
    assert "in hang_until_two_warnings" in text
    assert "in test_a_slow_item" in text
    assert str(second.message) != text
    wait_for(lambda: watching_threads() == 0)


def test_the_thread_of_a_pipe_that_main_waits_for_is_shown() -> None:
    hang = hang_until(lambda: is_reported("in hang", of=slice(1, None)))
    pipe = IterableWrapper(range(4)).map(hang).prefetch(1)
    with DataLoader2(pipe, stall_warning=0.1) as loader, recorded():
        assert list(loader) == [0, 1, 2, 3]


def held_by_a_debugger(item: int) -> int:
    wait = compile("def wait():\n    time.sleep(0.3)", __file__, "exec")
    names = {"__name__": "bdb", "time": time}
    exec(wait, names)
    names["wait"]()  # type: ignore[operator]
    return item


def timed(iterator: Iterator[str], calls: list[float]) -> Iterator[str]:
    while True:
        begun = time.monotonic()
        item = next(iterator, None)
        calls.append(time.monotonic() - begun)
        if item is None:
            return
        yield item


def test_a_long_step_and_a_pause_cause_no_warning() -> None:
    for _ in range(20):
        calls: list[float] = []
        with recorded() as warned, DataLoader2(IterableWrapper(range(6)).map(str), stall_warning=0.05) as loader:
            iterator = iter(loader)
            next(timed(iterator, calls))
            time.sleep(0.3)
            iterator.limit(2)
            assert list(timed(iterator, calls)) == ["1", "2"]
            time.sleep(0.3)
            assert list(timed(iterator, calls)) == []
            assert list(timed(iter(loader), calls)) == [str(n) for n in range(6)]
            wait_for(lambda: watching_threads() == 1)
        if max(calls) < 0.05:  # In a longer epoch, the machine may have paused during a call.
            assert not warned
            return
    raise AssertionError("this machine pauses too often for the test")


def test_a_debugger_causes_no_stall_warning_and_disabled_warnings_stay_off() -> None:
    for _ in range(20):
        pipe = IterableWrapper(range(1)).map(held_by_a_debugger)
        with recorded() as warned, DataLoader2(pipe, stall_warning=0.05) as loader:
            assert list(loader) == [0]
        if not warned:  # A warning is correct if the machine pauses.
            break
    else:
        raise AssertionError("a warning was issued in each attempt")
    with recorded() as warned, DataLoader2(IterableWrapper([0.2]).map(time.sleep), stall_warning=None) as loader:
        assert list(loader) == [None]
        assert watching_threads() == 0
    assert not warned


def test_a_waiting_main_process_is_reported_once(tmp_path: Path) -> None:
    there = tmp_path / "reported"
    pipe = IterableWrapper(range(4)).sharding_filter().map(hang_until(there.exists))
    service = MultiProcessingReadingService(1, "fork")
    with DataLoader2(pipe, reading_service=service, stall_warning=0.2) as loader, recorded() as warned:
        toucher = threading.Thread(target=lambda: (wait_for(lambda: warned), there.touch()))
        iterator = iter(loader)
        assert next(iterator) == 0
        toucher.start()  # The thread must start after the workers were forked.
        assert list(iterator) == [1, 2, 3]
        toucher.join()
    assert all("main waits for worker process 0" in str(one.message) for one in warned)


@pytest.mark.usefixtures("a_loader_in_main")
def test_a_warning_shows_where_a_rank_waits_for_another() -> None:
    hang = hang_until(lambda: is_reported("synchronizing.py", of=slice(1)))

    def read(group: ThreadGroup) -> list[int]:
        pipe = IterableWrapper(range(8)).sharding_filter().map(hang if group.rank else abs)
        service = DistributedReadingService(30, process_group=group)
        with DataLoader2(pipe, reading_service=service, stall_warning=0.1) as loader:
            return list(loader)

    with recorded():
        assert in_ranks(2, read) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_forked_child_has_no_thread_and_starts_one_with_the_next_item() -> None:
    with DataLoader2(IterableWrapper(range(100)), stall_warning=5) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
            wait_for(lambda: watching_threads() == 1)
            child = os.fork()
            if child == 0:
                os._exit(watching_threads() or len(os.listdir("/proc/self/task")) - 1)
            assert watching_threads() == 0, "no thread watches before the next item"
            assert os.waitpid(child, 0)[1] == 0
        assert len(list(iterator)) == 95


def test_signals_are_left_to_the_threads_of_the_program() -> None:
    with DataLoader2(IterableWrapper(range(3)), stall_warning=5) as loader:
        next(iter(loader))
        wait_for(lambda: watching_threads() == 1)
        tasks = [Path(f"/proc/self/task/{number}") for number in os.listdir("/proc/self/task")]
        (watching,) = (task for task in tasks if (task / "comm").read_text().strip() == "torchdata-watch")
        blocked = next(line for line in (watching / "status").read_text().splitlines() if line.startswith("SigBlk:"))
        assert int(blocked.split()[1], 16) >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_forks_of_other_threads_never_find_one_of_its_locks_held() -> None:
    over = threading.Event()

    def forks() -> None:
        while not over.is_set():
            child = os.fork()
            if child == 0:
                inner = DataLoader2(IterableWrapper(range(3)), stall_warning=0.001)
                with contextlib.suppress(BaseException), inner:
                    os._exit(0 if list(inner) == [0, 1, 2] else 1)
                os._exit(2)
            results.append(os.waitpid(child, 0)[1])

    results: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about delays, and about forks in processes with threads
        forker = threading.Thread(target=forks)
        forker.start()
        try:
            with DataLoader2(IterableWrapper(range(100_000_000)), stall_warning=0.001) as loader:
                for _ in loader:
                    if len(results) >= 8:
                        break
        finally:
            over.set()
            forker.join()
    assert not any(results)


def test_a_loader_that_is_deleted_while_it_is_watched_leaves_nothing() -> None:
    before = set(_watched)  # Earlier tests have left these threads behind.
    for _ in range(5):
        iterator = iter(DataLoader2(IterableWrapper(range(3)), stall_warning=0.01))
        next(iterator)
        del iterator
    gc.collect()
    assert set(_watched) <= before
    wait_for(lambda: watching_threads() == 0)


@pytest.mark.usefixtures("a_loader_in_main")
def test_two_loaders_in_two_threads_are_distinguished() -> None:
    with recorded():

        def read(name: str, other: str) -> None:
            def slow(item: int) -> int:
                wait_for(lambda: is_reported(f"in {name}", without=f"in {other}", of=slice(1)))
                return item

            slow.__code__ = slow.__code__.replace(co_name=name)
            with DataLoader2(IterableWrapper(range(1)).map(slow), stall_warning=0.1) as loader:
                assert list(loader) == [0]

        names = ["slow_one", "slow_two"]
        threads = [threading.Thread(target=read, args=pair) for pair in (names, names[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


PROGRAM = """
import sys, threading, time, warnings
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

def hang(item):
    time.sleep(1000)

told, show = threading.Event(), warnings.showwarning

def tell(message, *where):
    show(message, *where)
    if "in hang" in str(message):
        told.set()

warnings.showwarning = tell
loader = DataLoader2(IterableWrapper(range(3)).map(hang), stall_warning=0.1)
if sys.argv[1] == "daemon":
    threading.Thread(target=next, args=(iter(loader),), daemon=True).start()
    told.wait()
else:
    next(iter(loader))
"""


def program(*options: str, how: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PATH}
    command = [sys.executable, *options, "-c", PROGRAM, how]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def test_the_program_exits_cleanly_with_a_hanging_daemon_thread() -> None:
    with program(how="daemon") as process:
        _, error = process.communicate(timeout=250)
    assert process.returncode == 0, error
    assert "StallWarning: no item has come for" in error
    assert "in hang" in error


def test_if_warnings_are_errors_the_reason_is_shown_and_ctrl_c_ends_the_program() -> None:
    with program("-W", "error", how="main") as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("StallWarning: no item has come for" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=250)
    assert process.returncode == -signal.SIGINT
    assert "in hang\nKeyboardInterrupt\n" in error
