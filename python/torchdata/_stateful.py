"""Iterables that save their own positions: the protocol, and reading one epoch by epoch. Shared by all loaders.

Role: runs where an iterable is read. A `StatefulStream` owns the iterator; the iterable belongs to the user.

An iterable reports its position at any time, but the answer belongs to the epoch only while that is read: before the
first line of a generator has run, it is the position where the last epoch was left, and a state that was loaded shows
only then, too. So the iterable itself is asked only once an item was asked for. Before that, its position is the
loaded position, or the position where the last epoch was left.

A position within an epoch is restored by `load_state_dict`. A position between two epochs is reached in the same way as
in the saved run: the iterable is put to where the last epoch was left, takes one step (which ends that epoch, or gives
an item that is dropped), and is then iterated over anew. So its own counts (epochs, draws of a generator) are
those of the saved run. Some iterables continue in the next iteration where the last one stopped. They would lose that
item, so they are given their state again.

Some iterables, such as those of Hugging Face, take a loaded state not once but in each later iteration. An iterable
that has the same state after the first item of a new epoch as after the first item after the load is of that kind. It
is given the state that it had before it was ever iterated over, and the epoch is begun again. Other iterables prepare
the next epoch when one ends: if the step at a saved end gives an item, they are given their state again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torchdata._signatures import signature_of

__all__ = ["Stateful", "StatefulStream", "StreamState", "copied", "give", "is_same", "is_stateful", "state_of"]

#: Stands for a state that was not asked for or that cannot be had; for that at the end of an iteration.
_UNKNOWN, _END = object(), object()

#: Types of values that nothing changes.
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`.

    If a dataset, an iterator, a sampler or a collate function has them, it is saved and restored by them instead of
    being read anew. An object whose `state_dict` needs arguments is not `Stateful`. The value of `state_dict` must not
    change when the iteration goes on: return copies of values that do.

    Example:
        >>> from torchdata.nodes import Stateful
        >>> class Countdown:
        ...     def __init__(self):
        ...         self.left = 3
        ...     def __iter__(self):
        ...         while self.left:
        ...             self.left -= 1
        ...             yield self.left
        ...     def state_dict(self):
        ...         return {"left": self.left}
        ...     def load_state_dict(self, state_dict):
        ...         self.left = state_dict["left"]
        >>> isinstance(Countdown(), Stateful), isinstance([2, 1, 0], Stateful)
        (True, False)
    """

    def state_dict(self) -> dict[str, Any]:
        """Where the object stands, as values that pickle."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` go on from a saved place.

        Args:
            state_dict: what `state_dict` returned.
        """
        ...


def is_stateful(one: object) -> TypeGuard[Stateful]:
    """Whether an object is a `Stateful`, whose `state_dict` can be called without arguments.

    That of some datasets cannot, as it asks how far their loader has come.
    """
    if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
        return False
    method = one.state_dict
    function = getattr(method, "__func__", None)
    return _needs_nothing(method) if function is None else _is_method_without_arguments(function)


@functools.lru_cache(maxsize=1024)
def _is_method_without_arguments(function: Any) -> bool:
    return _needs_nothing(functools.partial(function, None))


def _needs_nothing(function: Any) -> bool:
    """Whether a function can be called without arguments, for all that its signature says."""
    try:
        signature_of(function).bind()
    except ValueError:  # a built-in one has no signature
        return True
    except TypeError:
        return not callable(function)
    return True


def state_of(one: object) -> Any:
    """The state of an object that has one, else None."""
    return one.state_dict() if is_stateful(one) else None


def copied(state: Any) -> Any:
    """A state that does not change when the first one does; itself if it cannot be copied."""
    if type(state) is dict and _ATOMS.issuperset(map(type, state.values())):
        return state.copy()
    try:
        return copy.deepcopy(state)
    except Exception:  # what cannot be copied is the user's to keep still
        return state


