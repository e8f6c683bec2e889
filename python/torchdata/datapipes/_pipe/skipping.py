"""Items that are skipped because they raised: by `on_error`, for the pipes that it reads.

Role: a pass of `on_error` claims the pipes below it, up to the next one of its kind. An exception that passes the guard
of a claimed pipe comes here by way of `explain`, on the guard's cold path. If the pipe's pass can continue after it, it
is counted in the pipe's record, and the guard asks for the next item. The counts are part of the pipe's entry in a
state, so a pass that is resumed counts on, and one that is made again counts anew. Runs in the process that iterates
the pipes.

A pass can continue whose iterator outlives an exception: the built-in `map` and the iterator of `filter` do, which call
a function for each item, and the chains of pipes that turn one item, or one stream, into several (`_drop_broken`). A
generator that has raised has ended.

`StatefulDataLoader` skips samples by itself, and shares the limits, words and lines of the log with these.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torchdata._importing import import_whole
from torchdata._native import FilterIterator
from torchdata._reporting import (
    PACKAGE,
    add_note,
    attributes_of,
    key_named,
    key_of,
    name_of,
    notes_of,
    warn_outside,
)
from torchdata.datapipes._pipe.blaming import blamed_name, counted_at
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, iter_base, sources_of
from torchdata.datapipes._pipe.state.record import existing_record, record_of, token_of

__all__ = [
    "FEWEST",
    "TooManySkipped",
    "check_limit",
    "claim",
    "is_of_an_item",
    "line_of",
    "note_epoch",
    "plus_one",
    "release",
    "skip",
    "skipped_of",
    "skipper_of",
    "table_of",
    "tell",
    "told_of",
    "write_line",
]

#: The number of this worker, "dispatch" in the dispatching process, or None in the main process. A loader sets it, and
#: reports what its processes skip.
worker: int | str | None = None

#: The epoch of the loader whose worker this process is, from 0.
epoch = 0

#: In the main process, the epoch of its loader that each pipe which skips is in.
_epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

#: A share is judged from this many items of a pipe on, and at the end of the pass.
FEWEST = 100


class TooManySkipped(RuntimeError):
    """More items raised exceptions than the limit of `on_error` permits. The last exception is its cause.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.utils import TooManySkipped
        >>> try:
        ...     list(IterableWrapper(["1", "?", "?"]).map(int).on_error("skip", limit=1))
        ... except TooManySkipped:
        ...     print("too many")
        too many
    """


# -- who skips -----------------------------------------------------------------------------------------


def claim(owner: Any) -> None:
    """Has exceptions of the pipes below `owner` skipped, in the pass of it that begins now."""
    owner_record = record_of(owner)
    release(owner)
    mine = weakref.ref(owner)
    claimed, waiting, seen = [], [*sources_of(owner)], {id(owner)}
    while waiting:
        pipe = waiting.pop()
        if id(pipe) in seen or type(pipe) is type(owner):
            continue
        seen.add(id(pipe))
        if iter_base() not in type(pipe).__mro__:
            if not is_iter_pipe(pipe):  # it is read by index, and may read others that are not
                waiting += sources_of(pipe)
            continue
        record = record_of(pipe)
        record.claim = mine
        if not owner_record.goes_on:  # those that are begun later in this pass have skipped nothing in it yet
            record.skipped = {}
            if record.loaded is not None:
                record.loaded = record.loaded._replace(skipped=None)
        claimed.append(weakref.ref(pipe))
        waiting += sources_of(pipe)
    owner_record.claimed = claimed


def release(owner: Any) -> None:
    """Lets the pipes go that `owner` has claimed: they are read by others, or not at all."""
    record = record_of(owner)
    for pipe in _alive(record.claimed):
        held = record_of(pipe).claim
        if held is not None and held() is owner:
            record_of(pipe).claim = None
    record.claimed = []


def _alive(references: list[Any]) -> list[Any]:
    return [pipe for pipe in (reference() for reference in references) if pipe is not None]


# -- what was skipped ----------------------------------------------------------------------------------


def skipped_of(owner: Any) -> dict[tuple[str, str], int]:
    """By kind of exception and pipe, how many items were skipped for `owner` in its pass."""
    found: dict[tuple[str, str], int] = {}
    for pipe in _alive(record_of(owner).claimed):
        for kind, count in record_of(pipe).skipped.items():
            key = kind, blamed_name(pipe)
            found[key] = found.get(key, 0) + count
    return found


def plus_one(kinds: dict[str, int], kind: str) -> dict[str, int]:
    """Counts by kind of exception, with one more; a new dict, as a state may hold the old one."""
    return {**kinds, kind: kinds.get(kind, 0) + 1}


def table_of(skipped: dict[tuple[str, str], int]) -> str:
    """Counts by kind and place, the largest first, one line each."""
    rows = sorted(skipped.items(), key=lambda row: (-row[1], row[0]))
    width = max((len(str(count)) for _, count in rows), default=1)
    return "\n".join(f"  {count:>{width}} x {kind} in {place}" for (kind, place), count in rows)


def tell(skipped: dict[tuple[str, str], int], of: str = "this epoch") -> None:
    """Warns of what was skipped, if anything was; `of` says in what."""
    if skipped:
        warn_outside(
            f"on_error has skipped {sum(skipped.values())} items of {of}:\n{table_of(skipped)}",
            RuntimeWarning,
        )


def check_limit(who: str, name: str, limit: int | float | None) -> None:
    """Checks a limit of skipped items.

    Args:
        who: who takes it.
        name: the argument's name.
        limit: how many items, or which share of them; None for any number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is negative, or a share over 1.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
        raise TypeError(f"{who}: {name} must be a number, a share or None, but got {limit!r}")
    if limit is not None and not (limit >= 0 and (isinstance(limit, int) or limit <= 1)):
        raise ValueError(f"{who}: {name} must be a number of items, or a float from 0 to 1, but got {limit!r}")


