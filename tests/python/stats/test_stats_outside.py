"""Another process can find loaders, read their counters and draw their graphs, even if the loaders hang."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from leftovers import descriptors, shared_files
from process_checks import FINDS_MEMORY, loader, no_earlier_loader, nothing_is_left, wait_for  # noqa: F401
from terminal import Screen
from torchdata._observe.outside.attaching import NoLoaderError, attach, find
from torchdata._observe.outside.stacks import kernel_state
from torchdata._observe.outside.stalls import StallWarning
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [pytest.mark.alone, *FINDS_MEMORY]

PROGRAM = textwrap.dedent(
    """
    import ctypes, os, sys, time
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    how = sys.argv[1]

    def step(x):
        if x == 21 and how in ("asleep", "thread"):
            time.sleep(1000)
        if x == 21 and how == "native":
            ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)  # holds the interpreter's lock
        if x == 21 and how == "stopped":
            os.kill(os.getpid(), 19)
        time.sleep(0.001)
        return x

    def main():
        pipe = IterableWrapper(range(1_000_000)).sharding_filter().map(step)
        if how == "thread":
            pipe = pipe.prefetch(2)
        service = MultiProcessingReadingService(2, multiprocessing_context="fork")
        with DataLoader2(pipe, reading_service=service, stats="full", stall_warning=float(sys.argv[2])) as loader:
            for number, _ in enumerate(loader):
                if number == 10:
                    print("loads", flush=True)

    main()
    """
)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "loading.py"
    path.write_text(PROGRAM)
    started = []

    def start(how, stall_warning=60.0):
        process = subprocess.Popen(
            [sys.executable, str(path), how, str(stall_warning)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == "loads\n", process.stderr.read()
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # a test may already have killed the process
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "torchdata", *map(str, arguments)], capture_output=True, text=True, timeout=250
    )


def test_a_loader_is_found_through_its_process_and_its_workers_and_cannot_be_changed(program):
    process = program("on")
    (attached,) = attach(process.pid)
    assert attached.pid == process.pid
    assert "loading.py" in attached.command
    stats = attached.stats()
    assert stats.items >= 10
    assert [one.name for one in stats.processes] == ["main", "worker process 0", "worker process 1"]
    (again,) = attach(stats.workers[1].pid)
    assert again.board.made() == attached.board.made()
    before = stats.items
    wait_for(lambda: attached.stats().items > before + 50)
    assert any(pipe.own_seconds for pipe in attached.stats().pipes)
    mappings = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:torchdata-stats" in line]
    assert mappings
    assert all(line.split()[1].startswith("r--") for line in mappings)
    with pytest.raises(Exception, match="observes"):
        attached.board.bind(0, [], 0)


def test_loaders_of_one_and_of_two_programs_are_distinguished(program):
    first, second = program("on"), program("on")
    assert {one.pid for one in find()} >= {first.pid, second.pid}
    with DataLoader2(IterableWrapper(range(5))) as one, loader(IterableWrapper(range(7)).sharding_filter()) as two:
        assert len(list(one)) == 5
        assert len(list(two)) == 7
        assert [attached.stats().items for attached in find(os.getpid())] == [5, 7]
    assert find(os.getpid()) == []
    with pytest.raises(NoLoaderError, match=f"process {os.getpid()}"):
        attach(os.getpid())


def test_without_a_terminal_one_table_is_printed_and_json_for_scripts(program):
    process = program("on")
    table = run("top", process.pid)
    assert table.returncode == 0, table.stderr
    assert "worker process 1" in table.stdout
    assert "Mapper(step)" in table.stdout
    assert "limits you" in table.stdout or "too early" in table.stdout
    (found,) = json.loads(run("stats", process.pid, "--json").stdout)
    assert found["pid"] == process.pid
    assert found["processes"][1]["items"] > 0
    assert found["verdict"]


def test_processes_without_a_loader_and_that_do_not_exist_are_named():
    result = run("top", os.getpid())
    assert (result.returncode, result.stdout) == (1, "")
    assert f"no running loader of process {os.getpid()}" in result.stderr
    exited = subprocess.Popen(["true"])
    exited.wait()
    result = run("stats", exited.pid)
    assert result.returncode == 1
    assert f"no process {exited.pid}" in result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(program):
    process = program("on")
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                find(process.pid)
            except PermissionError as error:
                os._exit(0 if "another user" in str(error) and find() == [] else 3)
            os._exit(2)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def stacks_once(attached, *words):
    found = {}

    def hangs():
        found.update({head.partition(" (")[0]: (head, stack) for head, stack in attached.stacks()})
        return all(word in "".join(found["worker process 1"]) for word in words)

    wait_for(hangs)
    return found


@pytest.mark.parametrize("how", ["asleep", "native"])
def test_a_hung_worker_shows_its_stack_and_continues(program, how):
    process = program(how)
    (attached,) = attach(process.pid)
    wait_for(lambda: attached.stats().workers[1].items == 10)
    wait_for(lambda: attached.stats().main.waits_for == "worker process 1")
    stacks = stacks_once(attached, "asleep, in ", "in step")
    head, stack = stacks["worker process 1"]
    assert ("nanosleep" in head) == (how == "asleep")
    assert stack.splitlines()[1].endswith("in step")
    assert "loading.py" in stack
    assert "_engine" not in stack, "the stack omits frames of the engine"
    assert "main" in stacks["main"][1]
    wait_for(lambda: attached.stats().main.waits_seconds > 0.3)
    # A request for stacks neither ends a process nor interrupts a sleep.
    attached.stacks()
    assert process.poll() is None
    wait_for(lambda: kernel_state(attached.stats().workers[1].pid).startswith("asleep"))


def test_the_stack_of_a_hanging_worker_thread_is_shown(program):
    process = program("thread")
    (attached,) = attach(process.pid)
    wait_for(lambda: attached.stats().main.waits_for == "worker process 1")
    stacks_once(attached, "asleep, in ", "prefetching.py", "in step")
    for _ in range(3):  # Repeated requests must have no side effects.
        stacks = {head.partition(" (")[0]: stack for head, stack in attached.stacks()}
        main, *threads = stacks["worker process 1"].split("\nThread ")
        # While the prefetching thread hangs, the worker waits for an item, or for the thread to pause for a snapshot.
        assert "epoch_runner.py" in main or "in snapshot" in main, main
        (thread,) = threads
        assert thread.startswith("torchdata-prefetch, stack (most recent call first):")
        assert thread.splitlines()[1].endswith("in step"), thread
        assert "Thread" not in stacks["main"]
    assert process.poll() is None
    assert attached.stats().workers[1].waits_seconds == 0, "only the thread hangs, not the worker"


def test_a_stopped_process_is_shown_as_stopped(program):
    process = program("stopped")
    (attached,) = attach(process.pid)
    wait_for(lambda: kernel_state(attached.stats().workers[1].pid).startswith("stopped"))
    stacks = {head.partition(" (")[0]: (head, stack) for head, stack in attached.stacks()}
    head, stack = stacks["worker process 1"]
    assert "stopped (by SIGSTOP" in head
    assert "Python stack is not available" in stack


def test_a_warning_names_the_waiting_process_its_target_and_the_location(program):
    process = program("native", 0.4)
    text = ""
    while "in step" not in text:
        text += process.stderr.readline()
    assert "StallWarning: no item has come for" in text
    assert "main waits for worker process 1, which is running" in text
    assert "(pid" in text
    assert "asleep, in" in text


def nap(x):
    time.sleep(1.5 if x == 3 else 0)
    return x


@contextlib.contextmanager
def warning_once_it_is_up(pipe, seconds, **options):
    service = MultiProcessingReadingService(2, multiprocessing_context="fork", **options)
    with warnings.catch_warnings(), DataLoader2(pipe, reading_service=service, stall_warning=seconds) as dl:
        warnings.simplefilter("ignore")
        list(dl)
        warnings.simplefilter("error")
        yield dl


def test_the_process_at_fault_may_be_the_dispatching_one():
    pipe = IterableWrapper(range(8)).map(nap).sharding_round_robin_dispatch().map(abs)
    with (
        warning_once_it_is_up(pipe, 0.5) as dl,
        pytest.warns(StallWarning, match="which waits for the dispatching process, which is running"),
    ):
        assert sorted(dl) == list(range(8))


def test_waiting_for_a_paused_loader_causes_no_warning():
    pipe = IterableWrapper(range(200)).sharding_filter().map(abs).prefetch(2)
    with warning_once_it_is_up(single(pipe), 0.4, worker_prefetch_cnt=1, main_prefetch_cnt=0) as dl:
        warnings.simplefilter("ignore")  # only the wait at the limit must cause no warning
        iterator = iter(dl)
        iterator.limit(5)
        assert list(iterator) == [0, 1, 2, 3, 4]
        warnings.simplefilter("error")
        time.sleep(1.0)
        warnings.simplefilter("ignore")
        iterator.resume()
        iterator.limit(None)
        assert len(list(iterator)) == 195


def single(pipe):
    pipe.is_replicable = lambda: False
    return pipe


def test_a_second_loader_causes_no_warning():
    with warning_once_it_is_up(IterableWrapper(range(100)).sharding_filter(), 0.5) as dl:
        for _ in range(20):
            asked = time.monotonic()
            try:
                for _ in dl:
                    time.sleep(0.01)
                    asked = time.monotonic()
                return
            except StallWarning:
                assert time.monotonic() - asked >= 0.5, "a paused process must be reported"
    raise AssertionError("this machine pauses too often for the test")


@pytest.fixture
def top():
    pytest.importorskip("rich")
    pytest.importorskip("pyte")
    opened = []

    def start(*arguments, **size):
        screen = Screen("-m", "torchdata", "top", *map(str, arguments), "--interval", "0.2", **size)
        opened.append(screen)
        return screen

    yield start
    for screen in opened:
        screen.close()


def test_the_live_view_shows_processes_pipes_and_the_diagnosis_and_leaves_no_resources(program, top):
    process = program("on")
    before = descriptors(process.pid), shared_files()
    screen = top(process.pid, rows=40)
    screen.wait("worker process 1", "Mapper(step)", "items/s", "q quit   s stacks\n")
    screen.wait("limits you")
    narrow, low = top(process.pid, rows=24, columns=80), top(process.pid, rows=7)
    narrow.wait("worker process 1", "Mapper(step)", "items/s")
    assert not any("…" in line for line in narrow.read().splitlines() if "worker process" in line)
    low.wait("items/s", "q quit   s stacks   ", "more lines do not fit")
    # If the screen has only seven rows, its last row contains the number of hidden lines.
    wait_for(lambda: f" {len(screen.read().rstrip().splitlines()) - 7} more lines" in low.read())
    for one in (screen, narrow, low):
        one.press("q")
        assert one.end() == 0
    assert process.poll() is None
    wait_for(lambda: descriptors(process.pid) <= before[0])  # A running program may have a file open for a moment.
    assert shared_files([screen.pid, narrow.pid, low.pid]) == before[1]  # files of other programs do not count
    assert "worker process 1" in attach(process.pid)[0].stats().processes[2].name


def test_the_live_view_shows_the_stacks_of_a_hung_loader(program, top):
    process = program("asleep")
    screen = top(process.pid)
    screen.wait("waiting for items")
    screen.press("s")
    screen.wait("in step", "asleep, in hrtimer_nanosleep")
    screen.press("s")
    screen.wait("Mapper(step)")
    screen.press("\x03")
    assert screen.end() in (0, 130)


def test_the_live_view_shows_two_loaders_and_ends_with_the_last(program, top):
    first, second = program("on"), program("on")
    screen = top(rows=400)  # The screen is large, because it may also show loaders of other programs.
    screen.wait(f"pid {first.pid}", f"pid {second.pid}")
    single = top(first.pid)
    single.wait(f"pid {first.pid}")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert single.end() == 0
    screen.wait(f"pid {second.pid}")
    screen.press("q")
    assert screen.end() == 0
