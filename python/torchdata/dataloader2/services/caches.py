"""Leaves the items of large caches out of snapshots, because a process that resumes can recompute them.

A process restores the items of a cache such as `in_memory_cache` by repeating the epoch that filled the cache. If the
cached items exceed the worker's share of `snapshot_budget`, a snapshot contains only the seeds of the epoch that filled
the cache.

Repeating an epoch restores the cached objects only if no code has modified them. A checksum detects modified objects at
the beginning of each epoch. If the cache is the last pipe and yields only cached items, no code can modify the cached
objects within an epoch. If later pipes may modify the cached objects, only a snapshot at an epoch's beginning leaves
out these objects, because the checksum is not computed within an epoch. If cached objects were modified, all snapshots
contain the cached items.
"""

from __future__ import annotations

import operator
import pickle
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from torchdata._engine.items.codec import dumps_by
from torchdata._handlers import FailuresSuppressed
from torchdata._reporting import warn_outside
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.state.position import Filled
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes._pipe.state.iteration import has_finished
from torchdata.datapipes._pipe.witnessing import SampleDigest


class Caches:
    """Leaves cached items out of snapshots if they have more than `most` bytes; `most=None` means no limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._graph: DataPipe | None = None
        self._caches: Sequence[tuple[Any, str]] = ()
        self._is_new, self._was_empty = True, False
        #: The epoch that fills the caches, or has filled them. `_lacks_start`: whether no snapshot from the
        #: beginning of this epoch exists.
        self._filled: Filled | None = None
        self._lacks_start = False
        #: The cached items that snapshots omit, and their size and checksum at the beginning of the epoch.
        self._left_out: list[Any] = []
        self._measure: _Measure | None = None
        self._is_untouched = False

    def begin(self, datapipe: DataPipe, seeds: bytes | None) -> None:
        """Decides at the beginning of an epoch whether snapshots omit the cached items. `seeds` is None if the epoch
        cannot be repeated."""
        values = self.values(datapipe)
        if not all(value is None or type(value) is list for value in values):
            seeds, values = None, []  # a container other than a list may be modified in place
        was_empty, self._was_empty = self._was_empty, not any(values)
        is_new, self._is_new = self._is_new, False
        if self._was_empty:
            self.forget()
            if values and seeds is not None and self._most is not None:
                self._filled, self._lacks_start = Filled(seeds), not is_new
            return
        if self._filled is None or self._lacks_start:
            self.forget()
        elif self._left_out:
            is_same = len(values) == len(self._left_out) and all(map(operator.is_, values, self._left_out))
            if not is_same or not (self._is_untouched or _measured(values) == self._measure):
                self.forget()
        else:
            # If the epoch was interrupted, functions may have modified only some of the cached objects. Repeating this
            # epoch up to its end would modify all cached objects.
            is_exact = was_empty and (has_finished(datapipe) or self._ends_in_cache(datapipe))
            measure = _measured(values) if is_exact else None
            if measure is None or self._most is None or measure.size <= self._most:
                self.forget()
            else:
                self._leave_out(self._filled, values, measure)

    def _leave_out(self, filled: Filled, values: list[Any], measure: _Measure) -> None:
        self._filled = filled._replace(checksum=_digest(values))
        self._left_out, self._measure, self._is_untouched = values, measure, False

    def forget(self) -> None:
        """Makes snapshots contain the cached items until an epoch fills the caches anew."""
        self._filled, self._left_out, self._measure, self._lacks_start = None, [], None, False

    def note_iterator(self, datapipe: DataPipe) -> None:
        """`note_iterator` must be called after the iterator of the epoch was created."""
        self._is_untouched = self._ends_in_cache(datapipe) and hooks_of(datapipe)._sources_in_use() == []

    def _ends_in_cache(self, datapipe: DataPipe) -> bool:
        ours = type(datapipe).__module__.startswith("torchdata.")
        return ours and len(self._caches) == 1 and self._caches[0][0] is datapipe

    def values(self, datapipe: DataPipe) -> list[Any]:
        if self._graph is not datapipe:
            self._graph, self._caches = datapipe, [*_caches_in(datapipe)]
        return [getattr(pipe, name) for pipe, name in self._caches]

    # -- snapshots -------------------------------------------------------------------------------------------------

    def may_snapshot(self, begins: bool) -> bool:
        """`begins`: whether no item of the epoch has been computed yet."""
        return begins or self._is_untouched or not self._left_out

    def filled(self, begins: bool) -> Filled | None:
        if self._filled is None or not self._lacks_start:
            return self._filled
        return self._filled._replace(start=b"") if begins else None

    def note_start(self, snapshot: bytes) -> None:
        if self._lacks_start and self._filled is not None:
            self._filled, self._lacks_start = self._filled._replace(start=snapshot), False

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Within this context, the graph lacks the cached items that snapshots omit."""
        self._set([[] for _ in self._left_out])
        try:
            yield
        finally:
            self._set(self._left_out)

    def note_call(self) -> None:
        """Makes snapshots contain the cached items, because a function of the user may have modified these items."""
        self.forget()
        self._graph = None

    def _set(self, values: Sequence[Any]) -> None:
        for (pipe, name), value in zip(self._caches, values, strict=False):
            setattr(pipe, name, value)

    # -- resuming --------------------------------------------------------------------------------------------------

    def resume(self, filled: Filled | None, snapshot: bytes) -> None:
        self.forget()
        if filled is not None and self._most is not None:
            self._filled = filled._replace(start=snapshot) if filled.start == b"" else filled

    def put_back(self, filled: Filled, values: list[Any], is_strict: bool) -> None:
        """`put_back` replaces the cached items of the pipes, so the states of all pipes must be loaded before this
        call.

        Raises RuntimeError if `is_strict` is True and the items differ from the original items. Items that differ only
        in floating-point numbers and arrays cause only a warning.
        """
        checksum = _digest(values)
        if is_strict and checksum != filled.checksum:
            _report_difference(SampleDigest.differ_in_numbers_alone(checksum, filled.checksum or 0))
        self.forget()
        self._set(values)
        measure = _measured(values)
        if self._most is not None and measure is not None:
            self._leave_out(filled, values, measure)


