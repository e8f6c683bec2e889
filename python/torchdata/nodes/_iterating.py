"""The common base of IterableWrapper and SamplerWrapper, which read an iterable in successive epochs.

Role: counts the items of an iterable, and saves its position. An iterable with a state is read by a `StatefulStream`.
Any other iterable is reread up to a saved position. Runs in the thread that reads the node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

from torchdata._reporting import warn_outside
from torchdata._stateful import StatefulStream, StreamState
from torchdata.datapipes._pipe.seeking import seek
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, NotReset, T
from torchdata.nodes.types import Stateful

__all__ = ["IteratingNode"]


class IteratingNode(BaseNode[T]):
    """A node that reads an iterable. Subclasses set `_stateful`, and define `_source` and `reset`."""

    NUM_YIELDED_KEY = "_num_yielded"
    STARTED_KEY = "_started"
    DIGEST_KEY = "_digest"
    ENDED_KEY = "_ended"
    #: The field for the state of the iterable, and the field for the state of its iterator, if there is one.
    STATE_KEY: ClassVar[str]
    ITERATOR_KEY = "_iterator"

    _of_a_run: ClassVar[frozenset[str]] = frozenset(
        {"_digest", "_it", "_loaded_digest", "_num_yielded", "_started", "_stream", "_to_drop"}
    )

    _it: Iterator[Any]
    #: The iterable, if it has a state, and whether the state is also exact before the first item of an epoch.
    _stateful: Stateful | None = None
    _is_exact = False
    #: The stream that reads the iterable, from the first reset on.
    _stream: StatefulStream | None = None

    _num_yielded = 0
    #: Whether an item of this epoch was requested.
    _started = False
    #: The number of items to drop before the next item, for an iterable without a state.
    _to_drop = 0
    #: A checksum of some items of an iterable without a state, and the checksum in a loaded state. The checksums are
    #: compared when the items are reread.
    _digest: SampleDigest | None = None
    _loaded_digest: SampleDigest | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._it = NotReset(cls.__name__)

    def _source(self) -> Any:
        """Returns the iterable to read."""
        raise NotImplementedError(f"{type(self).__name__} must define _source()")

    def _prepare(self) -> None:
        """Prepares the iterable before an iteration, and before a state is loaded."""

    # -- resets -------------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        """Moves the node to the beginning of an epoch."""
        if self._to_drop:  # no item was read from the loaded position, but the next epoch depends on this position
            with contextlib.suppress(Exception):
                self._arrive()
        self._num_yielded, self._started, self._to_drop = 0, False, 0
        self._digest, self._loaded_digest = self._new_digest(), None
        self._read(None)

    def _read(self, state: StreamState | None) -> bool:
        """Begins an epoch or restores a position; returns whether the iterable or its iterator has a state."""
        iterable = self._source() if self._stateful is None else self._stateful
        if self._stream is None or self._stateful is None:
            self._stream = StatefulStream(iterable, self._prepare, is_exact=self._is_exact)
        stream = self._stream
        rest = stream.begin() if state is None else stream.go_to(state)
        self._it = rest if stream.has_state else stream.iterator
        return stream.has_state

    def _new_digest(self) -> SampleDigest | None:
        return SampleDigest() if self._stateful is None and self._is_sampled() else None

    def _is_sampled(self) -> bool:
        """Returns whether an iterable without a state may yield different items each time it is read."""
        return False

    def _go_to(self, fields: StateFields) -> None:
        """Moves the node to a saved position."""
        yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
        started = fields.flag(self.STARTED_KEY, yielded > 0)
        ended = fields.flag(self.ENDED_KEY, False)
        self._digest = self._new_digest()
        self._loaded_digest = self._saved_digest(fields)
        own = None if self._stateful is None else fields[self.STATE_KEY]
        inner = fields.get(self.ITERATOR_KEY)
        has_state = self._read(StreamState(own, inner, started, ended))
        self._num_yielded, self._started = yielded, started
        self._to_drop = 0 if has_state and (self._stateful is not None or inner is not None) else yielded

    def _saved_digest(self, fields: StateFields) -> SampleDigest | None:
        if self.DIGEST_KEY not in fields or self._digest is None:
            return None
        try:
            return SampleDigest.of(fields[self.DIGEST_KEY])
        except (TypeError, ValueError):
            raise fields.wrong(self.DIGEST_KEY, "must be two integers") from None

    def _arrive(self) -> None:
        """Drops the items that an iterable without a state had yielded before the loaded state was saved."""
        if self._digest is None and seek(self._it, self._to_drop):
            self._to_drop = 0
        while self._to_drop:
            try:
                item = next(self._it)
            except StopIteration:
                raise ValueError(
                    f"{type(self).__name__}: the state was saved after {self._num_yielded} items, but there are only "
                    f"{self._num_yielded - self._to_drop} ({self.NUM_YIELDED_KEY!r} in the state); load it with the "
                    "data that it was saved with"
                ) from None
            if self._digest is not None and self._digest.next == self._num_yielded - self._to_drop:
                self._digest.add(item)
            self._to_drop -= 1
        saved, self._loaded_digest = self._loaded_digest, None
        if saved is not None and self._digest is not None and not self._digest.agrees_with(saved):
            warn_outside(
                f"{type(self).__name__}: the first {self._num_yielded} items are not those that were read before the "
                "state was saved. If their order differs, some items come twice and others never: seed whatever "
                "shuffles or draws them, in each epoch, or give the iterable state_dict() and load_state_dict().",
                RuntimeWarning,
            )

    # -- items --------------------------------------------------------------------------------------

    def next(self) -> T:
        """Returns the next item; see `BaseNode.next`.

        Raises:
            ValueError: there are fewer items than were yielded before the state was saved.
        """
        if not self._started or self._to_drop:
            if isinstance(self._it, NotReset):
                self._it()
            self._started = True
            self._arrive()
        item: T = next(self._it)
        if self._digest is not None and self._digest.next == self._num_yielded:
            self._digest.add(item)
        self._num_yielded += 1
        return item

    def get_state(self) -> dict[str, Any]:
        """Returns the position; see `BaseNode.get_state`."""
        state: dict[str, Any] = {self.NUM_YIELDED_KEY: self._num_yielded}
        if self._stateful is None:
            digest = self._loaded_digest or self._digest
            if digest is not None and self._num_yielded:
                state[self.DIGEST_KEY] = list(digest.as_tuple())
        stream = self._stream
        if stream is None or not stream.has_state:
            return state
        own, inner, started, ended = stream.state()
        if not self._is_exact:
            if started != (self._num_yielded > 0):
                state[self.STARTED_KEY] = started
            if ended:
                state[self.ENDED_KEY] = True
        if inner is not None:
            state[self.ITERATOR_KEY] = inner
        if self._stateful is not None:
            state[self.STATE_KEY] = own
        return state

    def _length(self, iterable: Any) -> int:
        """Returns the length that the iterable reports.

        Raises:
            TypeError: the length of the iterable is unknown.
        """
        try:
            return len(iterable)
        except TypeError:
            raise
        except Exception as error:
            raise TypeError(f"{type(self).__name__}: the length of {type(iterable).__name__} is not known") from error
