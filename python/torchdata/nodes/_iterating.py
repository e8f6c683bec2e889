"""Reading an iterable epoch by epoch: what IterableWrapper and SamplerWrapper share.

Role: keeps the place of an iterable, which says whether the epoch has begun, goes on, or is over. Runs where the node
is read.

An iterable with `state_dict` tells its place at any time, but the answer belongs to the epoch only while that is read:
before the first line of a generator has run it is the place where the last epoch was left, and a state that was loaded
shows only then, too. So the node asks the iterable itself only once an item was asked for. Before that it gives the
place that it was loaded from, or where the last epoch was left.

An iterable is put to a place within an epoch by `load_state_dict`, and goes on there. A place between two epochs is
reached by the way that led there: the iterable is put to where the last epoch was left, takes one step (which ends that
epoch, or gives an item that is dropped), and is then iterated over anew. So whatever it counts (epochs, draws of a
generator) goes on as in the run that was saved.

Some iterables, such as those of Hugging Face, take a loaded state not once but in each later iteration. One that stands
at the same place after the first item of a new epoch as after the first item behind the load is of that kind. It is put
to the place that it had before it was ever iterated over, and the epoch is begun again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from torchdata._reporting import warn_outside
from torchdata._stateful import give
from torchdata.datapipes._pipe.witnessing import Digest
from torchdata.nodes._fields import Fields
from torchdata.nodes._places import same_place
from torchdata.nodes.base_node import BaseNode, NotReset, T
from torchdata.nodes.types import Stateful

__all__ = ["IteratingNode"]

#: Stands for a place that was not asked for or could not be had; for that at the end of an iteration.
_UNKNOWN, _END = object(), object()


class IteratingNode(BaseNode[T]):
    """A node that reads an iterable. Subclasses set `_stateful`, and define `_iterate` and `reset`."""

    NUM_YIELDED_KEY = "_num_yielded"
    STARTED_KEY = "_started"
    DIGEST_KEY = "_digest"
    ENDED_KEY = "_ended"
    #: The field that holds the state of the iterable.
    STATE_KEY: ClassVar[str]

    _of_a_run: ClassVar[frozenset[str]] = frozenset(
        {
            "_after_load",
            "_digest",
            "_at_reset",
            "_ended",
            "_it",
            "_loaded",
            "_loaded_digest",
            "_num_yielded",
            "_place",
            "_started",
            "_to_drop",
            "_turns",
        }
    )

    _it: Iterator[Any]
    #: The iterable, if it saves its place.
    _stateful: Stateful | None = None
    #: Whether the iterable tells the right place also before the first item of an epoch was asked for.
    _is_exact = False

    _num_yielded = 0
    #: Whether an item of this epoch was asked for, and whether the iterable has ended.
    _started = _ended = False
    #: Whether no item was asked for since the last reset, and whether that was to a state.
    _at_reset, _loaded = True, False
    #: The state of the iterable at this node's place, as long as no item is asked for.
    _place: Any = _UNKNOWN
    #: How many items are to be dropped, and whether a place between two epochs is to be gone to, before the next item.
    _to_drop = 0
    _turns = False
    #: A checksum of some items of an iterable without a state, which is compared when they are read again; and the one
    #: of a loaded state.
    _digest: Digest | None = None
    _loaded_digest: Digest | None = None
    #: Whether there was no reset yet, and the iterable's state at the first one: it was never iterated over.
    _is_new = True
    _pristine: Any = _UNKNOWN
    #: Whether it was given no state, and asked for no item.
    _is_untouched = True
    #: Its state after the very first item.
    _after_first: Any = _UNKNOWN
    #: Its state after the first item behind the last load; unknown once a later epoch has begun.
    _after_load: Any = _UNKNOWN

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._it = NotReset(cls.__name__)

    def _iterate(self) -> Iterator[Any]:
        """Begins an iteration over the iterable."""
        raise NotImplementedError(f"{type(self).__name__} must define _iterate()")

    # -- resets -------------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        """Puts the node before the first item of an epoch."""
        if self._at_reset:  # a place that was loaded and left: the next epoch follows from it
            with contextlib.suppress(Exception):
                self._arrive()
                if self._loaded and self._stateful is not None and not self._is_exact:
                    self._leave(self._stateful, self._place)
        self._place = self._told()
        if self._is_new:
            self._is_new, self._pristine = False, self._place
        self._num_yielded, self._started, self._ended = 0, False, False
        self._at_reset, self._loaded, self._to_drop, self._turns = True, False, 0, False
        self._digest = self._new_digest()
        self._loaded_digest = None
        self._it = self._iterate()

    def _new_digest(self) -> Digest | None:
        return Digest() if self._stateful is None and self._is_sampled() else None

    def _is_sampled(self) -> bool:
        """Whether an iterable without a state may have other items whenever it is read."""
        return False

    def _go_to(self, fields: Fields) -> None:
        """Puts the node to a saved place."""
        yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
        started = fields.flag(self.STARTED_KEY, yielded > 0)
        ended = fields.flag(self.ENDED_KEY, False)
        place: Any = _UNKNOWN if self._stateful is None else fields[self.STATE_KEY]
        self._digest = self._new_digest()
        self._loaded_digest = self._saved_digest(fields)
        is_there = False
        if self._is_new:
            self._is_new, self._pristine = False, self._told()
        if self._is_untouched and not started:
            is_there = same_place(place, self._pristine) and same_place(self._told(), place)
        if self._stateful is not None and not is_there:
            self._is_untouched = False
            self._prepare()
            give(self._stateful, place)
            self._it = iter(self._stateful)  # type: ignore[call-overload]
        else:
            place = self._pristine
            self._it = self._iterate()
        self._num_yielded, self._started, self._ended = yielded, started, ended
        self._at_reset, self._loaded, self._place = True, started and not ended, place
        self._to_drop = yielded if self._stateful is None else 0
        self._turns = self._stateful is not None and not self._is_exact and not is_there and (ended or not started)
        self._after_load = _UNKNOWN

    def _saved_digest(self, fields: Fields) -> Digest | None:
        if self.DIGEST_KEY not in fields or self._digest is None:
            return None
        try:
            return Digest.of(fields[self.DIGEST_KEY])
        except (TypeError, ValueError):
            raise fields.wrong(self.DIGEST_KEY, "must be two integers") from None

    def _prepare(self) -> None:
        """Tells the iterable what it must know before a state is loaded."""

    def _told(self) -> Any:
        """The state of the iterable; unknown if it has none or fails to give it."""
        if self._stateful is None or self._is_exact:
            return _UNKNOWN
        try:
            return self._stateful.state_dict()
        except Exception:  # a caller that asks for a state is told
            return _UNKNOWN

    # -- the way to a loaded place ------------------------------------------------------------------

    def _arrive(self) -> None:
        """Goes to where the node stands, if that was put off until an item is asked for."""
        if self._turns:
            self._turns, is_beginning = False, not self._ended and same_place(self._place, self._pristine)
            if self._stateful is not None and is_beginning and self._after_first is _UNKNOWN:
                item = self._leave(self._stateful, self._place)
            else:
                item = self._step()
            if not self._ended and not self._is_first(item):
                self._it = self._iterate()
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

    def _leave(self, stateful: Stateful, place: Any) -> Any:
        """Brings an iterable to where an epoch has left it that ends at a loaded place, before any item behind it.

        Some iterables go on there in the next epoch. They must be given the place again, because an item that they give
        here would be missing. Others start over, once they have taken the place with an item. One that goes on stands
        after a first step and the first item of another iteration where it stands after two steps.

        Returns the item of the last step.
        """
        item = self._step()
        if item is _END:
            return item
        self._it = self._iterate()
        self._step()
        new = self._after_load
        give(stateful, place)
        self._it = iter(stateful)  # type: ignore[call-overload]
        self._step()
        if self._after_load is not _END:
            self._step()
        goes_on = same_place(new, self._after_load)
        give(stateful, place)
        self._it, self._after_load = iter(stateful), _UNKNOWN  # type: ignore[call-overload]
        return item if goes_on else self._step()

    def _step(self) -> Any:
        """Lets a loaded iterable take up its place. Returns the item that it gives there."""
        item: Any = _END
        with contextlib.suppress(Exception):
            item = next(self._it, _END)
            self._after_load = _END if item is _END else self._told()
        return item

    def _is_first(self, item: Any) -> bool:
        """Whether a step has given the very first item; if so, it is the next one.

        The place before it is one to which some iterables are put as to any other, and others as to one between epochs.
        """
        if item is _END or self._after_first is _UNKNOWN or not same_place(self._place, self._pristine):
            return False
        if not same_place(self._after_load, self._after_first):
            return False
        self._it, self._after_load = itertools.chain((item,), self._it), _UNKNOWN
        return True

    # -- items --------------------------------------------------------------------------------------

    def next(self) -> T:
        """See `BaseNode.next`.

        Raises:
            ValueError: there are fewer items than were yielded when the state was saved.
        """
        if self._at_reset:
            return self._first()
        try:
            item: T = next(self._it)
        except StopIteration:
            self._ended = True
            raise
        if self._digest is not None and self._digest.next == self._num_yielded:
            self._digest.add(item)
        self._num_yielded += 1
        return item

    def _first(self) -> T:
        """The first item since a reset."""
        if isinstance(self._it, NotReset):
            self._it()
        self._started, self._is_untouched = True, False
        self._arrive()
        if self._ended:  # when the state was saved
            raise StopIteration
        self._at_reset = False
        if self._stateful is not None and not self._is_exact and self._pristine is not _UNKNOWN:
            is_very_first = self._after_first is _UNKNOWN and not self._loaded and self._place is self._pristine
            if is_very_first or self._loaded or self._after_load is not _UNKNOWN:
                return self._watched(self._stateful, is_very_first)
        return IteratingNode.next(self)  # not a subclass's, which is calling this

    def _watched(self, stateful: Stateful, is_very_first: bool) -> T:
        """The first item since a reset, of an iterable whose place after it is of interest."""
        item: Any = next(self._it, _END)
        place = _END if item is _END else self._told()
        if is_very_first:
            self._after_first = place
        if self._loaded:
            self._after_load = place
        elif self._after_load is not _UNKNOWN:
            takes_it_again, self._after_load = same_place(place, self._after_load), _UNKNOWN
            if takes_it_again:
                give(stateful, self._pristine)
                self._it = self._iterate()
                return IteratingNode.next(self)
        if item is _END:
            self._ended = True
            raise StopIteration
        self._num_yielded += 1
        return item  # type: ignore[no-any-return]

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        state: dict[str, Any] = {self.NUM_YIELDED_KEY: self._num_yielded}
        if self._stateful is None:
            digest = self._loaded_digest or self._digest
            if digest is not None and self._num_yielded:
                state[self.DIGEST_KEY] = list(digest.as_tuple())
            return state
        if not self._is_exact:
            if self._started != (self._num_yielded > 0):
                state[self.STARTED_KEY] = self._started
            if self._ended:
                state[self.ENDED_KEY] = True
        is_known = self._at_reset and self._place is not _UNKNOWN and not self._is_exact
        state[self.STATE_KEY] = self._place if is_known else self._stateful.state_dict()
        return state

    def _length(self, iterable: Any) -> int:
        """How many items an epoch has, as the iterable says.

        Raises:
            TypeError: it does not say.
        """
        try:
            return len(iterable)
        except TypeError:
            raise
        except Exception as error:
            raise TypeError(f"{type(self).__name__}: the length of {type(iterable).__name__} is not known") from error
