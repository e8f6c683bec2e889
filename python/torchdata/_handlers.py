"""Recognizes exceptions that Python signal handlers have raised, so that code that suppresses errors lets them pass."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import functools
import os
import signal
import traceback
from typing import Any

_PACKAGE = os.path.dirname(__file__) + os.sep

#: Signals that report a faulty instruction.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
#: Signals that a program can handle, without `_FAULTS`.
CAN_BE_HELD = tuple(sorted(signal.valid_signals() - _FAULTS - {signal.SIGKILL, signal.SIGSTOP}))


def handled_signals() -> list[int]:
    # `signal.getsignal` takes ten times as long, because it converts each result to an enum.
    return [number for number in CAN_BE_HELD if callable(_signal.getsignal(number))]


def is_of_handler(error: BaseException) -> bool:
    codes_in_error = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    if all(code.co_filename.startswith(_PACKAGE) for code in codes_in_error):
        return False  # the rest takes 40 µs, which is too slow for an error of each item
    handlers: list[Any] = [signal.getsignal(number) for number in handled_signals()]
    handlers = [one.func if isinstance(one, functools.partial) else one for one in handlers]
    functions = [getattr(one, "__func__", one) for one in (*handlers, *(type(one).__call__ for one in handlers))]
    codes = {getattr(function, "__code__", None) for function in functions}
    return not codes.isdisjoint(codes_in_error)


def raise_if_of_handler(error: BaseException) -> None:
    if is_of_handler(error):
        raise error


class FailuresSuppressed:
    """Suppresses exceptions of the class `kind` in a `with` block, except exceptions that a signal handler has
    raised."""

    def __init__(self, kind: type[Exception] | tuple[type[Exception], ...] = Exception) -> None:
        self._kind = kind

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, self._kind) and not is_of_handler(error)
