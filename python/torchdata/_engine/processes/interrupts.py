"""Signals at moments that must not be cut in two: held back, and delivered at the next safe one.

Role: Python runs a signal handler wherever main's code happens to be, and the handler may raise there: that of Ctrl-C
does, and a user's of SIGALRM, SIGTERM or SIGUSR1 may. CPython ignores an exception that is raised in the hooks around a
fork; one that is raised in the middle of starting or ending a child leaves a child that nobody knows. So main notes
signals there and lets them through between two steps.

A child must never run a handler of the main process, though a terminal or a cluster sends signals to all processes of
the program. It inherits a mask that keeps them from it until it takes no notice of them (`MainSignals`). A signal that
a child raises itself is another matter: it has its default action, so SIGTERM ends the child.

Python runs handlers in the main thread alone, and allows only it to change them; the mask is each thread's own. A
signal that has no handler in Python is not held: it is ignored, or ends the program, or is a C library's business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torchdata._native import take_no_notice

__all__ = [
    "InterruptsDeferred",
    "MainSignals",
    "StartGivenUp",
    "block_all_but_own_sigterm",
    "interrupt_waits",
    "interrupts_blocked",
    "is_of_handler",
]

#: Seconds between two looks at whether the main thread has left what must not be interrupted.
LATER = 0.001
#: Methods that Python calls where it ignores what they raise: its own, and that of `torchdata._native.Finalized`.
FINALISERS = ("__del__", "_finalize")

#: Signals that can be held. The others cannot be handled, or tell of a fault in the very instruction.
_CAN_BE_HELD = tuple(
    sorted(
        signal.valid_signals()
        - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
        - {signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    )
)
#: Signals that terminals and clusters send to all processes of a program. Children never take notice of them.
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StartGivenUp(Exception):
    """A signal came while the start of a child waited, and the start could be taken back as a whole."""


def _handled() -> list[int]:
    """Signals that this process handles in Python."""
    return [number for number in _CAN_BE_HELD if callable(signal.getsignal(number))]


def is_of_handler(error: BaseException) -> bool:
    """Whether an exception has come out of a signal handler: a function, a method or an object that is called."""
    handlers: list[Any] = [signal.getsignal(number) for number in _handled()]
    functions = [getattr(one, "__func__", one) for one in (*handlers, *(type(one).__call__ for one in handlers))]
    codes = {getattr(function, "__code__", None) for function in functions}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


class InterruptsDeferred:
    """Context in which signals are noted, and delivered at its end or when `deliver` is called.

    It does nothing in other threads than the main one, where no handler runs.

    Args:
        later: deliver them only when the finaliser (a `__del__`, a callback of a weak reference) that holds them has
            returned, as an exception could not leave that.
        noted: Ctrl-C was pressed already, and is to be delivered.
    """

    #: The one whose handlers are installed.
    innermost: InterruptsDeferred | None = None

    def __init__(self, later: bool = False, noted: bool = False) -> None:
        self._later = later
        #: Signals that have come and are not delivered yet, in their order.
        self._noted: list[int] = [signal.SIGINT] if noted else []
        #: The handler of each signal outside.
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._has_begun = self._is_over = False
        self._outer: InterruptsDeferred | None = None

    def __enter__(self) -> InterruptsDeferred:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in _handled():
                self._handlers[number] = signal.getsignal(number)  # type: ignore[assignment] # it is callable
                signal.signal(number, self._note)  # raises what came before it, and nothing of that signal from here on
        except BaseException:
            self._end()
            raise
        self._outer, InterruptsDeferred.innermost = InterruptsDeferred.innermost, self
        self._has_begun = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:  # the user's program has put this handler back, which it had found meanwhile
            self._handlers[number](number, frame)
        elif number not in self._noted:
            self._noted.append(number)

    @property
    def noted(self) -> bool:
        """Whether Ctrl-C was pressed and is not delivered yet."""
        return signal.SIGINT in self._noted

    @property
    def waits(self) -> bool:
        """Whether a signal has come, and is not delivered yet, that the user may want to end a wait.

        SIGCHLD is none: children of anybody's end at any time.
        """
        waiting = {*self._noted, *(signal.sigpending() & self._handlers.keys())}
        return bool(waiting - {signal.SIGCHLD})

    def deliver(self) -> None:
        """Does now what the noted signals would have done: that of Ctrl-C raises `KeyboardInterrupt`, most of all.

        All handlers run, in the order in which the signals have come, though one of them raises.
        """
        if self._noted and self._handlers:
            number = self._noted.pop(0)
            try:
                if number in self._handlers:
                    self._handlers[number](number, sys._getframe(1))
            finally:
                self.deliver()

    def __exit__(self, *exc_info: object) -> None:
        if self._has_begun:
            InterruptsDeferred.innermost = self._outer
            self._end()

    def _end(self) -> None:
        """Puts the handlers back, and delivers what was noted."""
        try:
            self._restore()
        finally:
            try:
                if self._noted and self._later:
                    _send_later(self._noted)
                else:
                    self.deliver()
            finally:
                self._is_over = True

    def _restore(self) -> None:
        raised: BaseException | None = None
        for number, handler in self._handlers.items():
            # Else the user's program has put one of its own there meanwhile.
            while signal.getsignal(number) == self._note:
                try:
                    signal.signal(number, handler)
                except BaseException as error:  # of another signal's handler, which is back already
                    raised = error
        if raised is not None:
            raise raised


def interrupt_waits() -> bool:
    """Whether a signal waits to be delivered, in this thread, that the user may want to end a wait."""
    deferred = InterruptsDeferred.innermost
    return deferred is not None and threading.current_thread() is threading.main_thread() and deferred.waits


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Keeps signals from this thread, and from the processes and threads that it starts, until they allow them.

    These are the signals that children take no notice of (`MainSignals`). SIGCHLD stays.
    """
    blocked = {*_SENT_TO_ALL, *_handled()} - {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        # One after the other: `faulthandler` gives Python's handlers a stack that several at once would overflow.
        for number in blocked - before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_all_but_own_sigterm() -> None:
    """Keeps all signals that can be held from this thread, and from processes that it forks, until they allow them.

    SIGTERM is allowed, because code in this process may raise it to end the process. From other processes it does
    nothing, here and in processes that are forked here.
    """
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _take_no_notice)
        take_no_notice(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, set(_CAN_BE_HELD) - {signal.SIGTERM})