def give(one: Stateful, state: Any) -> None:
    """Loads a copy of a state into an object of the user, which may keep what it is given and change it."""
    one.load_state_dict(copied(state))


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal; False if that cannot be found out."""
    try:
        return bool(one == other)
    except Exception:  # arrays have no truth, for one
        pass
    try:
        return pickle.dumps(copied(one)) == pickle.dumps(copied(other))
    except Exception:
        return False


class StreamState(NamedTuple):
    """The position of an iterable.

    Args:
        own: the state of the iterable; None if it has none.
        inner: the state of its iterator, if that is another object; None if it has none.
        started: whether an item of the epoch was asked for.
        ended: whether the epoch is over; if it has not started, whether the epoch before was.
    """

    own: Any
    inner: Any
    started: bool
    ended: bool

    @classmethod
    def of(cls, saved: dict[str, Any]) -> StreamState:
        """The position that `_asdict` has made data of.

        Raises:
            TypeError, LookupError: it is damaged.
        """
        state = cls(saved["own"], saved["inner"], saved["started"], saved["ended"])
        if type(state.started) is not bool or type(state.ended) is not bool:
            raise TypeError("started and ended are True or False")
        return state


class StatefulStream:
    """Reads an iterable with a state, or with iterators that have one.

    Args:
        iterable: the iterable.
        prepare: called before each iteration, and before a state is loaded.
        is_exact: whether the iterable reports the right position before the first item of an epoch, too.
    """

    def __init__(self, iterable: Any, prepare: Callable[[], object] | None = None, *, is_exact: bool = False) -> None:
        self._iterable = iterable
        self._prepare = prepare
        self._is_exact = is_exact
        #: The iterator of the iterable. Its first item is read through the iterator that `begin` or `go_to` returns.
        self.iterator: Any = iter(())
        #: Whether an item of this epoch was asked for, and whether the epoch is over.
        self.started = self.ended = False
        #: Whether no item was asked for since an epoch was begun or a state loaded; whether that was a state inside an
        #: epoch; whether a position between two epochs is to be reached before the next item.
        self._unread, self._loaded, self._turns = True, False, False
        #: The state of the iterable and of its iterator, as long as `_unread`; whether the epoch before was over then.
        self._base: Any = _UNKNOWN
        self._follows_end = False
        #: Whether the iterable was given no state, and asked for no item.
        self._is_untouched = True
        #: Its state before it was ever iterated over, None until then; that after the very first item; and that after
        #: the first item behind the last load, which is unknown once a later epoch has begun.
        self._pristine: Any = None
        self._after_first: Any = _UNKNOWN
        self._after_load: Any = _UNKNOWN

    def reads(self, iterable: Any) -> bool:
        """Whether this is the iterable."""
        return self._iterable is iterable

    @property
    def has_state(self) -> bool:
        """Whether the iterable, or its iterator, has a state."""
        return is_stateful(self._iterable) or self._has_inner

    @property
    def _has_inner(self) -> bool:
        return self.iterator is not self._iterable and is_stateful(self.iterator)

    # -- positions ----------------------------------------------------------------------------------

    def begin(self) -> Iterator[Any]:
        """Begins an epoch, and returns an iterator over it."""
        if self._unread:  # a position that was loaded and left: the next epoch follows from it
            with contextlib.suppress(Exception):
                self._arrive()
                if self._loaded and not self._is_exact:
                    self.ended = self._leave() is _END
        left, self._base = self._base, _UNKNOWN if self._is_exact else self._asked()
        has_stayed = self._unread and not self._loaded and is_same(left, self._base)
        self._follows_end = self.ended or (self._follows_end and has_stayed)
        if self._pristine is None:
            self._pristine = self._base
        self.started = self.ended = False
        self._unread, self._loaded, self._turns = True, False, False
        self.iterator = self._iterate()
        return itertools.chain.from_iterable(self._pieces())

    def go_to(self, state: StreamState) -> Iterator[Any]:
        """Restores a position, and returns an iterator over the rest of the epoch."""
        base: Any = state.own, state.inner
        is_there = False
        now: Any = _UNKNOWN if self._is_exact else self._asked()
        if self._pristine is None:
            self._pristine = now
        if self._is_untouched and not state.started and self._pristine is not _UNKNOWN and now is not _UNKNOWN:
            is_there = is_same(state.own, self._pristine[0]) and is_same(state.own, now[0])
        if is_there:
            base, self.iterator = self._pristine, self._iterate()
        else:
            self._is_untouched = False
            self._take(*base)
        self.started, self.ended = state.started, state.started and state.ended
        self._follows_end = state.ended and not state.started
        self._unread, self._loaded, self._base = True, state.started and not state.ended, base
        self._turns = not self._is_exact and not is_there and not self._loaded
        self._after_load = _UNKNOWN
        return itertools.chain.from_iterable(self._pieces())

    def state(self) -> StreamState:
        """The position after the last item."""
        is_known = self._unread and self._base is not _UNKNOWN and not self._is_exact
        own, inner = self._base if is_known else self._states()
        if not self._is_exact:
            own, inner = copied(own), copied(inner)
        return StreamState(own, inner, self.started, self.ended if self.started else self._follows_end)

    def _states(self) -> tuple[Any, Any]:
        return state_of(self._iterable), self.iterator.state_dict() if self._has_inner else None

    def _asked(self) -> Any:
        """A copy of the states; unknown if the iterable fails to give one."""
        try:
            return copied(self._states())
        except Exception:  # a caller that asks for a state is told
            return _UNKNOWN

    def _iterate(self) -> Iterator[Any]:
        if self._prepare is not None:
            self._prepare()
        return iter(self._iterable)

    # -- the way to a loaded position ---------------------------------------------------------------

    def _take(self, own: Any, inner: Any) -> None:
        """Loads states into the iterable and a new iterator."""
        if self._prepare is not None:
            self._prepare()
        has_own = is_stateful(self._iterable)
        if has_own:
            give(self._iterable, own)
        self.iterator = iter(self._iterable)
        if inner is not None and self._has_inner:
            give(self.iterator, inner)
        elif has_own and self.iterator is self._iterable and not is_same(state_of(self._iterable), own):
            give(self._iterable, own)  # `iter` has put it to the beginning

    def _arrive(self) -> None:
        """Reaches the position, if that was put off until an item is asked for."""
        if not self._turns:
            return
        is_end = self.ended or self._follows_end
        is_beginning = not is_end and self._after_first is _UNKNOWN and is_same(self._base, self._pristine)
        item = self._leave() if is_beginning else self._step()
        self._turns = False
        if item is not _END and is_end:  # it was ready for the next epoch
            give(self._iterable, self._base[0])
            self._after_load = _UNKNOWN
        elif self._is_first(item):
            return
        if not self.ended:
            self.iterator = self._iterate()

    def _leave(self) -> Any:
        """Brings the iterable to where an epoch that ends at the loaded position has left it, before any later item.

        The next iteration of some iterables continues at that position. These are given the position again, because the
        step has read an item. Others begin anew, once a step has made them take the position. To tell them apart, the
        state after a step and the first item of another iteration is compared with the state after two steps. If an
        iterable continues, they are equal.

        Returns the item of the last step.
        """
        item = self._step()
        if item is _END or not is_stateful(self._iterable):
            return item
        self.iterator = self._iterate()
        self._step()
        anew = self._after_load
        self._take(*self._base)
        self._step()
        if self._after_load is not _END:
            self._step()
        continues = anew is not _UNKNOWN and is_same(anew, self._after_load)
        self._take(*self._base)
        self._after_load = _UNKNOWN
        return item if continues else self._step()

    def _step(self) -> Any:
        """Lets a loaded iterable take up its position. Returns the item that it gives there."""
        item: Any = _END
        if self._base is not _UNKNOWN and self._base[1] is not None and not self._loaded:
            return item  # an iterator with a state has taken it up
        with contextlib.suppress(Exception):
            item = next(self.iterator, _END)
            self._after_load = _END if item is _END else self._asked()
        return item

    def _is_first(self, item: Any) -> bool:
        """Whether a step has given the very first item; if so, it is the next one.

        The position before it is one to which some iterables are put as to any other, and others as to one between
        epochs.
        """
        if item is _END or self._after_first is _UNKNOWN or not is_same(self._base, self._pristine):
            return False
        if not is_same(self._after_load, self._after_first):
            return False
        self.iterator, self._after_load = itertools.chain((item,), self.iterator), _UNKNOWN
        return True

    # -- items --------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[Iterator[Any]]:
        """The first item, and all others with no Python code between two of them."""
        while self._unread:
            try:
                first = self._first()
            except StopIteration:
                self.ended = True
                return
            except BaseException as error:  # raised below, and the next call goes on from there
                yield map(_raise, (error,))
                continue
            item, first = [first], None
            yield map(item.pop, (0,))  # no name keeps the item alive
        yield self.iterator
        self.ended = True

    def _first(self) -> Any:
        """The first item since an epoch was begun or a state loaded."""
        self.started, self._is_untouched = True, False
        self._arrive()
        if self.ended:  # when the state was saved
            raise StopIteration
        self._unread = False
        is_very_first = self._after_first is _UNKNOWN and not self._loaded and self._base is self._pristine
        is_watched = is_very_first or self._loaded or self._after_load is not _UNKNOWN
        if self._is_exact or self._pristine is _UNKNOWN or not is_watched:
            return next(self.iterator)
        item: Any = next(self.iterator, _END)
        after = _END if item is _END else self._asked()
        if is_very_first:
            self._after_first = after
        if self._loaded:
            self._after_load = after
        elif self._after_load is not _UNKNOWN:
            takes_it_again, self._after_load = is_same(after, self._after_load), _UNKNOWN
            if takes_it_again:
                if is_stateful(self._iterable):
                    give(self._iterable, self._pristine[0])
                self.iterator = self._iterate()
                return next(self.iterator)
        if item is _END:
            raise StopIteration
        return item


def _raise(error: BaseException) -> Any:
    raise error
