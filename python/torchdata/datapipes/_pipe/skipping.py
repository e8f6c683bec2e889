"""Skips items that raise exceptions, for the pipe `on_error`.

When an iteration begins, each `on_error` *claims* the pipes between the previous `on_error` and itself, and skips
exceptions of only these pipes. If a pipe's iterator can yield further items after an exception, `on_error` counts the
exception and requests the next item. In a new iteration, the counts of skipped exceptions begin at zero; in a resumed
iteration, at the saved counts.

The built-in `map`, the iterator of `filter`, and the iterators of pipes with a method `_drop_broken` can continue after
an exception. A pipe without `_drop_broken` may be iterated by a generator, which ends when it raises an exception.

`StatefulDataLoader` skips samples with other code, but uses the limits, messages and log format of this module.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from torchdata._importing import import_whole
from torchdata._native import FilterIterator, IndexedIterator
from torchdata._reporting import PACKAGE, add_note, attributes_of, key_named, key_of, name_of, notes_of, warn_outside
from torchdata.datapipes._pipe.blaming import blamed_name, counted_at
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, iter_base, sources_of
from torchdata.datapipes._pipe.state.record import existing_record, record_of, token_of

#: The number of this worker, "dispatch" in the dispatching process, or None in the main process; set by the loader.
worker: int | str | None = None

#: In a worker process: the number of the loader's current epoch, from 0.
epoch = 0

#: In the main process: the number of the current epoch of each `on_error` pipe.
_epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

#: If the limit on skipped items is a fraction, the limit is not checked in a pipe's first `FEWEST` items, except at the
#: end of the iteration.
FEWEST = 100


class TooManySkipped(RuntimeError):
    """More items raised exceptions than `on_error` permits. The last skipped exception is the cause of the
    `TooManySkipped`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.utils import TooManySkipped
        >>> try:
        ...     list(IterableWrapper(["1", "?", "?"]).map(int).on_error("skip", limit=1))
        ... except TooManySkipped:
        ...     print("too many")
        too many
    """


# -- claiming pipes ------------------------------------------------------------------------------------


def claim(owner: Any) -> None:
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
            if not is_iter_pipe(pipe):  # a map-style pipe may itself read iterable-style pipes
                waiting += sources_of(pipe)
            continue
        record = record_of(pipe)
        record.claim = mine
        if not owner_record.is_resumed:  # all claimed pipes count from zero, including those that have not begun
            record.skipped = {}
            if record.loaded is not None:
                record.loaded = record.loaded._replace(skipped=None)
        claimed.append(weakref.ref(pipe))
        waiting += sources_of(pipe)
    owner_record.claimed = claimed


def release(owner: Any) -> None:
    record = record_of(owner)
    for pipe in _alive(record.claimed):
        held = record_of(pipe).claim
        if held is not None and held() is owner:
            record_of(pipe).claim = None
    record.claimed = []


def _alive(references: list[Any]) -> list[Any]:
    return [pipe for pipe in (reference() for reference in references) if pipe is not None]


# -- counts --------------------------------------------------------------------------------------------


def skipped_of(owner: Any) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for pipe in _alive(record_of(owner).claimed):
        for kind, count in record_of(pipe).skipped.items():
            key = kind, blamed_name(pipe)
            found[key] = found.get(key, 0) + count
    return found


def plus_one(kinds: dict[str, int], kind: str) -> dict[str, int]:
    """Returns a copy of the counts `kinds`, with the count of `kind` increased by one. The dict `kinds` itself is not
    modified, because a saved state may contain it."""
    return {**kinds, kind: kinds.get(kind, 0) + 1}


def table_of(skipped: dict[tuple[str, str], int]) -> str:
    rows = sorted(skipped.items(), key=lambda row: (-row[1], row[0]))
    width = max((len(str(count)) for _, count in rows), default=1)
    return "\n".join(f"  {count:>{width}} x {kind} in {location}" for (kind, location), count in rows)


def report(skipped: dict[tuple[str, str], int], of: str = "of the items of this epoch") -> None:
    if skipped:
        text = f"on_error has skipped {sum(skipped.values())} {of}:\n{table_of(skipped)}"
        warn_outside(text, RuntimeWarning)


def check_limit(owner: str, name: str, limit: int | float | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
        raise TypeError(f"{owner}: {name} must be a number, a share or None, but got {limit!r}")
    if limit is not None and not (limit >= 0 and (isinstance(limit, int) or limit <= 1)):
        raise ValueError(f"{owner}: {name} must be a number of items, or a float from 0 to 1, but got {limit!r}")


def too_many(
    skipped: dict[tuple[str, str], int], limit: int | float | None, name: str, items: str, where: str, last: str = ""
) -> TooManySkipped:
    """Returns the error to raise if more items were skipped than `limit` permits. In the message, `items` names the
    items that the limit applies to, and `where` names the process and the epoch."""
    permitted = f"{100 * limit:g} % of {items}" if isinstance(limit, float) else f"{limit} {items.split()[-1]}"
    return TooManySkipped(
        f"on_error has skipped {sum(skipped.values())} items, more than {name}={limit!r} permits ({permitted}, in "
        f"{where}):\n{table_of(skipped)}\n{last}Correct the data or the function, or raise the limit"
    )


def is_over(counts: Iterable[tuple[int, int]], limit: int | float | None, *, at_the_end: bool = False) -> bool:
    """Returns whether more items were skipped than `limit` permits.

    Args:
        counts: for each pipe or dataset, the number of skipped items and the number of items read.
        limit: the permitted number of skipped items of all pipes (an int), or the permitted fraction of the items of
            each pipe (a float); None for no limit.
        at_the_end: whether the iteration has ended. Before the end of the iteration, a fraction is checked only for
            pipes that have read at least `FEWEST` items.
    """
    if limit is None or isinstance(limit, int):
        return limit is not None and sum(skipped for skipped, _ in counts) > limit
    return any(skipped > limit * seen and (at_the_end or seen >= FEWEST) for skipped, seen in counts)


def limit_error(owner: Any, *, at_the_end: bool = False) -> TooManySkipped | None:
    claimed = _alive(record_of(owner).claimed)
    counts = ((sum(record_of(pipe).skipped.values()), token_of(pipe).yielded) for pipe in claimed)
    if not is_over(((skipped, skipped + yielded) for skipped, yielded in counts), owner.limit, at_the_end=at_the_end):
        return None
    return too_many(skipped_of(owner), owner.limit, "limit", "a pipe's items", "this process and epoch")


# -- exceptions ----------------------------------------------------------------------------------------


def skip(error: BaseException, datapipe: Any, yielded: int, iterator: Any) -> bool | TooManySkipped:
    """Skips an item that has raised an exception, if an `on_error` permits this.

    Returns:
        True if the item was skipped; False if the item must not be skipped; the error to raise if the limit is
        exceeded.
    """
    record = existing_record(datapipe)
    reference = None if record is None else record.claim
    owner = None if reference is None else reference()
    if record is None or owner is None or not is_of_an_item(error):
        return False
    if not _continues(datapipe, iterator):
        add_note(
            error,
            f"on_error cannot skip it: the exception has ended the iterator of {name_of(datapipe)}, as in a generator, "
            "so its remaining items are lost. Catch the exception there, or raise it in a function that map, filter or "
            "flatmap calls",
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
    if (failure := limit_error(owner)) is None:
        return True
    failure.__cause__ = error
    # The attributes are copied so that the note on `failure` names the pipe that raised `error`.
    attributes_of(failure).update(attributes_of(error))
    return failure


def is_of_an_item(error: BaseException) -> bool:
    return isinstance(error, Exception) and not (
        isinstance(error, MemoryError)
        or getattr(error, "never_skipped", False)
        or "_torchdata_invalid" in attributes_of(error)
    )


def _continues(datapipe: Any, iterator: Any) -> bool:
    base = iter_base()
    if any(is_iter_pipe(source) and base not in type(source).__mro__ for source in sources_of(datapipe)):
        return False  # a source without a guard may have ended because of the exception
    if type(iterator) in (map, FilterIterator, IndexedIterator) or getattr(type(iterator), "outlives_errors", False):
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
    try:
        message = str(error)
    except Exception as failure:
        message = f"its message is not available: {type(failure).__name__}"
    return {"error": type(error).__name__, "message": message, "notes": notes_of(error)}


def write_line(path: str, line: dict[str, Any]) -> None:
    """Appends a line to a file by a single write, because several processes may write to the file."""
    text: str = import_whole("json").dumps(line, ensure_ascii=False, default=repr)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{text}\n".encode(errors="replace"))
    finally:
        os.close(descriptor)


def _key_of(error: BaseException) -> str | None:
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
    """Returns a phrase that names the table row of the current item, if only `map` and `filter` follow an
    `ArrowReader`; otherwise None."""
    while type(datapipe).__name__ in ("Mapper", "Filter"):
        [datapipe] = sources_of(datapipe)
        if hasattr(type(datapipe), "_last_row"):
            named: str | None = datapipe._last_row()
            return named
    return None


def skipper_of(graph: Graph) -> Any:
    return next(_skippers_of(graph), None)


def note_epoch(graph: Graph, number: int) -> None:
    for pipe in _skippers_of(graph):
        _epochs[pipe] = number


def _skippers_of(graph: Graph) -> Iterator[Any]:
    return (pipe for pipe in graph if getattr(type(pipe), "_skips", False))
