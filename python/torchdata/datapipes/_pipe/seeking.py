"""Iterates over sequences and other iterables from a given position, in constant time if possible."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torchdata._native import IteratorGuard, SequenceIterator
from torchdata.datapipes._pipe.datasets import is_built_in, is_generator_function, is_indexed_only
from torchdata.datapipes._pipe.graph.traversal import is_pipe


class _BySubscript:
    """An object without `__iter__` and `__len__`, over which Python iterates by the indices 0, 1, …"""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


_SAMPLES: tuple[Any, ...] = (
    [],
    (),
    range(0),
    range(1 << 70),
    "",
    "\u20ac",
    b"",
    bytearray(),
    _BySubscript(),
    array("I"),
)

_PLAIN = frozenset({array, list, range, tuple})

#: Types of iterators that `__setstate__(n)` moves to item n.
_SEEKABLE = frozenset(type(iter(sample)) for sample in _SAMPLES)


def is_read_by_index(iterable: Any) -> bool:
    if isinstance(iterable, Sequence) and type(iterable).__iter__ is Sequence.__iter__:
        return True
    return is_indexed_only(iterable)


def can_seek(iterable: Any) -> bool:
    if is_read_by_index(iterable):
        return True
    plain = isinstance(iterable, Sequence) or hasattr(iterable, "__array_interface__")
    return plain and type(iter(iterable)) in _SEEKABLE


def is_stream(iterable: Any) -> bool:
    """Returns whether a user's iterable cannot seek, and may yield different items each time it is read. Pipes have
    their own states, so the result for a pipe is False."""
    if isinstance(iterable, Iterator) or is_generator_function(iterable):
        return True
    return not (is_built_in(iterable) or is_pipe(iterable) or can_seek(iterable))


def iterate_from(iterable: Any, position: int) -> Iterator[Any]:
    if is_read_by_index(iterable):
        return map(iterable.__getitem__, range(position, len(iterable)))
    iterator: Any = iter(iterable)
    if position and type(iterator) in _SEEKABLE and iterator is not iterable:
        iterator.__setstate__(position)
    elif position:
        iterator = islice(iterator, position, None)
    return iterator  # type: ignore[no-any-return]


def seek(iterator: Any, count: int) -> bool:
    """Skips `count` items of an iterator. Returns False if the iterator cannot seek or has fewer than `count` items
    left."""
    if type(iterator) not in _SEEKABLE or operator.length_hint(iterator, -1) < count:
        return False
    _, _, *index = iterator.__reduce__()
    iterator.__setstate__(count + (index[0] if index and index[0] else 0))
    return True


def can_pass_over(iterable: Any) -> bool:
    return type(iterable) in _PLAIN or (hasattr(iterable, "__array_interface__") and can_seek(iterable))


def iterate_by_index(iterable: Any, position: int) -> Iterator[Any]:
    return SequenceIterator(iterable, position) if can_pass_over(iterable) else iterate_from(iterable, position)


def passes_over(iterator: Any) -> bool:
    return type(iterator) is IteratorGuard and type(iterator.iterator) is SequenceIterator