# -- what children do with signals -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MainSignals:
    """Main's handling of signals, for the children that it starts."""

    #: The signals that it handles in Python.
    handled: tuple[int, ...]
    #: The signals that its thread has blocked.
    blocked: tuple[int, ...]

    @classmethod
    def now(cls) -> MainSignals:
        """The handling of this process."""
        return cls(tuple(_handled()), tuple(signal.pthread_sigmask(signal.SIG_BLOCK, [])))

    def leave_to_main(self) -> None:
        """Makes a child ignore signals that are sent to all processes, and those that the main process handles. A child
        does this first.

        The signals are not ignored, but have a handler that does nothing: programs that the child starts would inherit
        that they are ignored, and could not be ended by SIGTERM. Ctrl-C is ignored by these, too, and so is what the
        main process ignores. A signal that came while it was blocked is gone, and the mask is main's again. A signal
        that the child sends to itself, even while it was blocked, has its default action.
        """
        InterruptsDeferred.innermost = None
        _deaf.clear()
        handled, caught = _handled(), _caught()
        for number in sorted({*_SENT_TO_ALL, *self.handled, *handled}):
            is_a_librarys = number in caught and number not in handled and number != signal.SIGTERM
            if number == signal.SIGINT:
                signal.signal(number, signal.SIG_IGN)
            elif number == signal.SIGCHLD:  # of its own children, if it starts any
                signal.signal(number, signal.SIG_DFL)
            elif signal.getsignal(number) != signal.SIG_IGN and not is_a_librarys:
                signal.signal(number, _take_no_notice)  # what is found, and put back, by who sets one for a while
                take_no_notice(number)
                _deaf.append(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


def _caught() -> set[int]:
    """Signals that this process handles, in Python or in C (`faulthandler.register`), if the system tells."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
        mask = next((int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt:")), 0)
        return {number for number in _CAN_BE_HELD if mask >> (number - 1) & 1}
    return set()


#: Signals that this process, a child, takes no notice of.
_deaf: list[int] = []


def _take_no_notice(number: int, _frame: FrameType | None) -> None:
    """The handler in a child of a signal that the main process handles. It is called only after user code has put it
    back, and has the native handler do so from then on, as that one knows who has sent a signal."""
    take_no_notice(number)


def _hear_again() -> None:
    """In a process that user code has forked inside a child: signals do what they do in any other program."""
    while _deaf:
        number = _deaf.pop()
        if signal.getsignal(number) is _take_no_notice:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_hear_again)


def _send_later(numbers: list[int]) -> None:
    """Sends signals to the main thread as soon as it is in no finaliser any more."""
    main = threading.main_thread().ident or 0

    def send() -> None:
        # Nothing else runs between the last look and the signal: this thread holds the interpreter's lock.
        while _is_in_finaliser(sys._current_frames().get(main)):
            time.sleep(LATER)
        for number in numbers:
            signal.pthread_kill(main, number)  # in whatever system call it waits

    threading.Thread(target=send, name="torchdata-interrupt", daemon=True).start()


def _is_in_finaliser(frame: FrameType | None) -> bool:
    """Whether the frame, or one that called it, belongs to a finaliser or to the callback of a weak reference."""
    while frame is not None:
        if frame.f_code.co_name in FINALISERS or frame.f_globals.get("__name__") == "weakref":
            return True
        frame = frame.f_back
    return False
