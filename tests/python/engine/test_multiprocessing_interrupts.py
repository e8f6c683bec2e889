"""Ctrl-C in a terminal raises one KeyboardInterrupt at once in the main process, and leaves no output or process."""

import errno
import json
import os
import random
import signal
import statistics
import sys
import textwrap
import threading
import time

import pytest

from handlers import handling
from process_checks import METHODS, children, has_exited, loader, nothing_is_left, wait_for, with_methods  # noqa: F401
from programs import run
from terminal import Terminal
from torchdata._engine.processes.interrupts import InterruptsDeferred, interrupt_waits, interrupts_blocked
from torchdata._engine.processes.shutdown import Shutdown
from torchdata.datapipes.iter import IterableWrapper

#: Tests with spawned workers press Ctrl-C less often, because these workers take a second to start.
TRIES = {"fork": 3, "forkserver": 3, "spawn": 1}

SCRIPT = """
import gc, json, os, sys, time
from leftovers import children
from torchdata._engine.processes import shutdown
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
WORKERS = 3
def nap(x):
    time.sleep(0.002)
    return x
def stuck(x):
    if x == 40:
        time.sleep(1000)
    return x
def make(method, f):
    pipe = IterableWrapper(range(100_000)).sharding_filter().map(f)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(WORKERS, method))
def say(line):
    os.write(1, f"{line}\\n".encode())  # unlike `print`, one call writes the whole line
def idle():
    while True:
        time.sleep(0.01)
def start(method):
    say("ready")
    dl = make(method, nap)
    next(iter(dl))
    say("done")
    idle()
def iterate(method):
    dl = make(method, nap)
    iterator = iter(dl)
    next(iterator)
    say("ready")
    for i, _ in enumerate(iterator):
        if i == 30:
            say("done")
def shut_down(method, f=nap):
    dl = make(method, f)
    iterator = iter(dl)
    next(iterator)
    try:
        say("ready")
        dl.shutdown()
        say("done")
        idle()
    finally:
        dl.shutdown()
def shut_down_stuck(method):
    shutdown.ASKED = 0.5
    shut_down(method, stuck)
def drop(method):
    def loop():
        dl = make(method, nap)
        next(iter(dl))
        say("ready")
    loop()  # deletes the loader
    say("done")
    idle()
def main(phase, method, tries):
    for _ in range(tries):
        interrupts = 0
        try:
            try:
                globals()[phase](method)
            except KeyboardInterrupt:
                interrupts += 1
            gc.collect()
            left = len(children())
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupts += 1
        say(json.dumps({"interrupts": interrupts, "left": left}))
if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    say("end")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return str(path)


def press_at_random(script, phase, method, tries, seed=0):
    moments, seconds, noise = random.Random(seed), [], []
    with Terminal(script, phase, method, str(1 + tries)) as terminal:
        duration = None  # Ctrl-C is pressed after the end of the first attempt, which measures the duration.
        for _ in range(1 + tries):
            while (line := terminal.line()) != "ready":
                assert line, f"the program has ended: {noise}"
                noise.append(line)
            begun = time.monotonic()
            if duration is None:
                assert terminal.line() == "done"
                duration = time.monotonic() - begun
            else:
                time.sleep(moments.uniform(0, 1.2 * duration))
            terminal.press_ctrl_c()
            pressed = time.monotonic()
            while not (line := terminal.line()).startswith("{"):
                assert line, f"the program does not react to Ctrl-C: {noise}"
                if line != "done":
                    noise.append(line)
            seconds.append(time.monotonic() - pressed)
            assert json.loads(line) == {"interrupts": 1, "left": 0}, (line, noise)
        assert terminal.line() == "end"
        assert terminal.process.wait(120) == 0
        deadline = time.monotonic() + 30
        while terminal.processes():  # the resource tracker and the fork server end after the main process
            assert time.monotonic() < deadline, "a process still runs"
            time.sleep(0.01)
    return seconds, noise


# Only some combinations of phases and start methods are tested here, because the random drivers cover all combinations.
@pytest.mark.parametrize(
    ("method", "phase"),
    [*with_methods("start", "iterate", "shut_down", "shut_down_stuck", "drop"), ("forkserver", "shut_down")],
)
def test_ctrl_c_at_any_moment_raises_one_keyboard_interrupt_and_leaves_nothing(script, phase, method):
    # `shut_down_stuck` is tried only once, because shutting down a hanging worker takes long.
    tries = 1 if phase == "shut_down_stuck" else TRIES[method]
    seconds, noise = press_at_random(script, phase, method, tries)
    assert noise == []
    assert statistics.median(seconds) < 30.0  # the limit detects a hang, and measures nothing


def test_ctrl_c_while_the_fork_server_imports_the_program_does_not_wait_for_it(script):
    """After Ctrl-C has interrupted the start of a fork server, the next loader must start a new fork server."""
    slow = """
import os, time
if __name__ == "__mp_main__" and not os.path.exists(__file__ + ".fast"):
    time.sleep(60)
