"""A flag can be waited for and set, even if an exception interrupts a waiting or setting call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from torchdata._threads import Flag


@contextmanager
def interrupted(step: int) -> Iterator[None]:
    """Raises KeyboardInterrupt before this step of the interpreter in the block, if the block has enough steps."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupt_everywhere(call: Callable[[Flag], object]) -> Iterator[Flag]:
    """Yields flags whose call was interrupted, each at a later step; only the last flag's call completed."""
    step, ended = 0, False
    while not ended:
        flag = Flag()
        try:
            with interrupted(step):
                call(flag)
                ended = True
        except KeyboardInterrupt:
            pass
        yield flag
        step += 1
    assert step > 10, "it was not interrupted"


def waits_in_a_thread(flag: Flag) -> threading.Thread:
    thread = threading.Thread(target=flag.wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.timeout(120)
def test_a_wait_may_be_interrupted_anywhere() -> None:
    for flag in interrupt_everywhere(lambda flag: flag.wait(0.001)):
        assert not flag.is_set()
        assert not flag.wait(0.001)
        flag.set()
        assert flag.wait(60)


@pytest.mark.timeout(120)
def test_a_wait_that_is_woken_may_be_interrupted_anywhere() -> None:
    def wait(flag: Flag) -> None:
        flag._gate.release()  # as it is if it was set just now
        flag.wait(0.0001)

    for flag in interrupt_everywhere(wait):
        thread = waits_in_a_thread(flag)
        flag.set()
        assert flag.wait(60)
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.timeout(120)
def test_setting_may_be_interrupted_anywhere() -> None:
    for flag in interrupt_everywhere(Flag.set):
        flag.set()
        assert flag.is_set()
        assert flag.wait(60)
