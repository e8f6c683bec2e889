"""Defers signals during critical sections, and delivers them at the next safe point.

A signal handler, such as the handler of Ctrl-C, may raise an exception at an arbitrary point of the main process's
code. If a handler's exception interrupted the start or the end of a child, the main process would not know the child's
state. Python would ignore an exception in a hook of `os.fork`.

A child must not run handlers of the main process, although terminals and clusters send signals to all processes of a
program. A child starts with blocked signals. The child first replaces the signal handlers by handlers that do nothing
(`MainSignals`), and then unblocks the signals. If a child sends a signal to itself, the signal's default action is
executed, so SIGTERM ends the child.

Python runs handlers only in the main thread, whereas each thread has its own signal mask. Only signals that have a
Python handler are deferred.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # see `handled_signals`
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from torchdata._handlers import CAN_BE_HELD, handled_signals
from torchdata._machine import caught_signals
from torchdata._native import ignore_signal

#: Seconds between two checks whether the main thread has left a finalizer.
LATER = 0.001
#: Python ignores exceptions in functions with these names; `_finalize` is the finalizer of
#: `torchdata._native.Finalized`.
FINALISERS = ("__del__", "_finalize")

#: Signals that terminals and clusters send to all processes of a program. Children ignore these signals.
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StartGivenUp(Exception):
    """Raised if a signal arrived while a child was starting, and the start was undone completely."""


class InterruptsDeferred:
    """Defers signals until the end of the context, or until `deliver` is called.

    The context does nothing outside the main thread, because Python runs handlers only in the main thread.

    Args:
        later: whether the context is entered in a finalizer (a `__del__` or a callback of a weak reference). In a
            finalizer, signals are delivered only after the finalizer has returned, because Python ignores exceptions in
            finalizers.
        noted: whether the end of the context must deliver a Ctrl-C that was pressed before the context began.
    """

    innermost: InterruptsDeferred | None = None

    def __init__(self, later: bool = False, noted: bool = False) -> None:
        self._later = later
        self._noted: list[int] = [signal.SIGINT] if noted else []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._has_begun = self._is_over = False
        self._outer: InterruptsDeferred | None = None

    def __enter__(self) -> InterruptsDeferred:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in handled_signals():
                self._handlers[number] = signal.getsignal(number)  # type: ignore[assignment] # it is callable
                signal.signal(number, self._note)  # may raise the exception of an earlier signal's handler
        except BaseException:
            self._end()
            raise
        self._outer, InterruptsDeferred.innermost = InterruptsDeferred.innermost, self
        self._has_begun = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:  # user code has saved this handler, and installs it only now
            self._handlers[number](number, frame)
        elif number not in self._noted:
            self._noted.append(number)

    @property
    def noted(self) -> bool:
        return signal.SIGINT in self._noted

    @property
    def waits(self) -> bool:
        """Whether a signal other than SIGCHLD waits for delivery. The kernel sends SIGCHLD whenever a child exits."""
        waiting = {*self._noted, *(signal.sigpending() & self._handlers.keys())}
        return bool(waiting - {signal.SIGCHLD})

    def deliver(self) -> None:
        """All handlers run, in the order of arrival of their signals, even if one of them raises an exception."""
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
            while signal.getsignal(number) == self._note:
                try:
                    signal.signal(number, handler)
                except BaseException as error:  # the handler of another signal has raised this error
                    raised = error
        if raised is not None:
            raise raised


def interrupt_waits() -> bool:
    deferred = InterruptsDeferred.innermost
    return deferred is not None and threading.current_thread() is threading.main_thread() and deferred.waits


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Blocks all signals that children ignore, except SIGCHLD. Threads and processes that this thread starts inherit
    its signal mask.
    """
    blocked = {*_SENT_TO_ALL, *handled_signals()} - {signal.SIGCHLD}
    before = _signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        # Signals are unblocked one by one, so that only one handler runs at a time. `faulthandler` gives handlers a
        # small stack, which several nested handlers would overflow.
        for number in blocked - before:
            _signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        _signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_all_but_own_sigterm() -> None:
    """Blocks all signals except SIGTERM, which ends this process only if the process sends it to itself."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _ignore_signal)
        ignore_signal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, set(CAN_BE_HELD) - {signal.SIGTERM})


class MainSignals(NamedTuple):
    handled: tuple[int, ...]
    blocked: tuple[int, ...]

    @classmethod
    def now(cls) -> MainSignals:
        return cls(tuple(handled_signals()), tuple(_signal.pthread_sigmask(signal.SIG_BLOCK, [])))

    def leave_to_main(self) -> None:
        """Makes a child ignore the signals that are meant for the main process. A child must call this method before it
        runs other code.

        The child gets signal handlers that do nothing. SIG_IGN is not used, because programs that the child starts
        would inherit SIG_IGN, so that SIGTERM could not end these programs. Signals that arrived while they were
        blocked are discarded. If the child sends a signal to itself, the signal's default action is executed.
        """
        InterruptsDeferred.innermost = None
        _ignored_signals.clear()
        handled, caught = handled_signals(), caught_signals("self")  # a library may have handlers in C
        for number in sorted({*_SENT_TO_ALL, *self.handled, *handled}):
            is_a_librarys = caught >> (number - 1) & 1 and number not in handled and number != signal.SIGTERM
            if number == signal.SIGINT:
                signal.signal(number, signal.SIG_IGN)
            elif number == signal.SIGCHLD:  # a child that starts processes needs the default action
                signal.signal(number, signal.SIG_DFL)
            elif signal.getsignal(number) != signal.SIG_IGN and not is_a_librarys:
                # A Python function is installed, because user code could not save and restore a native handler.
                signal.signal(number, _ignore_signal)
                ignore_signal(number)
                _ignored_signals.append(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


_ignored_signals: list[int] = []


def _ignore_signal(number: int, _frame: FrameType | None) -> None:
    """The handler of a signal that children ignore. A native handler normally replaces this function, because only
    native code can determine the sender of the signal. If user code installs another handler and later restores this
    function, the next signal installs the native handler again.
    """
    ignore_signal(number)


def _receive_again() -> None:
    """Restores the default actions of signals in a process that user code has forked inside a child."""
    while _ignored_signals:
        number = _ignored_signals.pop()
        if signal.getsignal(number) is _ignore_signal:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_receive_again)


def _send_later(numbers: list[int]) -> None:
    main = threading.main_thread().ident or 0

    def send() -> None:
        # This thread holds the GIL between the last check and `pthread_kill`, so the main thread cannot enter a
        # finalizer in between.
        while _is_in_finaliser(sys._current_frames().get(main)):
            time.sleep(LATER)
        for number in numbers:
            signal.pthread_kill(main, number)  # a signal to the thread interrupts its blocking system call

    threading.Thread(target=send, name="torchdata-interrupt", daemon=True).start()


def _is_in_finaliser(frame: FrameType | None) -> bool:
    frames = () if frame is None else traceback.walk_stack(frame)
    return any(each.f_code.co_name in FINALISERS or each.f_globals.get("__name__") == "weakref" for each, _ in frames)
