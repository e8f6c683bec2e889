"""Pipes that begin a pipeline over an iterable, or set the length of a pipeline: IterableWrapper, LengthSetter."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._reporting import warn_outside
from torchdata._stateful import StatefulStream, StreamState, copied, is_stateful
from torchdata.datapipes._pipe import random
from torchdata.datapipes._pipe.checks import check_generator_function, check_int, check_iterable, check_source
from torchdata.datapipes._pipe.datasets import epoch_of, has_fixed_order, in_fixed_order, is_generator_function
from torchdata.datapipes._pipe.sampled_streams import SampledStream
from torchdata.datapipes._pipe.seeking import is_read_by_index, is_stream, iterate_by_index, iterate_from
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.record import record_of
from torchdata.datapipes._pipe.unloaded import Load, PipeStep
from torchdata.datapipes.datapipe import IterDataPipe, T_co, token_of

__all__ = ["IterableWrapper", "LengthSetter"]


_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _private_copy(iterable: Any) -> Any:
    """Copies an iterable and its members; immutable members are not copied."""
    kind = type(iterable)
    if kind in (range, str, bytes):
        return iterable
    if kind in (list, tuple) and _IMMUTABLE.issuperset(map(type, iterable)):
        return iterable.copy() if kind is list else iterable
    return copy.deepcopy(iterable)


class LengthSetter(IterDataPipe[T_co]):
    """Gives a pipeline a length without changing its items.

    Args:
        source_datapipe: the pipe to read.
        length: the result of `len()`.

    Raises:
        AssertionError: `length` is negative.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> len(IterableWrapper(range(10)).filter(lambda n: n < 5).set_length(5))
        5
    """

    one_to_one = True

    def __init__(self, source_datapipe: Iterable[T_co], length: int) -> None:
        self.source_datapipe = check_source("LengthSetter", source_datapipe, "source_datapipe")
        self.length = check_int("LengthSetter", "length", length, least=0, error=AssertionError)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.source_datapipe)

    def __len__(self) -> int:
        return self.length


class IterableWrapper(IterDataPipe[T_co]):
    """Begins a pipeline over any iterable.

    Lists, tuples, ranges, strings, NumPy arrays and other sequences restore their position in constant time. Datasets
    with `__len__` and `__getitem__` but without `__iter__` are read by index, so their position is restored in constant
    time. If a dataset without `__iter__` is followed by a `sharding_filter`, each process loads only the items in its
    share.

    If the iterable or its iterators have `state_dict` and `load_state_dict`, these methods restore the position (see
    `torchdata.nodes.Stateful`), and items are not reread. With `deepcopy=False`, a state that is saved between two
    epochs also contains the state of the iterable.

    An iterable that can neither seek nor save its state is reread up to the saved position, with the original states of
    the global random generators. A resumed run compares some of the reread items with the original items. If a reread
    item differs from the original item, for example because of an unseeded random order, resuming raises `RuntimeError`
    unless the loader's state is loaded with `strict=False`. If the iterable draws from the global random generators for
    each item, a reread item that differs causes only a `RuntimeWarning`, because other code may have advanced the
    generators.

    Args:
        iterable: the iterable to read. A generator function is called again in each epoch. An iterator that cannot be
            copied yields its items in only one epoch.
        deepcopy: whether each iteration reads a deep copy, so that code that modifies items does not affect the next
            epoch; True by default. If the iterable cannot be copied, a warning is issued and the original is read.

    Raises:
        TypeError: `iterable` is not iterable, or is a generator function that requires arguments; or, when a state is
            saved or loaded, `iterable` is a set with an order that differs between processes.

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

    data_attributes = frozenset({"iterable"})
    #: The object that reads an iterable that can neither seek nor save its state.
    _stream: SampledStream | None = state(None, saved=False)
    #: The object that reads `iterable`, if `iterable` or its iterators have a `state_dict`. The next
    #: iteration resumes from the state `_loaded`.
    _stateful: StatefulStream | None = state(saved=False, lasts=True)
    _loaded: StreamState | None = state(saved=False, lasts=True)
    #: For an iterator that cannot be copied: whether the current epoch (`_was_read`) or the previous epoch
    #: (`_is_used_up`) has read the iterator.
    _was_read = _is_used_up = False
    _has_warned = False
    _is_strict = True
    _epoch: int | None = None

    def __init__(self, iterable: Iterable[T_co] | Callable[[], Iterator[T_co]], deepcopy: bool = True) -> None:
        if inspect.isroutine(iterable) or is_generator_function(iterable):
            check_generator_function("IterableWrapper", "iterable", iterable)
        else:
            check_iterable("IterableWrapper", "iterable", iterable)
        self.iterable: Any = iterable
        self.deepcopy = deepcopy

    def __iter__(self) -> Iterator[T_co]:
        if not self.deepcopy and isinstance(self.iterable, IterDataPipe):
            return iter(self.iterable)  # the iterable's own state contains the position
        position = token_of(self).yielded
        if not is_stream(self.iterable):
            return iterate_from(self._source(), position)
        self._epoch = epoch_of(self.iterable)
        loaded, self._loaded = self._loaded, None
        if loaded is not None or (is_stateful(self.iterable) and not position):
            rest = self._read_stateful(loaded)
            if self._stateful is not None and self._stateful.has_state:
                return rest
        self._stateful = None
        if self._stream is None:
            self._stream = SampledStream(self._name())
        return self._stream.read(self._open, position, is_strict=self._is_strict, if_empty=self._warn_if_empty)

    def _open(self) -> Iterator[T_co]:
        source = self._source()
        is_read_on = source is self.iterable and hasattr(type(source), "__next__")
        self._is_used_up, self._was_read = self._was_read and is_read_on, is_read_on
        stream = StatefulStream(source)
        rest = stream.begin()
        self._stateful = stream if stream.has_state else None
        return rest if stream.has_state else stream.iterator

    def _read_stateful(self, loaded: StreamState | None) -> Iterator[T_co]:
        source, stream = self._source(), self._stateful
        if stream is None or not stream.reads(source):
            stream = self._stateful = StatefulStream(source)
        is_resumed = record_of(self).is_resumed
        if loaded is not None and (is_resumed or source is self.iterable):  # a new copy begins from the start
            rest: Iterator[T_co] = stream.resume_at(loaded)
            if is_resumed:
                return rest
        return stream.begin()

    def _name(self) -> str:
        kind = f"the {type(self.iterable).__name__}"
        if is_generator_function(self.iterable):
            kind = f"the generator function {getattr(self.iterable, '__name__', self.iterable)}"
        return f"{kind} given to IterableWrapper"

    def _warn_if_empty(self) -> None:
        """Warns of an empty epoch, which usually means that the iterable was already read.

        Worker processes do not warn, because a worker's share of the items may be empty.
        """
        is_worker = random.is_replica or multiprocessing.parent_process() is not None
        if self._has_warned or is_worker or isinstance(self.iterable, Sized):
            return
        self._has_warned = True
        message = f"{self._name()} has yielded nothing in this epoch"
        if self._is_used_up:
            message = (
                f"{self._name()} is a one-shot iterator, which an earlier epoch has exhausted; give a list, or a "
                "generator function, which is called again in each epoch"
            )
        warn_outside(f"{message}.")

    def _source(self) -> Any:
        source = self.iterable
        self._epoch = epoch_of(source)
        if random.is_replica or has_fixed_order(source):
            source = in_fixed_order(source)
        if is_generator_function(source):
            return source()
        if self.deepcopy:
            try:
                return _private_copy(source)
            except TypeError:
                warn_outside(
                    f"The iterable of type {type(source).__name__} given to IterableWrapper cannot be deep-copied, so "
                    "changing its items in place changes them for later epochs too; pass deepcopy=False to accept "
                    "that."
                )
        return source

    def state_dict(self) -> dict[str, Any]:
        # A set raises an error here if its members cannot be sorted, because its order may differ between processes.
        if isinstance(self.iterable, (set, frozenset)):
            in_fixed_order(self.iterable)
        state = {} if self._stream is None else self._stream.state()
        position = self._position()
        if position is not None:
            state["stream"] = position._asdict()
        return state if self._epoch is None else {**state, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._load_lasting_state(state_dict)
        is_read_again = is_stream(self.iterable) and self._loaded is None
        self._stream = SampledStream(self._name(), state_dict) if is_read_again else None
        if epoch_of(self.iterable) is not None and "epoch" in state_dict:
            self.iterable.set_epoch(state_dict["epoch"])

    def _position(self) -> StreamState | None:
        if self._loaded is not None:
            return self._loaded
        stream = self._stateful
        return stream.state() if stream is not None and stream.has_state else None

    def _outlives_epochs(self) -> bool:
        return not self.deepcopy and is_stateful(self.iterable) and is_stream(self.iterable)

    def _lasting_state(self) -> dict[str, Any]:
        with FailuresSuppressed():  # the user's call of `state_dict` raises the error
            position = self._position() if self._outlives_epochs() else None
            return {} if position is None else {"stream": copied(position._asdict())}
        return {}

    def _load_lasting_state(self, lasting: dict[str, Any]) -> None:
        self._loaded = StreamState.of(lasting["stream"]) if "stream" in lasting else None
        if self._loaded is not None:
            is_of_iterator = self._loaded.own is None and self._loaded.inner is not None
            if is_stateful(self.iterable) == is_of_iterator:  # a state of another kind of stream is ignored
                self._loaded = None

    def _compare(self, is_strict: bool) -> None:
        self._is_strict = is_strict

    def _iter_by_index(self) -> Iterator[T_co]:
        return iterate_by_index(self._source(), token_of(self).yielded)

    def _can_wait(self) -> bool:
        return is_read_by_index(self.iterable)

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        source = self._source()
        return iterate_by_index(range(len(source)), token_of(self).yielded), PipeStep(self, source.__getitem__)

    def _loads(self) -> Load:
        return PipeStep(self, self._source().__getitem__)

    def __len__(self) -> int:
        if isinstance(self.iterable, Sized):
            return len(self.iterable)
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
