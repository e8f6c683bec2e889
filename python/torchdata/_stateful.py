"""Defines the protocol of iterables that save their own positions, and reads successive epochs of such an iterable.

An iterable reports its correct position only while an epoch is being read. For example, if `__iter__` is a generator
function, its code runs only when the first item is requested, and before this request, the iterable reports an old
position. Until an item is requested, `StatefulStream` itself reports the loaded position, or the last position of the
previous epoch.

The iterable's `load_state_dict` restores a position within an epoch. To resume between two epochs, `StatefulStream`
loads the last position of the earlier epoch, requests an additional item, which is dropped, and begins a new iteration
of the iterable. As a result, the iterable counts epochs and draws random numbers as in the saved run. `StatefulStream`
requests no additional item if a new iteration of the iterable would continue the earlier epoch instead of starting
over.

Some iterables, for example Hugging Face's, apply a loaded state in every later iteration, so that each later epoch
would begin at the loaded position. To detect such iterables, `StatefulStream` compares the iterable's states after the
first item of the resumed epoch and after the first item of the next epoch. If both states are equal, the next epoch
restarts from the iterable's initial state. If the iterable yields an item although the loaded state belongs to the end
of an epoch, `StatefulStream` drops the item and loads the state again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torchdata._handlers import FailuresSuppressed
from torchdata._signatures import signature_of

#: `_UNKNOWN` means a state that was not requested or is unavailable, and `_END` means the end of an iteration.
_UNKNOWN, _END = object(), object()

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`.

    A loader saves and restores the position of a `Stateful` dataset, iterator, sampler or collate function instead of
    rereading the items. An object is not `Stateful` if its `state_dict` requires arguments. The result of `state_dict`
    must not change when the iteration continues, so return copies of mutable values.

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
        """Returns the position of the object, as values that can be pickled."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` resume from a saved position.

        Args:
            state_dict: a result of `state_dict`.
        """


def is_stateful(one: object) -> TypeGuard[Stateful]:
    """Returns whether an object is `Stateful`."""
    if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
        return False
    method = one.state_dict
    function = getattr(method, "__func__", None)
    return _needs_nothing(method) if function is None else _is_method_without_arguments(function)


@functools.lru_cache(maxsize=1024)
def _is_method_without_arguments(function: Any) -> bool:
    return _needs_nothing(functools.partial(function, None))


def _needs_nothing(function: Any) -> bool:
    try:
        signature_of(function).bind()
    except ValueError:
        return True
    except TypeError:
        return not callable(function)
    return True


def state_of(one: object) -> Any:
    return one.state_dict() if is_stateful(one) else None


def copied(state: Any) -> Any:
    """Returns a copy of the state, or the state itself if it cannot be copied."""
    if type(state) is dict and _ATOMS.issuperset(map(type, state.values())):
        return state.copy()
    with FailuresSuppressed():
        return copy.deepcopy(state)
    return state  # a state that cannot be copied must not be changed by the user


def load_into(one: Stateful, state: Any) -> None:
    """Loads a copy of a state, because the object may keep and modify the state."""
    one.load_state_dict(copied(state))


def is_same(one: Any, other: Any) -> bool:
    """Returns whether two states are equal; False if the states cannot be compared."""
    with FailuresSuppressed():  # for example, the truth value of an array is ambiguous
        return bool(one == other)
    with FailuresSuppressed():
        return pickle.dumps(copied(one)) == pickle.dumps(copied(other))
    return False


class StreamState(NamedTuple):
    """A position in an iterable.

    Args:
        inner: the state of the iterator; None if the iterable is its own iterator.
        started: whether an item of the epoch was requested; if not, `ended` refers to the previous epoch.
    """

    own: Any
    inner: Any
    started: bool
    ended: bool

    @classmethod
    def of(cls, saved: dict[str, Any]) -> StreamState:
        state = cls(**saved)
        if type(state.started) is not bool or type(state.ended) is not bool:
            raise TypeError("started and ended are True or False")
        return state


class StatefulStream:
    """Reads successive epochs of an iterable.

    Args:
        prepare: a function that is called before each iteration, and before a state is loaded.
        is_exact: whether the iterable reports the correct position even before the first item of an epoch.
        mark: a function that is called before reading an item that may have to be dropped, and returns a function that
            restores the random generators.
    """

    def __init__(
        self,
        iterable: Any,
        prepare: Callable[[], object] | None = None,
        *,
        is_exact: bool = False,
        mark: Callable[[], Callable[[], object]] = lambda: lambda: None,
    ) -> None:
        self._iterable = iterable
        self._prepare = prepare
        self._is_exact, self._mark = is_exact, mark
        self.iterator: Any = iter(())
        self.started = self.ended = False
        #: `_unread`: whether no item was requested since the epoch began or a state was loaded. `_loaded`: whether the
        #: loaded position is within an epoch. `_turns`: whether the iterable must still move to a loaded position
        #: between two epochs.
        self._unread, self._loaded, self._turns = True, False, False
        #: The states of the iterable and its iterator before the first item of the epoch. `_follows_end` is True if
        #: `_base` contains the states at the end of the previous epoch.
        self._base: Any = _UNKNOWN
        self._follows_end = False
        self._is_untouched = True
        #: The states of the iterable and its iterator before the first iteration. After a resumed epoch
        #: has yielded an item, `_after_load` contains the states after this item, until the next epoch yields one.
        self._pristine: Any = None
        self._after_load: Any = _UNKNOWN

    def reads(self, iterable: Any) -> bool:
        return self._iterable is iterable

    @property
    def has_state(self) -> bool:
        return is_stateful(self._iterable) or self._has_inner

    @property
    def _has_inner(self) -> bool:
        return self.iterator is not self._iterable and is_stateful(self.iterator)

    def begin(self) -> Iterator[Any]:
        if self._unread:
            with FailuresSuppressed():
                self.arrive()
                if self._loaded and not self._is_exact:
                    with self._apart():
                        self.ended = self._leave()
        left, self._base = self._base, _UNKNOWN if self._is_exact else self._asked()
        has_stayed = self._unread and not self._loaded and is_same(left, self._base)
        self._follows_end = self.ended or (self._follows_end and has_stayed)
        if self._pristine is None:
            self._pristine = self._base
        self.started = self.ended = False
        self._unread, self._loaded, self._turns = True, False, False
        self.iterator = self._iterate()
        return itertools.chain.from_iterable(self._pieces())

    def resume_at(self, state: StreamState) -> Iterator[Any]:
        base: Any = state.own, state.inner
        is_there = False
        now: Any = _UNKNOWN if self._is_exact else self._asked()
        if self._pristine is None:
            self._pristine = now
        if self._is_untouched and not state.started and self._pristine is not _UNKNOWN and now is not _UNKNOWN:
            is_there = is_same(state.own, self._pristine[0]) and is_same(state.own, now[0])
        turns = not self._is_exact and not is_there and (state.ended or not state.started)
        if is_there:
            base, self.iterator = self._pristine, self._iterate()
        else:
            self._is_untouched = False
            with self._apart() if turns else contextlib.nullcontext():
                self._take(*base)
        self.started, self.ended = state.started, state.started and state.ended
        self._follows_end = state.ended and not state.started
        self._unread, self._loaded, self._base = True, state.started and not state.ended, base
        self._turns, self._after_load = turns, _UNKNOWN
        return itertools.chain.from_iterable(self._pieces())

    def state(self, *, copies: bool = True) -> StreamState:
        is_known = self._unread and self._base is not _UNKNOWN and not self._is_exact
        own, inner = self._base if is_known else self._states()
        if copies and not self._is_exact:
            own, inner = copied(own), copied(inner)
        return StreamState(own, inner, self.started, self.ended if self.started else self._follows_end)

    def _states(self) -> tuple[Any, Any]:
        return state_of(self._iterable), self.iterator.state_dict() if self._has_inner else None

    def _asked(self) -> Any:
        """Returns the current states of the iterable and its iterator; `_UNKNOWN` if the iterable raises an error."""
        if not self.has_state:
            return None, None
        with FailuresSuppressed():  # the error is raised when the user requests a state
            return copied(self._states())
        return _UNKNOWN

    def _iterate(self) -> Iterator[Any]:
        if self._prepare is not None:
            self._prepare()
        return iter(self._iterable)

    def _take(self, own: Any, inner: Any) -> None:
        if self._prepare is not None:
            self._prepare()
        has_own = is_stateful(self._iterable)
        if has_own:
            load_into(self._iterable, own)
        self.iterator = iter(self._iterable)
        if inner is not None and self._has_inner:
            load_into(self.iterator, inner)
        elif has_own and self.iterator is self._iterable and not is_same(state_of(self._iterable), own):
            load_into(self._iterable, own)  # calling `iter` has moved the iterable to the beginning

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        rewind = self._mark()
        try:
            yield
        finally:
            rewind()

    def arrive(self) -> None:
        """Moves the iterable to the loaded position, if this position is between two epochs."""
        if not self._turns:
            return
        is_end = self.ended or self._follows_end
        with self._apart():
            if not is_end:
                self._leave()
            elif self._step() is not _END:  # the iterable had already prepared the next epoch
                load_into(self._iterable, self._base[0])
                self._after_load = _UNKNOWN
        self._turns = False
        if not self.ended:
            self.iterator = self._iterate()

    def _leave(self) -> bool:
        """Makes the iterable end its epoch at the loaded position. Returns whether the epoch has ended.

        A new iteration of an iterable may continue where the previous iteration stopped, or start over. This method
        reads two items, one with and one without a new iteration before it, and compares the resulting states.
        """
        if not is_stateful(self._iterable):
            return self._step() is _END
        seen: list[Any] = []
        for is_new in (True, False):
            has_item = self._step() is not _END
            if not has_item:
                self.iterator = self._iterate()
                has_item = self._step() is not _END
            if is_new:
                self.iterator = self._iterate()
            self._step()
            seen.append(self._after_load)
            self._take(*self._base)
        self._after_load = _UNKNOWN
        continues = has_item and seen[0] is not _UNKNOWN and is_same(*seen)
        return not continues and self.iterator is not self._iterable and self._step() is _END

    def _step(self) -> Any:
        """Requests an item, because some iterables apply a loaded position only when the next item is requested."""
        item: Any = _END
        if self._base is not _UNKNOWN and self._base[1] is not None and not self._loaded:
            return item  # an iterator with a state has already applied the position
        with FailuresSuppressed():
            item = next(self.iterator, _END)
            self._after_load = _END if item is _END else self._asked()
        return item

    def _pieces(self) -> Iterator[Iterator[Any]]:
        """Yields an iterator over the first item, and then the iterable's own iterator, because this is faster than
        yielding each item.
        """
        while self._unread:
            started = self.started
            try:
                first = self._first()
            except StopIteration:
                self.ended = True
                return
            except BaseException as error:  # the yielded iterator raises the error, and the next call continues
                if not isinstance(error, Exception):  # after Ctrl-C, the item is not yielded, so the position stays
                    self.started, self._unread = started, True
                # This generator's frame is removed from the traceback, because an exception with the frame of a
                # generator looks as if it had ended the user's generator.
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                yield map(raise_error, (error,))
                continue
            item, first = [first], None
            yield map(item.pop, (0,))
        yield steps_of(self.iterator)
        self.ended = True

    def _first(self) -> Any:
        self.started, self._is_untouched = True, False
        self.arrive()
        if self.ended:  # the epoch was over when the state was saved
            raise StopIteration
        self._unread = False
        is_watched = self._loaded or self._after_load is not _UNKNOWN
        if self._is_exact or self._pristine is _UNKNOWN or not is_watched:
            return next(self.iterator)
        rewind = self._mark()
        item: Any = next(self.iterator, _END)
        after = _END if item is _END else self._asked()
        if self._loaded:
            self._after_load = after
        else:
            takes_it_again, self._after_load = is_same(after, self._after_load), _UNKNOWN
            if takes_it_again:
                rewind()
                if is_stateful(self._iterable):
                    load_into(self._iterable, self._pristine[0])
                self.iterator = self._iterate()
                return next(self.iterator)
        if item is _END:
            raise StopIteration
        return item


def steps_of(iterator: Iterator[Any]) -> Iterator[Any]:
    """Returns an iterator over the remaining items, for a `for` loop. A `for` loop over the iterator itself would call
    `iter(iterator)`, which may reset an iterator that is not built in."""
    is_built_in = type(iterator).__module__ in ("builtins", "itertools")
    return iterator if is_built_in else map(next, itertools.repeat(iterator))


def raise_error(error: BaseException, *_: object) -> Any:
    raise error
