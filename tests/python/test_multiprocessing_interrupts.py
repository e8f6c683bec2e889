"""Ctrl-C in a terminal, at any moment: one KeyboardInterrupt in main, soon; nothing printed, no process left."""

from __future__ import annotations

import json
import random
import statistics
import textwrap
import time

import pytest

from process_checks import METHODS
from terminal import Terminal

#: Presses of Ctrl-C in each test, at random moments.
TRIES = 12

SCRIPT = """
import gc, json, sys, time
from process_checks import children, wait_for
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

def say(*words):
    print(*words, flush=True)

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
    shut_down(method, stuck)

def drop(method):
    def loop():
        for x in make(method, nap):
            break
        say("ready")
    loop()
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
    monkeypatch.setenv("PYTHONPATH", ":".join(__import__("sys").path))
    return str(path)


def press_at_random(script, phase, method, tries, seed=0):
    """Lets each try run until a random moment between its "ready" and a little after its "done".

    Returns the seconds from each press to the report, and what the program printed that it should not.
    """
    moments, seconds, noise = random.Random(seed), [], []
    with Terminal(script, phase, method, str(1 + tries)) as terminal:
        duration = None  # measured in the first try, which is interrupted at rest
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
        assert terminal.process.wait(20) == 0
        deadline = time.monotonic() + 5
        while terminal.processes():  # the resource tracker and the fork server end after main
            assert time.monotonic() < deadline, "a process was left behind"
            time.sleep(0.01)
    return seconds, noise


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("phase", ["start", "iterate", "shut_down", "shut_down_stuck", "drop"])
def test_ctrl_c_at_any_moment_is_one_keyboard_interrupt_and_leaves_nothing(script, phase, method):
    seconds, noise = press_at_random(script, phase, method, TRIES)
    assert noise == []
    assert statistics.median(seconds) < 5.0  # a deadline for hanging, not a measurement
