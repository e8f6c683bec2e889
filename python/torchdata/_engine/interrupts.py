"""Ctrl-C at moments that must not be cut in two: held back, and delivered at the next safe one.

Role: Python raises `KeyboardInterrupt` wherever main's code happens to be. In the hooks that run around a fork CPython
ignores it; in the middle of starting or ending a child it leaves one that nobody knows. So main notes it there and
lets it through between two steps. And a child must never come to see Ctrl-C, which the terminal sends to all processes
of the program, before it ignores it: it inherits a mask that keeps the signal from it.

Python handles signals in the main thread alone, and allows only it to change handlers; the mask is each thread's own.
What the user's program has done with the signal stays: a handler of its own is what is called later, and where Ctrl-C
is ignored or kills, nothing is held.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["InterruptsDeferred", "StartGivenUp", "ignore_interrupts", "interrupt_waits", "interrupts_blocked"]

#: Seconds between two looks at whether the main thread has left what must not be interrupted.
LATER = 0.001
#: Methods that Python calls where it ignores what they raise: its own, and that of `torchdata._native.Finalized`.
FINALISERS = ("__del__", "_finalize")


class StartGivenUp(Exception):
    """Ctrl-C was pressed while the start of a child waited, and could be taken back as a whole."""


class InterruptsDeferred:
    """Context in which Ctrl-C is noted, and delivered at its end or when `deliver` is called.

    It does nothing in other threads than the main one, where no handler runs.

    Args:
        later: deliver it only when the finaliser (a `__del__`, a callback of a weak reference) that holds it has
            returned, as an exception could not leave that.
        noted: Ctrl-C was pressed already, and is to be delivered.
    """

    #: The one whose handler is installed.
    innermost: InterruptsDeferred | None = None

    def __init__(self, later: bool = False, noted: bool = False) -> None:
        self._later = later
        self._noted = noted
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._outer: InterruptsDeferred | None = None

    def __enter__(self) -> InterruptsDeferred:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler, self._outer = handler, InterruptsDeferred.innermost
            signal.signal(signal.SIGINT, self._note)  # raises what came before it, and nothing from here on
            InterruptsDeferred.innermost = self
        return self

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._noted = True

    @property
    def noted(self) -> bool:
        """Whether Ctrl-C was pressed and is not delivered yet."""
        return self._noted

    def deliver(self) -> None:
        """Does now what Ctrl-C would have done, if it was pressed: most of all, raises `KeyboardInterrupt`."""
        if self._noted and self._handler is not None:
            self._noted = False
            self._handler(signal.SIGINT, sys._getframe(1))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handler is None:
            return
        InterruptsDeferred.innermost = self._outer
        # Else the user's program has put one of its own there meanwhile.
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._handler)
        if self._noted and self._later:
            _press_later()
        else:
            self.deliver()


def interrupt_waits() -> bool:
    """Whether Ctrl-C was pressed and waits to be delivered, in this thread."""
    deferred = InterruptsDeferred.innermost
    if deferred is None or threading.current_thread() is not threading.main_thread():
        return False
    return deferred.noted or signal.SIGINT in signal.sigpending()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Keeps Ctrl-C from this thread, and from the processes and threads that it starts, until they allow it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """What a child does first: ignores Ctrl-C, also one that came while it was blocked, and needs the mask no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _press_later() -> None:
    """Interrupts the main thread as soon as it is in no finaliser any more."""
    main = threading.main_thread().ident or 0

    def press() -> None:
        # Nothing else runs between the last look and the signal: this thread holds the interpreter's lock.
        while _is_in_finaliser(sys._current_frames().get(main)):
            time.sleep(LATER)
        signal.pthread_kill(main, signal.SIGINT)  # in whatever system call it waits

    threading.Thread(target=press, name="torchdata-interrupt", daemon=True).start()


def _is_in_finaliser(frame: FrameType | None) -> bool:
    """Whether the frame, or one that called it, belongs to a finaliser or to the callback of a weak reference."""
    while frame is not None:
        if frame.f_code.co_name in FINALISERS or frame.f_globals.get("__name__") == "weakref":
            return True
        frame = frame.f_back
    return False