def told_of(count: int, limit: str, permitted: str, table: str, last: str = "") -> TooManySkipped:
    """The error for too many.

    Args:
        count: how many were skipped.
        limit: the limit, as an argument.
        permitted: what it means, in words.
        table: what was skipped.
        last: a line on the last one.
    """
    return TooManySkipped(
        f"on_error has skipped {count} items, more than {limit} permits ({permitted}):\n{table}\n{last}"
        "Mend the data or the function, or raise the limit"
    )


def is_over(owner: Any, limit: int | float | None, *, at_the_end: bool = False) -> bool:
    """Whether more was skipped than permitted.

    Args:
        owner: the pipe that skips.
        limit: how many, or which share of the items of each pipe.
        at_the_end: whether no more items come, so that a share of few items counts, too.
    """
    if limit is None:
        return False
    if isinstance(limit, int):
        return sum(skipped_of(owner).values()) > limit
    for pipe in _alive(record_of(owner).claimed):
        skipped = sum(record_of(pipe).skipped.values())
        seen = skipped + token_of(pipe).yielded
        if skipped > limit * seen and (at_the_end or seen >= FEWEST):
            return True
    return False


def too_many(owner: Any, limit: int | float | None) -> TooManySkipped:
    """The error for it."""
    count = sum(skipped_of(owner).values())
    share = f"{100 * limit:g} % of a pipe's items" if isinstance(limit, float) else f"{limit} items"
    return told_of(count, f"limit={limit!r}", f"{share}, in this process and epoch", table_of(skipped_of(owner)))


# -- an exception --------------------------------------------------------------------------------------


