"""Lets a `sharding_filter` distribute the indices of items, so that each process loads only the items of its share.

If the source is read by index, the pipes before a `sharding_filter` can yield indices instead of items. Only pipes that
reorder items without inspecting them (such as `shuffle`) and pipes that call a function for each item (such as `map`)
can yield indices. For each index of its share, the `sharding_filter` loads the item and calls the functions of the
pipes before it.

Yielding indices does not change positions, seeds and states, because the indices have the order of the items. A
`sharding_filter` decides at the beginning of an iteration whether the earlier pipes yield indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata._native import IndexedIterator, TimedCall
from torchdata.datapipes._pipe.explaining import explain, note_index
from torchdata.datapipes._pipe.seeking import can_pass_over
from torchdata.datapipes._pipe.state.hooks import depth_of
from torchdata.datapipes._pipe.state.record import existing_record, token_of
from torchdata.datapipes.datapipe import IterDataPipe, T_co, begin_iteration

Load = Callable[[Any], Any]


# A pipe that can yield indices defines three methods. `_can_wait` returns whether the next iteration can yield indices.
# `_iter_unloaded` is called instead of `__iter__` to begin an iteration: it returns an iterator over indices, and a
# function from an index to its item. `_loads` returns the function from an index to its item without beginning an
# iteration. A subclass that overrides `__iter__` must override all three methods.


def can_wait(datapipe: Any) -> bool:
    record = existing_record(datapipe)
    if record is not None and record.claim is not None:
        return False  # exceptions are skipped before the items are distributed
    kind = type(datapipe)
    is_own = hasattr(kind, "_iter_unloaded") and depth_of(kind, "_iter_unloaded") <= depth_of(kind, "__iter__")
    return is_own and datapipe._can_wait()


def begin_unloaded(datapipe: Any) -> tuple[Iterator[Any], Load]:
    """Starts an iteration that yields indices instead of items. Returns the iterator, and the function that loads an
    item. Raises ValueError if the pipe cannot yield indices, which means that the loaded state is damaged or belongs to
    another pipeline."""
    if not can_wait(datapipe):
        raise ValueError(
            f"the loaded state is damaged, or belongs to another pipeline: it counts indices "
            f"from {type(datapipe).__name__}, but this pipe only yields items"
        )
    loads: list[Load] = []

    def begin(datapipe: Any) -> Iterator[Any]:
        indices: Iterator[Any]
        indices, load = datapipe._iter_unloaded()
        loads.append(load)
        return indices

    indices = begin_iteration(datapipe, begin)
    return indices, loads[0] if loads else datapipe._loads()  # if it resumes at its end, `begin` is not called


def begin_sharing(datapipe: Any) -> Iterator[Any]:
    """Begins an iteration that a `sharding_filter` reads. If possible, the pipe skips the items of other shards without
    creating them.

    Items can be skipped only if the pipe's own class defines `_iter_by_index`, because a subclass may yield different
    items.
    """
    return begin_iteration(datapipe, type(datapipe)._iter_by_index) if can_share(datapipe) else iter(datapipe)


def can_share(datapipe: Any) -> bool:
    record = existing_record(datapipe)
    is_claimed = record is not None and record.claim is not None
    return "_iter_by_index" in vars(type(datapipe)) and not is_claimed and can_pass_over(datapipe.iterable)


def getter_of(datapipe: Any) -> Load:
    token = token_of(datapipe) if hasattr(datapipe, "__dict__") else None
    if token is None or not token.is_timed:
        return datapipe.__getitem__  # type: ignore[no-any-return]
    own = getattr(datapipe, "_getter", None)  # calls another map-style pipe, whose time is measured separately
    return TimedCall(token, datapipe.__getitem__ if own is None else own(getter_of(datapipe.datapipe)), True)


class PipeStep:
    """Calls the function of one pipe, and adds a note with the pipe's name to an exception.

    Args:
        before: a function that loads the source's item at an index; None if the pipe's function takes the index itself.
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
            if not isinstance(error, StopIteration):  # the filter's iterator reports StopIteration
                if self._before is None:
                    note_index(error, index)
                explain(error, error.__traceback__, self._datapipe, self._made)
            raise
        self._made += 1
        return made


class ReadsByIndex(IterDataPipe[T_co]):
    datapipe: Any

    def _indices(self) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        return IndexedIterator(getter_of(self.datapipe), self._indices(), note_index)

    def _can_wait(self) -> bool:
        return True

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        return self._indices(), self._loads()

    def _loads(self) -> Load:
        return PipeStep(self, getter_of(self.datapipe))
