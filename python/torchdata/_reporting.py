"""What a user reads of an exception that passes through a pipeline: the frames of users, and one note on its place.

Role: the iterators of pipes, the loader and the workers hand every exception that passes them to this module, which is
reached for nothing else. Runs in whichever process and thread the exception passes. It owns nothing: what it has to
remember of an exception lies in the exception.
"""

from __future__ import annotations

import os
from functools import partial
from types import TracebackType
from typing import Any

from torchdata._redacting import redact_error, redacted

__all__ = ["RAISED_IN", "explain", "fold", "name_of"]

#: The attribute of an exception that came from another process: that process, in words.
RAISED_IN = "_torchdata_raised_in"
#: The attribute in which an exception carries its place in the graph.
_ORIGIN = "_torchdata_origin"

_PACKAGE = os.path.dirname(__file__) + os.sep
_DEMO = os.path.join(_PACKAGE, "demo") + os.sep  # a program on the public API, like those of users


def _is_ours(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file.startswith(_PACKAGE) and not file.startswith(_DEMO)


def fold(error: BaseException) -> None:
    """Takes frames of this package out of the traceback of `error`, and out of those that are shown with it.

    The frame that raised stays, whosever it is, unless the exception was raised in another process: then what raises it
    here says nothing. `TORCHDATA_FULL_TRACEBACK=1` in the environment keeps all frames.
    """
    if os.environ.get("TORCHDATA_FULL_TRACEBACK") == "1":
        return
    seen: set[int] = set()
    shown: BaseException | None = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        shown.with_traceback(_folded(shown.__traceback__, hasattr(shown, RAISED_IN)))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


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


def explain(error: BaseException, frames: TracebackType | None, datapipe: Any, yielded: int | None) -> None:
    """Folds the traceback of an exception that passes `datapipe`, and notes which pipe it came from.

    KeyboardInterrupt, and all that is no `Exception`, keeps its frames: where a program hangs, they tell.

    Args:
        error: the exception.
        frames: its traceback so far.
        datapipe: the pipe whose iterator it passes.
        yielded: how many items the pipe had yielded; None where its iteration was only to begin.
    """
    error.with_traceback(frames)
    if isinstance(error, Exception):
        fold(error)
        redact_error(error)
    if hasattr(error, RAISED_IN):
        return  # the note tells the place in that process
    if _ORIGIN not in error.__dict__:
        error.__dict__[_ORIGIN] = _origin_of(datapipe, yielded)
    _note(error, error.__dict__[_ORIGIN], datapipe)


def _origin_of(datapipe: Any, yielded: int | None) -> dict[str, Any]:
    """Where an exception was raised: the first pipe that it passed. In plain words, as it is pickled with the error."""
    from torchdata.datapipes._pipe.traversal import sources_of  # late: its package imports this module

    sources = [_represented(source) for source in sources_of(datapipe)]
    return {
        "pipe": id(datapipe),  # in this process
        "name": name_of(datapipe),
        "behind": f", behind {' and '.join(sources)}" if sources else "",
        "did": "began to iterate" if yielded is None else f"made its {_ordinal(yielded + 1)} item",
        "note": None,
    }


def _note(error: BaseException, origin: dict[str, Any], last: Any) -> None:
    """Notes the place in the graph that ends in `last`; in place of the note before, which knew less of the graph."""
    from torchdata.datapipes._pipe.traversal import walk

    numbers = list(map(id, walk(last)))
    if origin["pipe"] not in numbers:
        return  # raised in another graph, and stored
    which = f" ({_ordinal(numbers.index(origin['pipe']) + 1)} of {len(numbers)} pipes{origin['behind']})"
    if len(numbers) == 1:
        which = ""
    text = f"This exception was raised while {origin['name']}{which} {origin['did']}."
    if origin["note"] is None:
        error.add_note(text)
    else:
        notes = getattr(error, "__notes__", [])
        if origin["note"] in notes:
            notes[notes.index(origin["note"])] = text
    origin["note"] = text


def _represented(datapipe: Any) -> str:
    """A pipe in words; one whose `repr` fails is named by its class."""
    try:
        return redacted(repr(datapipe))
    except Exception:
        return type(datapipe).__qualname__


def name_of(datapipe: Any) -> str:
    """A pipe in words, with the user's function that it calls, if there is one."""
    name = _represented(datapipe)
    if name != type(datapipe).__qualname__:
        return name
    for attribute, function in vars(datapipe).items():
        if attribute.endswith("fn") and callable(function):
            while isinstance(function, partial):
                function = function.func
            if not str(getattr(function, "__module__", "")).startswith("torchdata."):
                return f"{name}({getattr(function, '__name__', type(function).__qualname__)})"
    return name


def _ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