def skip(error: BaseException, datapipe: Any, yielded: int, iterator: Any) -> bool | TooManySkipped:
    """Skips the item at which a claimed pipe has raised; False where that is not to be, or cannot be.

    Args:
        error: the exception, which no pipe below has let pass.
        datapipe: the pipe.
        yielded: how many items it has yielded.
        iterator: its iterator.

    Returns:
        Whether the next item is to be asked for; or the error to raise instead, as it is one too many.
    """
    record = existing_record(datapipe)
    reference = None if record is None else record.claim
    owner = None if reference is None else reference()
    if record is None or owner is None or not is_of_an_item(error):
        return False
    if not _goes_on(datapipe, iterator):
        add_note(
            error,
            f"on_error does not skip it: the iterator of {name_of(datapipe)} has ended by raising, as generators do, "
            "and what it would have yielded behind this item cannot be had. Catch the exception there, or raise it in "
            "a function that map, filter or flatmap calls",
        )
        return False
    record.skipped = plus_one(record.skipped, type(error).__name__)
    counted_at(datapipe).count_skipped(type(error).__name__)
    if owner.log is not None:
        number = yielded + sum(record.skipped.values()) - 1
        of_loader = _epochs.get(owner) if worker is None else epoch
        found = {"epoch": of_loader, "worker": worker, "pipe": blamed_name(datapipe, error), "item": number}
        found["key"] = _key_of(error) or _row_read_for(datapipe)
        write_line(owner.log, found | line_of(error))
    if not is_over(owner, owner.limit):
        return True
    told = too_many(owner, owner.limit)
    told.__cause__ = error
    attributes_of(told).update(attributes_of(error))  # the place in the graph: no pipe above takes it for its own
    return told


def is_of_an_item(error: BaseException) -> bool:
    """Whether an exception may be the fault of an item."""
    return isinstance(error, Exception) and not (
        isinstance(error, MemoryError)
        or getattr(error, "never_skipped", False)
        or "_torchdata_invalid" in attributes_of(error)
    )


def _goes_on(datapipe: Any, iterator: Any) -> bool:
    """Whether the iterator of a pipe gives further items although it has raised; it lets go of what it was at."""
    base = iter_base()
    if any(is_iter_pipe(source) and base not in type(source).__mro__ for source in sources_of(datapipe)):
        return False  # a source whose own exceptions nobody has seen may have ended
    if type(iterator) in (map, FilterIterator) or getattr(type(iterator), "outlives_errors", False):
        return True
    reference = record_of(datapipe).renewal
    renewal = None if reference is None else reference()
    if renewal is None or type(iterator) is not chain or not renewal.renew():
        return False
    drop = getattr(type(datapipe), "_drop_broken", None)
    if drop is not None:
        drop(datapipe)
    return True


def line_of(error: BaseException) -> dict[str, Any]:
    """The part of a line of the log that tells of the exception."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"its message cannot be had: {type(failure).__name__}"
    return {"error": type(error).__name__, "message": message, "notes": notes_of(error)}


def write_line(path: str, line: dict[str, Any]) -> None:
    """Appends a line of JSON about a skipped item to a file, in one piece: several processes may do so."""
    text: str = import_whole("json").dumps(line, ensure_ascii=False, default=repr)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{text}\n".encode(errors="replace"))
    finally:
        os.close(descriptor)


def _key_of(error: BaseException) -> str | None:
    """The key or path of the item, as our reader has noted it, or else of the first argument of the function."""
    if (named := key_named(error)) is not None:
        return named
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frames = frames.tb_next
    if frames is None:
        return None
    code, known = frames.tb_frame.f_code, frames.tb_frame.f_locals
    names = [name for name in code.co_varnames[: code.co_argcount] if name not in ("self", "cls")]
    return key_of(known.get(names[0])) if names else None


def _row_read_for(datapipe: Any) -> str | None:
    """The file and row that a reader of tables has read last, if only maps and filters are between it and the pipe."""
    while type(datapipe).__name__ in ("Mapper", "Filter"):
        [datapipe] = sources_of(datapipe)
        if hasattr(type(datapipe), "_last_row"):
            named: str | None = datapipe._last_row()
            return named
    return None


def skipper_of(graph: Graph) -> Any:
    """A pipe of a graph that skips; None if none does."""
    return next(_skippers_of(graph), None)


def note_epoch(graph: Graph, number: int) -> None:
    """Notes, in the main process, which epoch of its loader the pipes of a graph that skip are in."""
    for pipe in _skippers_of(graph):
        _epochs[pipe] = number


def _skippers_of(graph: Graph) -> Iterator[Any]:
    return (pipe for pipe in graph if getattr(type(pipe), "_skips", False))
