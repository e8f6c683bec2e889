"""The frames and the notes of exceptions: users read their own frames alone, and where the exception came from.

Role: shared by pipes, the loader and the workers; `datapipes/_pipe/explaining` names the pipe. Runs in whichever
process and thread the exception passes. It owns nothing: the exception carries what is to be remembered of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from torchdata._redacting import redacted

__all__ = [
    "PACKAGE",
    "RAISED_IN",
    "add_note",
    "attributes_of",
    "came_from",
    "fold",
    "is_users",
    "key_named",
    "key_of",
    "level_outside",
    "make_printable",
    "name_item",
    "name_of",
    "notes_of",
    "remember",
    "represented",
]

_Error = TypeVar("_Error", bound=BaseException)

#: The attribute of an exception that came from another process: that process, in words.
RAISED_IN = "_torchdata_raised_in"
#: The attribute of an exception that says at which item it was raised.
_KEY = "_torchdata_key"
#: The folder of this package.
PACKAGE = os.path.dirname(__file__) + os.sep
#: Modules whose frames are no place to show a user.
_BELOW = ("torchdata.", "multiprocessing.")
_DEMO = os.path.join(PACKAGE, "demo") + os.sep  # a program on the public API, like those of users


def _is_ours(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file.startswith(PACKAGE) and not file.startswith(_DEMO)


def level_outside() -> int:
    """For a warning of the calling function, the stack level of the first frame outside this library.

    In a forked worker that is the line of the program that the process was forked from, not `multiprocessing`'s.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_BELOW):
        level, frame = level + 1, frame.f_back
    return level


def attributes_of(error: BaseException) -> dict[str, Any]:
    """The attributes of an exception, whatever its class makes of access to attributes."""
    attributes: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return attributes


def came_from(error: BaseException) -> str | None:
    """The process, in words, in which an exception was raised that came from there; None for one of this process."""
    return attributes_of(error).get(RAISED_IN)


def remember(error: BaseException, where: str) -> None:
    """Notes the process, in words, that an exception came from."""
    attributes_of(error)[RAISED_IN] = where


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception, as far as they are text."""
    notes = attributes_of(error).get("__notes__")
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []


def add_note(error: BaseException, note: str) -> None:
    """Adds a note, also to an exception whose class lets nobody set attributes."""
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


def key_of(item: Any) -> str | None:
    """The key or path of an item that is one, begins with one, or has a `__key__`; None for others."""
    if isinstance(item, dict):
        item = item.get("__key__")
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
    """The frames without those of this package; `wholly` says whether also the last one may go."""
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
    """Whether a function is not of this package. The demo's are: it is a program like those of users."""
    module = str(getattr(function, "__module__", ""))
    return not module.startswith("torchdata.") or module.startswith("torchdata.demo.")
