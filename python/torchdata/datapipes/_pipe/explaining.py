"""Adds a note to an exception in a pipeline, with the pipe that raised the exception and the number of the failed
item."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

from torchdata._redacting import redact_error
from torchdata._reporting import add_note, attributes_of, came_from, fold, represented
from torchdata.datapipes._pipe.blaming import blamed_name
from torchdata.datapipes._pipe.graph.traversal import sources_of, walk
from torchdata.datapipes._pipe.state.record import existing_record

E = TypeVar("E", bound=BaseException)

#: If reading an item of a dataset fails, this attribute of the exception stores the item's index, for the note of
#: `explain`.
_INDEX = "_torchdata_index"
_ORIGIN = "_torchdata_origin"


def explain(
    error: BaseException, frames: TracebackType | None, datapipe: Any, yielded: int | None, iterator: Any = None
) -> Any:
    """Shortens the traceback of an exception from the iterator of `datapipe`, and adds a note about the exception's
    origin.

    The traceback of a KeyboardInterrupt is kept, because it shows where a program hangs.

    Args:
        yielded: the number of items that the pipe had yielded before the exception; None if `iter(datapipe)` raised the
            exception.
        iterator: the iterator that the pipe's `__iter__` returned, or None to prevent `on_error` from skipping the
            exception.

    Returns:
        True if `on_error` has skipped the item; False if the caller must raise `error`; or an exception to raise
        instead of `error`.
    """
    error.with_traceback(frames)
    if isinstance(error, Exception):
        fold(error)
        redact_error(error)
    if came_from(error) is not None:
        return False  # the process that raised the exception has already added a note
    own = attributes_of(error)
    is_first = _ORIGIN not in own
    if is_first:
        own[_ORIGIN] = _origin_of(error, datapipe, yielded)
    _note(error, own[_ORIGIN], datapipe)
    if not is_first or iterator is None or yielded is None:
        return False
    from torchdata.datapipes._pipe.skipping import skip

    return skip(error, datapipe, yielded, iterator)


def note_index(error: BaseException, index: Any) -> None:
    attributes_of(error).setdefault(_INDEX, repr(index)[:80])


def _origin_of(error: BaseException, datapipe: Any, yielded: int | None) -> dict[str, Any]:
    """Returns the origin of an exception, as a dict that is pickled with the exception."""
    sources = [represented(source) for source in sources_of(datapipe)]
    did = "began to iterate"
    if yielded is not None:
        record = existing_record(datapipe)
        number = yielded + (0 if record is None else sum(record.skipped.values())) + 1
        did = f"made {'their' if getattr(datapipe, 'is_several', False) else 'its'} {ordinal(number)} item"
    index = attributes_of(error).pop(_INDEX, None)
    if index is not None:
        did = f"{did}, of index {index}"
    return {
        "pipe": id(datapipe),  # the id is valid only in this process
        "name": blamed_name(datapipe, error),
        "after": f", after {' and '.join(sources)}" if sources else "",
        "did": did,
        "note": None,
    }


def _note(error: BaseException, origin: dict[str, Any], last: Any) -> None:
    """Adds a note that names the pipe that raised an exception, or corrects "of N pipes" in the existing note."""
    numbers = list(map(id, walk(last)))
    if origin["pipe"] not in numbers:
        return  # the exception was raised in another graph and then stored as an item
    which = f" ({ordinal(numbers.index(origin['pipe']) + 1)} of {len(numbers)} pipes{origin['after']})"
    if len(numbers) == 1:
        which = ""
    text = f"This exception was raised while {origin['name']}{which} {origin['did']}."
    if origin["note"] is None:
        add_note(error, text)
    else:
        notes = attributes_of(error).get("__notes__", [])
        if origin["note"] in notes:
            notes[notes.index(origin["note"])] = text
    origin["note"] = text


def ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def no_fault_of_an_item(error: E) -> E:
    """Marks an error that `on_error` must not skip, because no single item has caused the error."""
    attributes_of(error)["never_skipped"] = True
    return error


def not_the_end(what: str, error: BaseException) -> BaseException:
    """Converts a StopIteration, which would silently end the iteration, to a RuntimeError (see PEP 479)."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError(
        f"the {what} raised StopIteration, which would end the epoch although the source has more items; catch it in "
        "the function (`next(iterator, default)` does not raise it)"
    )
    raised.__cause__ = error
    return raised
