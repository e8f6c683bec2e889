"""Presses Ctrl-C at random moments, from a separate process."""

import collections
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from handlers import handling
from waiting import wait_for

PRESSER = """
import os, random, signal, sys, time
moments = random.Random(int(sys.argv[2]))
print("up", flush=True)
while sys.stdin.buffer.raw.read(1) == b"\\n":
    time.sleep(moments.random() * 0.004)
    os.kill(int(sys.argv[1]), signal.SIGINT)
"""


class Presser:
    def __init__(self, seed: int) -> None:
        command = [sys.executable, "-c", PRESSER, str(os.getpid()), str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdout.readline() == b"up\n"  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]

    def again(self) -> None:
        self._process.stdin.write(b"\n")  # type: ignore[union-attr]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # The process has already exited.
            self._process.stdin.write(b"q")  # type: ignore[union-attr]  # closing is no use: workers hold it, too
        self._process.wait(120)
        self._process.stdin.close()  # type: ignore[union-attr]


class _Armed:
    armed = False

    def __call__(self, *_: Any) -> None:
        if self.armed:
            raise KeyboardInterrupt


@pytest.fixture
def interrupts_raise() -> Iterator[None]:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def await_held_back() -> None:
    wait_for(lambda: all(thread.name != "torchdata-interrupt" for thread in threading.enumerate()))


def pressed(iterator: Iterator[Any], seed: int, look: Callable[[list[Any]], object] = len) -> tuple[list[Any], int]:
    got: list[Any] = []
    presses = 0
    handler = _Armed()
    before = signal.signal(signal.SIGINT, handler)
    presser = Presser(seed)
    try:
        while True:
            try:
                presser.again()
                handler.armed = True
                got.extend(iterator)  # Ctrl-C loses no item, because `extend` loops in C.
                handler.armed = False  # if an earlier signal interrupts this line, the loop runs once more and ends
                break
            except KeyboardInterrupt:
                handler.armed = False
                presses += 1
            look(got)
    finally:
        presser.end()
        await_held_back()
        signal.signal(signal.SIGINT, before)
    return got, presses


class AtCall:
    """Calls `act` at the `number`-th event. An event is the start of a Python function or the return of a C function.
    CPython runs signal handlers only when a Python function starts, a C function returns, or a loop repeats."""

    def __init__(self, number: int) -> None:
        self.left = number

    def act(self) -> None:
        signal.raise_signal(signal.SIGINT)

    def __call__(self, _frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                self.act()


def read_until_call(iterator: Iterator[Any], number: int) -> list[Any] | None:
    """Returns the items before an interruption at call `number`, or None if the loop ends before this call."""
    got: list[Any] = []
    at_call = AtCall(number)
    with contextlib.suppress(KeyboardInterrupt):
        sys.setprofile(at_call)
        got.extend(iterator)  # `extend` loops in C
        sys.setprofile(None)
    return None if at_call.left > 0 else got


def check_each_call(build: Callable[[], Any], step: int = 1) -> int:
    """Interrupts a loader at every `step`-th function call. No item may be lost. Returns the number of interrupts."""
    with build() as made:
        epochs = [[*map(repr, made)] for _ in range(2)]
    number = 0
    while True:
        number += step
        with build() as made:
            iterator = iter(made)
            got = read_until_call(iterator, number)
            if got is None:
                return number // step - 1
            state = pickle.loads(pickle.dumps(made.state_dict()))
            got, rest = [*map(repr, got)], [*map(repr, iterator)]
            assert [got + rest, [*map(repr, made)]] == epochs, f"interrupted at call {number}"
        if rest:
            with build() as other:
                other.load_state_dict(state)
                assert [*map(repr, other)] == rest, f"the state after an interruption at call {number}"


class SavingAtCall(AtCall):
    def __init__(self, loader: Any, number: int) -> None:
        super().__init__(number)
        self.loader, self.state = loader, None

    def act(self) -> None:
        self.state = pickle.loads(pickle.dumps(self.loader.state_dict()))


def check_states_at_each_call(build: Callable[[], Any], step: int) -> int:
    """Saves a state in a signal handler at each `step`-th function call, and resumes from it. Returns how often."""
    with build() as made:
        epochs = [[*map(repr, made)] for _ in range(2)]
    number = 0
    while True:
        number += step
        got: list[Any] = []
        with build() as made:
            iterator, saving = iter(made), SavingAtCall(made, 0)
            with handling(lambda *_, got=got, saving=saving: got.append(saving.act()), signal.SIGINT):
                sys.setprofile(AtCall(number))
                collections.deque(map(got.append, iterator), 0)
                sys.setprofile(None)
        if saving.state is None:
            return number // step - 1
        position = got.index(None)  # `act` returns None
        assert [repr(item) for item in got if item is not None] == epochs[0], f"after a state at call {number}"
        if position < len(epochs[0]):
            with build() as other:
                other.load_state_dict(saving.state)
                assert [*map(repr, other)] == epochs[0][position:], f"at call {number}"


@contextlib.contextmanager
def alarm(seconds: float | None, handle: Callable[..., Any] | None = None) -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGINT)]
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if seconds is not None:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            await_held_back()
        finally:
            for number, handler in before:
                signal.signal(number, handler)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def press(*_: Any) -> None:
    signal.raise_signal(signal.SIGINT)
