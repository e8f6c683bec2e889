"""Sharing out items by their indices, before they are loaded.

Role: if a `sharding_filter` reads items that are loaded by index, the pipes on the way hand on the indices in their
place. The filter loads what is its own. Only pipes take part that never look at an item: they keep or change the order,
or apply a function to each item by itself, which is put off like the loading. So every index passes where its item
would have, and places, seeds and states are those of an iteration over items. Runs in the process that iterates the
pipeline; it owns nothing.

It is decided anew by each iteration and along one way through the graph: a pipe that something else reads as well
hands items on to that. The graph stays as it was built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from torchdata._native import TimedCall
from torchdata.datapipes._pipe.explaining import explain, note_index
from torchdata.datapipes._pipe.state.record import existing_record, record_of, token_of
from torchdata.datapipes.datapipe import begin_iteration

__all__ = ["Load", "Step", "Unloadable", "begin_sharing", "begin_unloaded", "can_wait", "getter_of", "items_at"]

#: Makes the item of an index.
Load = Callable[[Any], Any]


class Unloadable(Protocol):
    """The methods that a pipe defines in its own class to take part; classes derived from it do not take part."""

    def _can_wait(self) -> bool:
        """Whether its next iteration can hand on indices."""

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        """Stands for `__iter__`: an iterator over indices, and what makes the item of an index."""

    def _loads(self) -> Load:
        """The function that makes the item of an index, without an iteration."""


def can_wait(datapipe: Any) -> bool:
    """Whether the next iteration of the pipe can hand on indices in place of items."""
    record = existing_record(datapipe)
    if record is not None and record.claim is not None:
        return False  # what raises is skipped before it is shared out
    return "_iter_unloaded" in vars(type(datapipe)) and datapipe._can_wait()


def begin_unloaded(datapipe: Any) -> tuple[Iterator[Any], Load]:
    """Starts such an iteration, guarded as any other: an iterator over indices, and what makes the item of one.

    Raises:
        ValueError: the pipe hands on items alone, and a state that was loaded says otherwise.
    """
    if "_iter_unloaded" not in vars(type(datapipe)):
        raise ValueError(
            f"the loaded state is damaged, or of another pipeline: it goes on in indices that "
            f"{type(datapipe).__name__} handed on, which hands on items alone"
        )
    loads: list[Load] = []

    def begin(datapipe: Unloadable) -> Iterator[Any]:
        indices, load = datapipe._iter_unloaded()
        loads.append(load)
        return indices

    indices = begin_iteration(datapipe, begin)
    return indices, loads[0] if loads else datapipe._loads()  # one that resumes from its end does not begin


def begin_sharing(datapipe: Any) -> Iterator[Any]:
    """Starts an iteration of which the reader takes a share: over items, and one that can pass over those of others if
    the pipe has one.

    Such a pipe defines `_can_pass_over` and `_iter_by_index`, which stands for `__iter__` and yields the same, in its
    own class; classes derived from it take no part.
    """
    record, kind = existing_record(datapipe), type(datapipe)
    is_claimed = record is not None and record.claim is not None
    if "_iter_by_index" in vars(kind) and not is_claimed and datapipe._can_pass_over():
        return begin_iteration(datapipe, kind._iter_by_index)
    return iter(datapipe)


def items_at(reader: Any, datapipe: Any, indices: Iterator[Any]) -> Iterator[Any]:
    """The items of a map pipe at some indices, for the pipe that reads it; an error of one names its index."""
    if record_of(reader).claim is not None:  # map() continues after an item that is skipped
        return map(partial(_item_at, getter_of(datapipe)), indices)
    return _each_item(getter_of(datapipe), indices)


def getter_of(datapipe: Any) -> Load:
    """What makes the item of an index of a map pipe: its `__getitem__`, timed if the loader asks for that."""
    token = token_of(datapipe) if hasattr(datapipe, "__dict__") else None
    if token is None or not token.is_timed:
        return datapipe.__getitem__  # type: ignore[no-any-return]
    own = getattr(datapipe, "_getter", None)  # which reads another map pipe, whose time is its own
    return TimedCall(token, datapipe.__getitem__ if own is None else own(getter_of(datapipe.datapipe)), True)


def _item_at(item_at: Callable[[Any], Any], index: Any) -> Any:
    try:
        return item_at(index)
    except Exception as error:
        note_index(error, index)
        raise


def _each_item(item_at: Callable[[Any], Any], indices: Iterator[Any]) -> Iterator[Any]:
    for index in indices:
        try:
            yield item_at(index)  # no name keeps it alive
        except Exception as error:
            note_index(error, index)
            raise


class Step:
    """Loads, or continues with what was loaded, on behalf of a pipe, which is named if that fails.

    Args:
        datapipe: the pipe.
        function: what the pipe does to an index, or to an item.
        before: what makes the item of an index first.
    """

    __slots__ = ("_before", "_datapipe", "_function", "_made")

    def __init__(self, datapipe: Any, function: Load, before: Load | None = None) -> None:
        token = token_of(datapipe)
        self._function = TimedCall(token, function, False) if token.is_timed else function
        self._datapipe, self._before = datapipe, before
        self._made = 0

    def __call__(self, index: Any) -> Any:
        item = index if self._before is None else self._before(index)
        try:
            made = self._function(item)
        except Exception as error:
            if not isinstance(error, StopIteration):  # which the iterator of the filter reports
                if self._before is None:
                    note_index(error, index)
                explain(error, error.__traceback__, self._datapipe, self._made)
            raise
        self._made += 1
        return made
