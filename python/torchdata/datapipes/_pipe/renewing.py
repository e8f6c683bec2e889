"""Replaces the iterator of a pipe of this package after `on_error` has skipped an exception that ended the iterator.

A generator cannot continue after it has raised an exception. A new call of the pipe's `__iter__` can resume the
iteration, because the declared state contains the position where the exception was raised. `Renewal` keeps the running
iterators of the sources, and the new iterator of the pipe continues to read them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from types import GeneratorType
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, iter_base, sources_of
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes._pipe.state.record import existing_record, record_of, token_of

_OURS = "torchdata.datapipes."


class Renewal(Iterator[Iterator[Any]]):
    """Reads one iteration of a pipe from several iterators in turn: the first iterator of the pipe and, after each
    skipped exception, a new iterator.

    Args:
        sources: the sources of the pipe. The iterator is not replaced if neither the pipe nor a source has yielded an
            item since the previous exception.
    """

    def __init__(self, datapipe: Any, function: Callable[[Any], Iterator[Any]], sources: list[Any]) -> None:
        self._datapipe, self._function, self._sources = datapipe, function, sources
        self._first: Iterator[Any] | None = None
        self._is_broken = False
        #: The running iterators of the sources, by id of the source.
        self._guards: dict[int, Iterator[Any]] = {}
        #: After an exception, the running iterators of sources that the pipe's new iterator has not taken over yet.
        self._again: dict[int, Iterator[Any]] = {}
        #: The numbers of items that the pipe and each source had yielded when the pipe last raised an exception.
        self._seen: list[int] | None = None

    def over(self, iterator: Iterator[Any]) -> Iterator[Any]:
        kind = type(self._datapipe)
        if type(iterator) is not GeneratorType and not (type(iterator) is chain and hasattr(kind, "_drop_broken")):
            return iterator
        self._first = iterator
        return chain.from_iterable(self)

    def __next__(self) -> Iterator[Any]:
        first, self._first = self._first, None
        if first is not None:
            return first
        if not self._is_broken:
            raise StopIteration
        self._is_broken = False
        datapipe = self._datapipe
        if not type(datapipe)._derives_state:
            datapipe.load_state_dict(datapipe.state_dict())
        self._again = dict(self._guards)
        return self._function(datapipe)

    def renew(self) -> bool:
        """Prepares a new iterator of the pipe after the old iterator has raised an exception. Returns False if no item
        was yielded since the previous exception, because a new iterator would only raise the exception again."""
        seen = [token_of(pipe).yielded for pipe in (self._datapipe, *self._sources)]
        if seen == self._seen:
            return False
        self._seen, self._is_broken = seen, True
        return True


def renewal_of(datapipe: Any, function: Callable[[Any], Iterator[Any]]) -> Renewal | None:
    record, kind = record_of(datapipe), type(datapipe)
    record.renewal = None
    if not (kind.__module__.startswith(_OURS) and kind._renews and hasattr(kind, "iteration_state")):
        return None
    sources = [source for source in sources_of(datapipe) if iter_base() in type(source).__mro__]
    begins = hooks_of(datapipe)._begins_sources
    if not begins:  # for a child of a split, the pipe that all children share begins the sources
        sources = [below for source in sources for below in sources_of(source) if is_iter_pipe(below)]
    if not sources:
        return None
    renewal = Renewal(datapipe, function, sources)
    record.renewal = mine = weakref.ref(renewal)
    for source in sources if begins else ():
        record_of(source).read_by = mine
    return renewal


def taken_again(datapipe: Any) -> Iterator[Any] | None:
    """Returns the running iterator of a source; None if the source must begin a new iteration."""
    renewal = _reader_of(datapipe)
    return None if renewal is None else renewal._again.pop(id(datapipe), None)


def keep_for_reader(datapipe: Any, guard: Iterator[Any]) -> None:
    """Stores `guard`, the running iterator of `datapipe`, so that the pipe that reads `datapipe` can continue after an
    exception."""
    renewal = _reader_of(datapipe)
    if renewal is not None:
        renewal._guards[id(datapipe)] = guard


def _reader_of(datapipe: Any) -> Renewal | None:
    record = existing_record(datapipe)
    return None if record is None or record.read_by is None else record.read_by()
