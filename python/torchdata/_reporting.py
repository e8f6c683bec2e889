"""The frames and the notes of exceptions: users read their own frames alone, and where the exception came from.

Role: shared by pipes, the loader and the workers; `datapipes/_pipe/explaining` names the pipe. Runs in whichever
process and thread the exception passes. It owns nothing: the exception carries what is to be remembered of it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, TypeVar

from torchdata._redacting import is_private, redacted

__all__ = [
    "PACKAGE",
    "RAISED_IN",
    "add_note",
    "attributes_of",
    "begin_at",
    "came_from",
    "fold",
    "is_users",
    "key_named",
    "key_of",
    "make_printable",
    "name_item",
    "name_of",
    "notes_of",
    "place_outside",
    "remember",
    "represented",
    "warn_outside",
]

_Error = TypeVar("_Error", bound=BaseException)

#: The attribute of an exception that came from another process: that process, in words.
RAISED_IN = "_torchdata_raised_in"
#: The attribute of an exception that says at which item it was raised.
_KEY = "_torchdata_key"
#: The folder of this package.
PACKAGE = os.path.dirname(__file__) + os.sep
#: Modules whose frames do not help a user.
_BELOW = ("torchdata.", "multiprocessing.")


def _is_ours(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file.startswith(PACKAGE)


#: In a process that was not forked: the file, the line and the module of the program that began it.
_begun_at: tuple[str, int, str] | None = None
#: The warnings that were shown for that place (`__warningregistry__`).
_shown: dict[Any, Any] = {}


def _outside() -> tuple[FrameType, int]:
    """The first frame outside this library above the function that calls the caller, and its stack level from there."""
    level, frame = 1, sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_BELOW):
        level, frame = level + 1, frame.f_back
    return frame, level


def place_outside() -> tuple[str, int, str]:
    """The file, the line and the module of the first frame outside this library, or of what began the process."""
    frame, _ = _outside()
    if _begun_at is not None and frame.f_back is None:
        return _begun_at
    return frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__", "<unknown>"))


def begin_at(place: tuple[str, int, str]) -> None:
    """Shows warnings of this process at the line that started it, because its stack has no line of the program."""
    global _begun_at
    _begun_at = place


def warn_outside(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of the program that called this library.

    In a worker that is the line which the process was begun from: of a forked one it stands on the stack, below
    `multiprocessing`'s.
    """
    frame, level = _outside()
    if _begun_at is None or frame.f_back is not None:
        warnings.warn(message, category, stacklevel=level + 1)
    else:
        file, line, module = _begun_at
        warnings.warn_explicit(message, category, file, line, module, _shown)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """The attributes of an exception, whatever its class makes of access to attributes."""
    attributes: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return attributes


def came_from(error: BaseException) -> str | None:
    """A description of the process in which an exception was raised; None for this process."""
    return attributes_of(error).get(RAISED_IN)


def remember(error: BaseException, where: str) -> None:
    """Notes the process, in words, that an exception came from."""
    attributes_of(error)[RAISED_IN] = where


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception, as far as they are text."""
    notes = attributes_of(error).get("__notes__")
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []


def add_note(error: BaseException, note: str) -> None:
    """Adds a note, also to an exception whose class does not allow attributes."""
    notes = attributes_of(error).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes.append(note)


def name_item(error: _Error, item: Any) -> _Error:
    """Notes at which item an exception was raised, by its key or path; returns it. Whoever is nearest comes first."""
    key = key_of(item)
    if key is not None:
        attributes_of(error).setdefault(_KEY, key)
    return error


def key_named(error: BaseException) -> str | None:
    """The key or path that was noted; None if none was."""
    return attributes_of(error).get(_KEY)


#: How many scalar columns name a row, and how many characters of each.
_COLUMNS, _WIDTH = 8, 80


def _scalars(row: dict[Any, Any]) -> str | None:
    """Returns the scalar columns of a row as text; those whose names are private are left out. None without any."""
    found = (
        f"{name}={value!r:.{_WIDTH}}"
        for name, value in row.items()
        if isinstance(value, (str, int, float)) and not is_private(str(name), value)
    )
    return ", ".join(islice(found, _COLUMNS)) or None


def key_of(item: Any) -> str | None:
    """Returns the key or path of an item that is one, begins with one or has a `__key__`.

    A row without a `__key__` is named by its scalar columns. None for all other items.
    """
    if isinstance(item, dict):
        item = item.get("__key__") or _scalars(item)
    elif isinstance(item, (tuple, list)) and item:
        item = item[0]
    return redacted(str(item)) if isinstance(item, (str, int, os.PathLike)) else None


def make_printable(error: BaseException) -> None:
    """Gives exceptions notes whose class computes missing attributes: Python cannot print one if that fails."""
    for shown in _shown_with(error):
        if hasattr(type(shown), "__getattr__"):
            attributes_of(shown).setdefault("__notes__", [])


def _shown_with(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that are shown with it as its causes."""
    seen: set[int] = set()
    shown: BaseException | None = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        yield shown
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def fold(error: BaseException) -> None:
    """Takes frames of this package out of the traceback of `error`, and out of those that are shown with it.

    The frame that raised stays, whosever it is, unless the exception was raised in another process: then what raises it
    here says nothing. `TORCHDATA_FULL_TRACEBACK=1` in the environment keeps all frames.
    """
    if os.environ.get("TORCHDATA_FULL_TRACEBACK") == "1":
        return
    for shown in _shown_with(error):
        shown.with_traceback(_folded(shown.__traceback__, came_from(shown) is not None))


def _folded(frames: TracebackType | None, wholly: bool) -> TracebackType | None:
    """The frames without those of this package; `wholly` also removes the last frame if it is one of them."""
    first: TracebackType | None = None
    last: TracebackType | None = None
    while frames is not None:
        following = frames.tb_next
        if not _is_ours(frames) or (following is None and not wholly):
            if last is None:
                first = frames
            else:
                last.tb_next = frames
            last = frames
        frames = following
    if last is not None:
        last.tb_next = None
    return first


def represented(datapipe: Any) -> str:
    """A pipe in words; one whose `repr` fails is named by its class."""
    name = type(datapipe).__qualname__
    try:
        words = repr(datapipe)
    except Exception:
        return name
    return name if words == name else redacted(words)  # outside: what a signal handler raises meanwhile is not lost


def name_of(datapipe: Any) -> str:
    """A pipe in words, with the user's function that it calls, if there is one."""
    name = represented(datapipe)
    if name != type(datapipe).__qualname__:
        return name
    for attribute, function in vars(datapipe).items():
        if attribute.endswith("fn") and callable(function):
            while isinstance(function, partial):
                function = function.func
            if is_users(function):
                return f"{name}({getattr(function, '__name__', type(function).__qualname__)})"
    return name


def is_users(function: Any) -> bool:
    """Whether a function is not of this package."""
    module = str(getattr(function, "__module__", ""))
    return not module.startswith("torchdata.")
