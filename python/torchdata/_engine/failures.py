"""Exceptions across processes: own type, original traceback, and which process raised them.

Role: a child describes an exception (`describe`), main raises it again (`reraise`). The description pickles whatever
the exception is made of.

Exceptions that the interpreter obeys rather than reports (`SystemExit`, `StopIteration`, `KeyboardInterrupt`) are meant
for the process that they are raised in. Main would end by a worker's `sys.exit()`, silently, and take a worker's
`StopIteration` for the end of the data. So these arrive as a `RuntimeError` that was caused by them.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NoReturn

from torchdata._reporting import RAISED_IN, fold

__all__ = ["describe", "reraise"]


class _VerbatimKey(str):
    """A message that a KeyError shows as it is: KeyError prints the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe(error: BaseException, where: str) -> tuple[Any, ...]:
    """What `reraise` needs to raise `error` in another process. `where` names this one."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    forms = _pickled(error), _pickled_class(type(error))
    if hasattr(error, RAISED_IN):  # it came from another process already: pass it on as it is
        return ("again", *forms, str(error), notes, getattr(error, RAISED_IN))
    fold(error)
    lines = traceback.TracebackException.from_exception(error, compact=True)
    lines.__notes__ = None  # they go along as notes, and would stand there twice
    return ("first", *forms, "".join(lines.format()), notes, where)


def _pickled(error: BaseException) -> bytes | None:
    cause, context = error.__cause__, error.__context__
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # constructors with odd arguments fail only here
        return pickled
    except Exception:
        return None
    finally:
        error.__cause__, error.__context__ = cause, context


def _pickled_class(cls: type[BaseException]) -> bytes | None:
    try:
        return pickle.dumps(cls)
    except Exception:
        pass
    try:
        import cloudpickle

        pickled: bytes = cloudpickle.dumps(cls)
        return pickled
    except Exception:
        return None


def reraise(description: tuple[Any, ...]) -> NoReturn:
    """Raises the described exception, with its own type wherever that can be had in this process."""
    what, pickled, pickled_class, text, notes, where = description
    error = _rebuilt(pickled, pickled_class, text)
    if _steers(error):
        raise _as_error(error, text, where) from error
    setattr(error, RAISED_IN, where)
    for note in notes:
        if note not in getattr(error, "__notes__", ()):  # an exception that was pickled may have brought them
            error.add_note(note)
    if what == "first":
        _tell(error, f"Caught {type(error).__name__} in {where}.\nOriginal {text}".rstrip())
    raise error


def _steers(error: BaseException) -> bool:
    """Whether the interpreter, or a loop, would act on the exception instead of reporting it."""
    return not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration))


def _as_error(error: BaseException, text: str, where: str) -> RuntimeError:
    name = type(error).__name__
    advice = _ADVICE.get(name, "raise an Exception there to report an error")
    wrapped = RuntimeError(f"Caught {name} in {where}: {advice}.\nOriginal {text}".rstrip())
    setattr(wrapped, RAISED_IN, where)
    return wrapped


#: What to do instead of raising it in a pipeline, by the name of the exception.
_ADVICE = {
    "SystemExit": "a function of the pipeline called sys.exit(), which cannot end the program from there; raise an "
    "Exception to report an error, and leave the loop over the loader to end it",
    "StopIteration": "it ends loops, not pipelines; let the source end, or drop items by `filter`",
}


def _rebuilt(pickled: bytes | None, pickled_class: bytes | None, text: str) -> BaseException:
    if pickled is not None:
        try:
            error = pickle.loads(pickled)
            if isinstance(error, BaseException):
                return error
        except Exception:
            pass
    if pickled_class is not None:
        try:
            cls = pickle.loads(pickled_class)
            last_line = text.rstrip().rsplit("\n", 1)[-1]
            error = cls.__new__(cls, last_line)  # not through __init__, whose arguments nobody knows
            error.args = (last_line,)
            return error  # type: ignore[no-any-return]
        except Exception:
            pass
    return RuntimeError(text.rstrip().rsplit("\n", 1)[-1])


def _tell(error: BaseException, message: str) -> None:
    """Puts `message` where the exception's own text shows it, else into a note."""
    plain = not error.args or (len(error.args) == 1 and str(error) in (str(error.args[0]), repr(error.args[0])))
    if plain:
        error.args = (_VerbatimKey(message) if isinstance(error, KeyError) else message,)
        plain = message in str(error)
    if not plain:
        error.add_note(message)
