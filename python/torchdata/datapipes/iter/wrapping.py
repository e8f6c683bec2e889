"""Pipes that begin a pipeline over something iterable, or only describe one: IterableWrapper, LengthSetter.

Run in whichever process iterates the pipeline. IterableWrapper owns a reference to the user's iterable, and
for the time of one iteration a copy of it.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

from torchdata.datapipes._checks import check_generator_function, check_int, check_iterable, check_source
from torchdata.datapipes._datasets import is_generator_function, is_indexed_only
from torchdata.datapipes._registry import functional_datapipe
from torchdata.datapipes._unloaded import Load, Step
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.state import Counting, Stateless

__all__ = ["IterableWrapper", "LengthSetter"]

T_co = TypeVar("T_co", covariant=True)


class _BySubscript:
    """Has neither `__iter__` nor a length: Python iterates over it by subscripts 0, 1, …"""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


_SAMPLES: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", "\u20ac", b"", bytearray(), _BySubscript())

#: Iterators whose `__setstate__(n)` means "go on at item n".
_SEEKABLE = frozenset(type(iter(sample)) for sample in _SAMPLES)

#: Types whose instances cannot be changed in place, so that copying them is pointless.
_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _private_copy(iterable: Any) -> Any:
    """A deep copy of `iterable`, made cheaply where its members cannot be changed anyway."""
    kind = type(iterable)
    if kind in (range, str, bytes):
        return iterable
    if kind in (list, tuple) and _IMMUTABLE.issuperset(map(type, iterable)):
        return iterable.copy() if kind is list else iterable
    return copy.deepcopy(iterable)


def _is_read_by_index(iterable: Any) -> bool:
    """Whether iterating over it is to ask for the items 0, 1, … up to its length."""
    if isinstance(iterable, Sequence) and type(iterable).__iter__ is Sequence.__iter__:
        return True
    return is_indexed_only(iterable)


def _iterate_from(iterable: Any, position: int) -> Iterator[Any]:
    """An iterator over `iterable` without its first `position` items, in constant time where it can seek."""
    if _is_read_by_index(iterable):
        return map(iterable.__getitem__, range(position, len(iterable)))
    iterator: Any = iter(iterable)
    if position and type(iterator) in _SEEKABLE and iterator is not iterable:
        iterator.__setstate__(position)
    elif position:
        iterator = islice(iterator, position, None)
    return iterator  # type: ignore[no-any-return]


@functional_datapipe("set_length")
class LengthSetter(Stateless, IterDataPipe[T_co]):
    """Gives a pipeline a length without changing its items.

    Args:
        source_datapipe: the pipe whose items are passed on.
        length: what `len()` returns.

    Raises:
        ValueError: `length` is negative.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> len(IterableWrapper(range(10)).filter(lambda n: n < 5).set_length(5))
        5
    """

    def __init__(self, source_datapipe: Iterable[T_co], length: int) -> None:
        source_datapipe = check_source("LengthSetter", source_datapipe, "source_datapipe")
        self.source_datapipe = source_datapipe
        self.length = check_int("LengthSetter", "length", length, least=0)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.source_datapipe)

    def __len__(self) -> int:
        return self.length


class IterableWrapper(Counting, IterDataPipe[T_co]):
    """Begins a pipeline over any iterable.

    Lists, tuples, ranges, strings, NumPy arrays and other sequences restore their position in constant time;
    other iterables are read again up to it. So do data sets with `__len__` and `__getitem__` and without `__iter__`,
    such as PyTorch's, which are read by the indices up to their length; behind them, a `sharding_filter` shares out
    indices (see there).

    Args:
        iterable: what to iterate over. A generator function is called anew in each epoch. A one-shot iterator that
            cannot be copied gives its items once.
        deepcopy: whether each iteration reads a deep copy, so that changing items in place does not change
            the next epoch. Where the iterable cannot be copied, a warning says so and the original is read.
            With False the items are the iterable's own objects.

    Raises:
        TypeError: `iterable` is not iterable, or a generator function that needs arguments.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)))
        [0, 1, 2]
        >>> def countdown():
        ...     yield from (3, 2, 1)
        >>> pipe = IterableWrapper(countdown)
        >>> list(pipe), list(pipe)
        ([3, 2, 1], [3, 2, 1])
    """

    def __init__(
        self, iterable: Iterable[T_co] | Callable[[], Iterator[T_co]], deepcopy: bool = True
    ) -> None:
        if inspect.isroutine(iterable) or is_generator_function(iterable):
            check_generator_function("IterableWrapper", "iterable", iterable)
        else:
            check_iterable("IterableWrapper", "iterable", iterable)
        self.iterable: Any = iterable
        self.deepcopy = deepcopy

    def __iter__(self) -> Iterator[T_co]:
        if not self.deepcopy and isinstance(self.iterable, IterDataPipe):
            return iter(self.iterable)  # its own state says where it stands
        return _iterate_from(self._source(), self._position)

    def _source(self) -> Any:
        """What this iteration reads."""
        source = self.iterable
        if is_generator_function(source):
            return source()
        if self.deepcopy:
            try:
                return _private_copy(source)
            except TypeError:
                warnings.warn(
                    f"The iterable of type {type(source).__name__} given to IterableWrapper cannot be "
                    f"deep-copied, so "
                    "changing its items in place changes them for later epochs too; pass deepcopy=False to "
                    "accept that.",
                    UserWarning,
                    stacklevel=_caller_of_iter(),
                )
        return source

    def _can_wait(self) -> bool:
        return _is_read_by_index(self.iterable)

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        source = self._source()
        return iter(range(self._position, len(source))), Step(self, source.__getitem__)

    def __len__(self) -> int:
        if isinstance(self.iterable, Sized):
            return len(self.iterable)
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")


def _caller_of_iter() -> int:
    """The stack level, for a warning raised in `__iter__`, of the first frame outside this library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("torchdata."):
        level, frame = level + 1, frame.f_back
    return level
