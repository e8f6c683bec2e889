"""Sends exceptions from one process to another.

A child process describes an exception (`describe`), and the main process raises the exception (`reraise`) with the
original type and traceback, and with the name of the child.

A worker's `SystemExit` must not end the main process, and a worker's `StopIteration` must not end a loop. For
SystemExit and StopIteration, the main process raises a `RuntimeError` with the original exception as its cause.
"""

from __future__ import annotations

import traceback
import warnings
from typing import Any, NoReturn

from torchdata._engine.items.rebuilding import Form, forms_of, rebuilt, text_of
from torchdata._engine.processes.strangers import leave
from torchdata._handlers import FailuresSuppressed
from torchdata._reporting import add_note, came_from, fold, make_printable, notes_of, remember


class _VerbatimKey(str):
    """A message for a KeyError. A KeyError displays the `repr` of its message, so the `repr` of this class has no
    quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe(error: BaseException, where: str) -> tuple[Any, ...]:
    """Describes an exception for the main process. If the current process is a fork that user code has made inside a
    child, `describe` ends this fork, because only the child may send errors.
    """
    leave(error)
    name, notes, raised_in = type(error).__name__, notes_of(error), came_from(error)
    if raised_in is not None:  # an exception from another process is forwarded unchanged
        return ("again", name, forms_of(error), text_of(error) or name, notes, raised_in)
    text = _formatted(error)
    return ("first", name, forms_of(error), text, notes, where)


def _formatted(error: BaseException) -> str:
    make_printable(error)
    try:
        fold(error)
        lines = traceback.TracebackException.from_exception(error, compact=True)
        lines.__notes__ = None
        return "".join(lines.format())
    except Exception:
        # Formatting an exception fails if a property of its class raises an error. If the user turns warnings into
        # errors, formatting an exception may fail, because Python 3.15 warns about modules without a loader.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            head = "Traceback (most recent call last):\n" if error.__traceback__ else ""
            frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{head}{frames}{type(error).__name__}: {text_of(error)}\n"


def reraise(description: tuple[Any, ...]) -> NoReturn:
    what: str
    name: str
    forms: list[Form]
    what, name, forms, text, notes, where = description
    error = rebuilt(forms)
    if error is None:
        error = RuntimeError(text.rstrip().rsplit("\n", 1)[-1])
    # Python does not report exceptions such as SystemExit (ends the program) and StopIteration (ends a loop) as errors.
    if not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration)):
        raise _as_error(error, text, where) from error
    remember(error, where)
    make_printable(error)
    for note in notes:
        if note not in notes_of(error):  # a pickled exception may already contain the notes
            add_note(error, note)
    if what == "first":
        _set_message(error, f"Caught {name} in {where}.\nOriginal {text}".rstrip())
    raise error


def _as_error(error: BaseException, text: str, where: str) -> RuntimeError:
    name = type(error).__name__
    advice = _ADVICE.get(name, "raise an Exception there to report an error")
    wrapped = RuntimeError(f"Caught {name} in {where}: {advice}.\nOriginal {text}".rstrip())
    remember(wrapped, where)
    return wrapped


_ADVICE = {
    "SystemExit": "a function that loads items called sys.exit(), which cannot end the program from there; raise an "
    "Exception to report an error, and leave the loop over the loader to end it",
    "StopIteration": "this exception does not end an epoch; return from `__iter__` of the source or dataset to end it",
}


def _set_message(error: BaseException, message: str) -> None:
    arguments, shown = error.args, text_of(error)
    if not arguments or (len(arguments) == 1 and shown in (_safely(str, arguments[0]), _safely(repr, arguments[0]))):
        argument = _VerbatimKey(message) if isinstance(error, KeyError) else message
        BaseException.args.__set__(error, (argument,))  # type: ignore[attr-defined] # its class may forbid this
        if message in (text_of(error) or ""):
            return
        BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]
    add_note(error, message)


def _safely(show: Any, value: object) -> str | None:
    with FailuresSuppressed():
        return str(show(value))
    return None
