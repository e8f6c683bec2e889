"""Recognizes exceptions that Python signal handlers have raised, so that code that suppresses errors lets them pass."""

from __future__ import annotations

import signal
import traceback
from typing import Any

#: Signals that report a faulty instruction.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
#: Signals that a program can handle, without `_FAULTS`.
CAN_BE_HELD = tuple(sorted(signal.valid_signals() - _FAULTS - {signal.SIGKILL, signal.SIGSTOP}))


def handled_signals() -> list[int]:
    return [number for number in CAN_BE_HELD if callable(signal.getsignal(number))]


def is_of_handler(error: BaseException) -> bool:
    handlers: list[Any] = [signal.getsignal(number) for number in handled_signals()]
    functions = [getattr(one, "__func__", one) for one in (*handlers, *(type(one).__call__ for one in handlers))]
    codes = {getattr(function, "__code__", None) for function in functions}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


class FailuresSuppressed:
    """Suppresses exceptions in a `with` block, except exceptions that a signal handler has raised."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, Exception) and not is_of_handler(error)
