"""Sends exceptions across processes.

An exception of a child keeps its type, its original traceback and the name of the process.

Role: a child describes an exception (`describe`), and the main process raises it again (`reraise`). The description can
be pickled for any exception.

Exceptions that the interpreter acts on (`SystemExit`, `StopIteration`, `KeyboardInterrupt`) are meant for the process
that raised them. A worker's `sys.exit()` would silently end the main process, and a worker's `StopIteration` would be
mistaken for the end of the data. If a child raises an exception like `SystemExit`, the main process raises a
`RuntimeError` with that exception as its cause.
"""

from __future__ import annotations

import traceback
import warnings
from typing import Any, NoReturn

from torchdata._engine.items.rebuilding import Form, forms_of, rebuilt, text_of
from torchdata._engine.processes.strangers import leave
from torchdata._reporting import add_note, came_from, fold, make_printable, notes_of, remember


class _VerbatimKey(str):
    """A message that a KeyError shows unchanged. KeyError prints the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe(error: BaseException, where: str) -> tuple[Any, ...]:
    """Describes `error` so that `reraise` can raise it in another process. `where` names this process.

    If user code has forked this process inside a child, the process exits, because it must not report in the child's
    name.
    """
    leave(error)
    name, notes, raised_in = type(error).__name__, notes_of(error), came_from(error)
    if raised_in is not None:  # the error comes from another process, and stays unchanged
        return ("again", name, forms_of(error), text_of(error) or name, notes, raised_in)
    text = _formatted(error)
    return ("first", name, forms_of(error), text, notes, where)


def _formatted(error: BaseException) -> str:
    """Returns the traceback, including causes, and the text of the exception. Notes are sent separately."""
    make_printable(error)
    try:
        return _by_traceback(error)
    except Warning:
        # Python 3.15 warns about a module without a loader, such as the program in a spawned process. The warning about
        # the missing loader must not end the process, even if warnings are errors. The filter also suppresses warnings
        # of other threads for a moment.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return _by_traceback(error)
            except Warning as warning:  # a computed attribute of the class has warned
                return f"{type(error).__name__} (its traceback cannot be shown: {type(warning).__name__})\n"


def _by_traceback(error: BaseException) -> str:
    try:
        fold(error)
        lines = traceback.TracebackException.from_exception(error, compact=True)
        lines.__notes__ = None
        return "".join(lines.format())
    except Warning:
        raise
    except Exception:  # a computed attribute of the class has failed
        name, text = type(error).__name__, text_of(error)
        head = "Traceback (most recent call last):\n" if error.__traceback__ else ""
        return f"{head}{''.join(traceback.format_tb(error.__traceback__))}{name}: {text}\n"


def reraise(description: tuple[Any, ...]) -> NoReturn:
    """Raises the described exception, with its original type if possible in this process."""
    what: str
    name: str
    forms: list[Form]
    what, name, forms, text, notes, where = description
    error = rebuilt(forms)
    if error is None:
        error = RuntimeError(text.rstrip().rsplit("\n", 1)[-1])
    if _steers(error):
        raise _as_error(error, text, where) from error
    remember(error, where)
    make_printable(error)
    for note in notes:
        if note not in notes_of(error):  # a pickled exception may have included the notes
            add_note(error, note)
    if what == "first":
        _tell(error, f"Caught {name} in {where}.\nOriginal {text}".rstrip())
    raise error


def _steers(error: BaseException) -> bool:
    """Returns whether the interpreter, or a loop, would react to the exception instead of reporting it."""
    return not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration))


def _as_error(error: BaseException, text: str, where: str) -> RuntimeError:
    name = type(error).__name__
    advice = _ADVICE.get(name, "raise an Exception there to report an error")
    wrapped = RuntimeError(f"Caught {name} in {where}: {advice}.\nOriginal {text}".rstrip())
    remember(wrapped, where)
    return wrapped


#: Advice for exceptions that a pipeline must not raise, by the name of the exception.
_ADVICE = {
    "SystemExit": "a function of the pipeline called sys.exit(), which cannot end the program from there; raise an "
    "Exception to report an error, and leave the loop over the loader to end it",
    "StopIteration": "it ends loops, not pipelines; let the source end, or drop items by `filter`",
}


def _tell(error: BaseException, message: str) -> None:
    """Adds `message` to the exception's own text if possible, otherwise as a note."""
    arguments, shown = error.args, text_of(error)
    if not arguments or (len(arguments) == 1 and shown in (_safely(str, arguments[0]), _safely(repr, arguments[0]))):
        told = _VerbatimKey(message) if isinstance(error, KeyError) else message
        BaseException.args.__set__(error, (told,))  # type: ignore[attr-defined] # its class may let nobody set it
        if message in (text_of(error) or ""):
            return
        BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]
    add_note(error, message)


def _safely(show: Any, value: object) -> str | None:
    try:
        return str(show(value))
    except Exception:
        return None