def _report_difference(is_noise: bool) -> None:
    """Warns if the recomputed items differ only in floating-point numbers and arrays (`is_noise`), and raises an error
    if they differ in other values."""
    if is_noise:
        warn_outside(
            "the items of a cache were recomputed for resuming, and contain other numbers than the cached items. If "
            "these are drawn for each item, as for augmentation, nothing is lost. With a larger snapshot_budget of the "
            "reading service (None for no limit), states contain the cached items",
            RuntimeWarning,
        )
        return
    raise RuntimeError(
        "this pipeline does not repeat itself, so it cannot resume: the items of its cache were recomputed and differ "
        "from the cached items. Give the reading service a larger snapshot_budget (None for no limit), so that states "
        "contain the cached items. load_state_dict(state, strict=False) of the loader resumes anyway"
    )


def _digest(values: Sequence[Any]) -> int:
    """Returns a checksum of the lengths of the caches and of some items."""
    digest, values = SampleDigest(), [items or () for items in values]
    for position, item in enumerate(chain([[*map(len, values)]], *values)):
        if position == digest.next:
            digest.add(item)
    return digest.checksum


class _Measure(NamedTuple):
    """The size of cached items in bytes, and a checksum of their pickles in this process."""

    size: int
    checksum: int


def _measured(values: Sequence[Any]) -> _Measure | None:
    """Returns None if an item cannot be pickled."""
    size = checksum = 0
    with FailuresSuppressed():  # a snapshot that contains the items reports why they cannot be pickled
        for items in values:
            if items and type(items) is not list:
                return None
            checksum = zlib.crc32(b"%d" % len(items or ()), checksum)
            for item in items or ():
                pickled, buffers, _ = dumps_by(pickle.Pickler, item)
                for part in (memoryview(pickled), *buffers):
                    size += part.nbytes
                    checksum = zlib.crc32(part, checksum)
        return _Measure(size, checksum)
    return None


def _caches_in(datapipe: DataPipe) -> Iterator[tuple[Any, str]]:
    for pipe in Graph(datapipe):
        for each in getattr(type(pipe), "_declared", ()):
            if each.lasts and each.items and each.saved:
                yield pipe, each.name