"""
    with open(script, "r+") as file:
        text = file.read()
        file.seek(0)
        file.write(slow + text)
    with Terminal(script, "start", "forkserver", "2") as terminal:
        assert terminal.line() == "ready"
        time.sleep(0.5)  # During this sleep, the fork server usually begins to import the program.
        with open(script + ".fast", "w"):
            terminal.press_ctrl_c()
            assert json.loads(terminal.line(30)) == {"interrupts": 1, "left": 0}
        assert [terminal.line(), terminal.line()] == ["ready", "done"]
        terminal.press_ctrl_c()
        assert json.loads(terminal.line()) == {"interrupts": 1, "left": 0}
        assert terminal.line() == "end"
        assert terminal.process.wait(120) == 0


class Handler:
    def __init__(self):
        self.calls = 0

    def __call__(self, number, frame):
        self.calls += 1


#: A module that makes the forking process kill itself before it returns the id of its first child.
LATE_SERVER = """
import os, signal, time
from torchdata._engine.processes.forking_process import _ForkingProcess
reply = _ForkingProcess.reply
def reply_late(process, number, content):
    if number is not None and not os.path.exists(__file__ + ".number"):
        with open(__file__ + ".number", "w") as file:
            file.write(str(content))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    reply(process, number, content)
_ForkingProcess.reply = reply_late
"""

SIGNALLED = """
import signal
import late_server
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    pipe = IterableWrapper(range(10)).sharding_filter()
    print(list(DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "forkserver"))))
"""


def test_a_child_with_an_unknown_process_id_takes_nothing_from_its_replacement(tmp_path):
    (tmp_path / "late_server.py").write_text(LATE_SERVER)
    done = run(SIGNALLED, file=tmp_path / "program.py")  # the timer may end the program at its exit
    assert (done.stdout, done.stderr) == (f"{list(range(10))}\n", "")
    unknown = int((tmp_path / "late_server.py.number").read_text())
    wait_for(lambda: has_exited(unknown))


@pytest.fixture
def handler():
    with handling(Handler(), signal.SIGINT) as handler:
        yield handler


def blocked():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_held_signal_is_delivered_once_to_the_user_s_handler(handler):
    with InterruptsDeferred() as held:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert (held.noted, handler.calls) == (True, 0)
    assert handler.calls == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_blocked_signal_is_noted_when_the_block_ends(handler):
    with InterruptsDeferred() as held:
        with interrupts_blocked():
            signal.raise_signal(signal.SIGINT)
            assert interrupt_waits()
            assert not held.noted
        assert held.noted
        held.deliver()
        assert handler.calls == 1
        assert not interrupt_waits()
    assert handler.calls == 1
    assert not blocked()


def test_a_held_interrupt_is_raised_before_the_error_that_ended_the_hold():
    with pytest.raises(KeyboardInterrupt) as caught, InterruptsDeferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the start failed")
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_held_if_ctrl_c_is_ignored():
    with handling(signal.SIG_IGN, signal.SIGINT):
        with InterruptsDeferred() as held:
            signal.raise_signal(signal.SIGINT)
        assert not held.noted
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_user_code_installs_in_between_is_kept(handler):
    other = Handler()
    with InterruptsDeferred():
        signal.signal(signal.SIGINT, other)
    assert signal.getsignal(signal.SIGINT) is other


@pytest.mark.parametrize("method", METHODS)
def test_a_start_during_which_a_handler_returns_is_complete_also_in_a_thread(handler, method):
    received = []

    def read():
        with loader(IterableWrapper(range(20)).sharding_filter(), 2, multiprocessing_context=method) as dl:
            iterator = iter(dl)
            begun.set()
            received.append(list(iterator))
        received.append(blocked())

    def press():
        is_begun = False
        while not is_begun:
            is_begun = begun.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.002)

    for first, second in ((press, read), (read, press)):
        begun, calls = threading.Event(), handler.calls
        thread = threading.Thread(target=first)
        thread.start()
        second()
        thread.join()
        assert handler.calls > calls
    assert received == [list(range(20)), False] * 2
    assert signal.getsignal(signal.SIGINT) is handler
    assert not blocked()


def test_an_error_names_a_process_that_cannot_be_started_and_ctrl_c_works(handler, monkeypatch):
    forks = []

    def fork_once():
        forks.append(1)
        if len(forks) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real_fork()

    real_fork = os.fork
    monkeypatch.setattr(os, "fork", fork_once)
    with (
        loader(IterableWrapper(range(9)).sharding_filter(), 3) as dl,
        pytest.raises(BlockingIOError, match="worker process 1 could not be started: .*fewer workers"),
    ):
        list(dl)
    assert signal.getsignal(signal.SIGINT) is handler
    assert not blocked()
    assert children() == []


def test_an_interrupted_shutdown_continues_with_the_next_call(monkeypatch):
    dl = loader(IterableWrapper(range(100)).sharding_filter())
    next(iter(dl))
    pids = dl.reading_service._children.pids

    def cut_off(_shutdown, _later=False):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Shutdown, "run", cut_off)
        dl.shutdown()
    assert not any(map(has_exited, pids))
    with pytest.raises(RuntimeError, match="shut down"):
        iter(dl)
    dl.shutdown()
    assert all(map(has_exited, pids))
