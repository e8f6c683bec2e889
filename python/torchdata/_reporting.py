"""Shortens tracebacks and adds notes, so that users see their own frames and the process that raised an exception."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, TypeVar

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import is_private, redacted

_Error = TypeVar("_Error", bound=BaseException)

RAISED_IN = "_torchdata_raised_in"
_KEY = "_torchdata_key"
PACKAGE = os.path.dirname(__file__) + os.sep
#: Frames of these modules are removed from tracebacks, because users cannot do anything about them.
_BELOW = ("torchdata.", "multiprocessing.")


#: The file, the line and the module of the code that started this process, unless this process was forked.
_begun_at: tuple[str, int, str] | None = None
_shown: dict[Any, Any] = {}


def _outside() -> tuple[FrameType, int]:
    """Returns the innermost frame outside this package, and the stack level of this frame."""
    level, frame = 1, sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_BELOW):
        level, frame = level + 1, frame.f_back
    return frame, level


def location_outside() -> tuple[str, int, str]:
    """Returns the file, line and module of the first frame outside this package, or of the code that started the
    process.
    """
    frame, _ = _outside()
    if _begun_at is not None and frame.f_back is None:
        return _begun_at
    return frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__", "<unknown>"))


def begin_at(location: tuple[str, int, str]) -> None:
    """Makes warnings refer to the line that started the process, because the process's stack does not contain the
    user's program."""
    global _begun_at
    _begun_at = location


def warn_outside(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of the program that called this package.

    In a worker, the warning refers to the line that started the process.
    """
    frame, level = _outside()
    if _begun_at is None or frame.f_back is not None:
        warnings.warn(message, category, stacklevel=level + 1)
    else:
        file, line, module = _begun_at
        warnings.warn_explicit(message, category, file, line, module, _shown)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Returns the attributes of an exception, even if its class overrides attribute access."""
    attributes: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return attributes


def came_from(error: BaseException) -> str | None:
    """Returns the name of the process that has raised the exception; None if this process has raised it."""
    return attributes_of(error).get(RAISED_IN)


def remember(error: BaseException, where: str) -> None:
    attributes_of(error)[RAISED_IN] = where


def notes_of(error: BaseException) -> list[str]:
    notes = attributes_of(error).get("__notes__")
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []


def add_note(error: BaseException, note: str) -> None:
    """Adds a note, even if the exception's class allows no attributes."""
    notes = attributes_of(error).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes.append(note)


def name_item(error: _Error, item: Any) -> _Error:
    """Records the key or path of the item that caused the exception, unless the exception already has a recorded
    key."""
    key = key_of(item)
    if key is not None:
        attributes_of(error).setdefault(_KEY, key)
    return error


def key_named(error: BaseException) -> str | None:
    return attributes_of(error).get(_KEY)


#: In the text that names a row: the maximum number of columns, and the maximum length of a column's value in
#: characters.
_COLUMNS, _WIDTH = 8, 80


def _scalars(row: dict[Any, Any]) -> str | None:
    """Describes a row by its first columns with strings or numbers, and leaves out columns with names that announce a
    secret."""
    found = (
        f"{name}={value!r:.{_WIDTH}}"
        for name, value in row.items()
        if isinstance(value, (str, int, float)) and not is_private(str(name), value)
    )
    return ", ".join(islice(found, _COLUMNS)) or None


def key_of(item: Any) -> str | None:
    """Returns the key of an item: its `__key__`, its first element or the item itself. The key of a row without a
    `__key__` consists of the row's scalar columns."""
    if isinstance(item, dict):
        item = item.get("__key__") or _scalars(item)
    elif isinstance(item, (tuple, list)) and item:
        item = item[0]
    return redacted(str(item)) if isinstance(item, (str, int, os.PathLike)) else None


def make_printable(error: BaseException) -> None:
    """Adds an empty list `__notes__` to an exception if its class defines `__getattr__`. Printing an exception reads
    `__notes__`, and would call `__getattr__`, which may fail."""
    for shown in _shown_with(error):
        if hasattr(type(shown), "__getattr__"):
            attributes_of(shown).setdefault("__notes__", [])


def _shown_with(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, and the exceptions that are displayed as its causes."""
    seen: set[int] = set()
    shown: BaseException | None = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        yield shown
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def fold(error: BaseException) -> None:
    """Removes this package's frames from tracebacks, except the frame that raised the exception in this process. With
    `TORCHDATA_FULL_TRACEBACK=1` in the environment, all frames are kept.
    """
    if os.environ.get("TORCHDATA_FULL_TRACEBACK") == "1":
        return
    for shown in _shown_with(error):
        shown.with_traceback(_folded(shown.__traceback__, came_from(shown) is not None))


def _folded(frames: TracebackType | None, wholly: bool) -> TracebackType | None:
    """Removes this package's frames. If `wholly` is False, the frame that raised the exception is kept even if it
    belongs to this package."""
    first: TracebackType | None = None
    last: TracebackType | None = None
    while frames is not None:
        following = frames.tb_next
        is_ours = frames.tb_frame.f_code.co_filename.startswith(PACKAGE)
        if not is_ours or (following is None and not wholly):
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
    name = words = type(datapipe).__qualname__
    with FailuresSuppressed():
        words = repr(datapipe)
    return name if words == name else redacted(words)


def name_of(datapipe: Any) -> str:
    name = represented(datapipe)
    return with_function(datapipe) if name == type(datapipe).__qualname__ else name


def with_function(pipe: Any) -> str:
    """Returns the name of a pipe with its function, such as `Mapper(decode)`."""
    name = type(pipe).__qualname__
    for attribute, function in vars(pipe).items():
        if attribute.endswith("fn") and callable(function):
            while isinstance(function, partial):
                function = function.func
            if is_users(function):
                return f"{name}({getattr(function, '__name__', type(function).__qualname__)})"
    return name


def is_users(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return not module.startswith("torchdata.")
