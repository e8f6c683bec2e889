"""The base classes of all pipes, `IterDataPipe` and `MapDataPipe`, and the function that guards iteration.

This module registers functional forms, implements the pickling hooks, and ensures that each pipe has only one valid
iterator at a time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torchdata._native import IterationToken, guard_iterator
from torchdata._plain_pickles import register
from torchdata.datapipes._pipe.explaining import explain
from torchdata.datapipes._pipe.graph.torch import Counterpart, derives_from_twin, pair_bases_with_torch
from torchdata.datapipes._pipe.graph.traversal import note_virtual, set_bases
from torchdata.datapipes._pipe.ranges import ranges
from torchdata.datapipes._pipe.registry import FunctionalForms
from torchdata.datapipes._pipe.renewing import keep_for_reader, renewal_of, taken_again
from torchdata.datapipes._pipe.splitting import begin_whole, is_read_whole
from torchdata.datapipes._pipe.state.after_end import AfterEnd
from torchdata.datapipes._pipe.state.declared import DERIVED, DeclaredState, declare
from torchdata.datapipes._pipe.state.generators import load_generators
from torchdata.datapipes._pipe.state.halting import Halts
from torchdata.datapipes._pipe.state.hooks import PipeHooks
from torchdata.datapipes._pipe.state.iteration import set_later_seeds, start_pass
from torchdata.datapipes._pipe.state.record import record_of, token_of

__all__ = ["DataChunk", "IterDataPipe", "MapDataPipe", "begin_iteration", "share_token", "token_of"]

if TYPE_CHECKING:
    from torchdata.datapipes._forms import IterForms, MapForms
else:
    # Type checkers read the functional forms, which are methods such as `pipe.map`, from stubs (`make stubs`).
    class IterForms:
        """At run time, `IterForms[T]` evaluates to `FunctionalForms`."""

        def __class_getitem__(cls, items: Any) -> type[FunctionalForms]:
            return FunctionalForms

    MapForms = IterForms

#: The type variables of all pipes: `T_co` for the items that a pipe yields, `T` and `R` for functions and overloads.
T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


def share_token(datapipe: Any, token: IterationToken) -> None:
    """Gives a child pipe the token that its main pipe stores for it, so that the main pipe can invalidate the child's
    iterators."""
    datapipe.__dict__["_iteration_token"] = token


def begin_iteration(datapipe: Any, function: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """Begins an iteration of `datapipe` by calling `function`, the original `__iter__`, and returns a guarded iterator.

    The iteration resumes from a loaded state, if there is one; otherwise, `reset` is called first.
    """
    forwarded: Iterator[Any] | None = datapipe.__dict__.pop("_fast_forward_iterator", None)
    marked = datapipe.__dict__.pop("_snapshot_state", None)
    if forwarded is not None:  # torch's function that restores snapshots has read the first items
        return forwarded
    running = taken_again(datapipe)
    if running is not None:
        return running
    number, resumed, dropped, to_the_end = start_pass(datapipe)
    if getattr(marked, "name", "") == "Restored" and not type(datapipe)._not_copied:
        resumed = True  # as in torch, a pipe in the snapshot state "Restored" continues from its pickled state
    started = number, resumed, dropped, to_the_end
    beginning = record_of(datapipe).beginning
    if beginning is None or not beginning.whole:
        return _begun(datapipe, function, *started)
    # The replay draws the same numbers from the global random generators as the original iteration.
    halts = Halts(beginning.entries())
    load_generators(beginning.generators)
    try:
        guard = _begun(datapipe, function, *started)
        halts.wait()
        return guard
    finally:
        load_generators(beginning.moved)
        halts.release()


def _begun(
    datapipe: Any,
    function: Callable[[Any], Iterator[Any]],
    iterator_id: int,
    resumed: bool,
    dropped: int,
    to_the_end: bool,
) -> Iterator[Any]:
    if not resumed:
        datapipe.reset()
    record = record_of(datapipe)
    renewal = None if record.claim is None else renewal_of(datapipe, function)
    if record.ended:
        iterator: Iterator[Any] = iter(())  # an ended iteration reads nothing from its sources
    elif record.follows_end and record.base is not None:
        iterator = AfterEnd(datapipe, lambda: _original(datapipe, function))
    else:
        iterator = _original(datapipe, function)
    if renewal is not None:
        iterator = renewal.over(iterator)
    guard = guard_iterator(datapipe, iterator, token_of(datapipe), iterator_id, ranges())
    keep_for_reader(datapipe, guard)
    if dropped:
        next(islice(guard, dropped - 1, dropped), None)
    if to_the_end:  # code that runs after the last item may also draw numbers
        next(guard, None)
    if dropped or to_the_end:
        set_later_seeds(datapipe)
    return guard


def _original(datapipe: Any, function: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    return begin_whole(lambda: function(datapipe)) if is_read_whole(datapipe) else function(datapipe)


def _hook_iter(function: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    guarded = getattr(function, "_guarded", None)
    if guarded is not None and guarded is getattr(function, "__wrapped__", None):
        return function  # cloudpickle assigns the methods of a class that it rebuilds

    @functools.wraps(function)
    def __iter__(self: Any) -> Iterator[Any]:
        if getattr(type(self).__iter__, "__wrapped__", None) is not function:
            # The `__iter__` of a subclass has called `super().__iter__()`, so it has already begun the iteration.
            return function(self)
        try:
            return begin_iteration(self, function)
        except Exception as error:
            explain(error, error.__traceback__, self, None)
            raise

    vars(__iter__)["_guarded"] = function
    return __iter__


def _noting(set_seed: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wraps the `set_seed` of a user-defined pipe class to record the seed for a replay."""

    @functools.wraps(set_seed)
    def noted(self: Any, seed: Any, *args: Any, **kwargs: Any) -> Any:
        record_of(self).seed = seed
        return set_seed(self, seed, *args, **kwargs)

    return noted


class _Yielded:
    """The number of items that the pipe's running iteration has yielded. If PyTorch sets this attribute of a pipe to a
    number, reading the attribute returns PyTorch's number."""

    def __get__(self, datapipe: Any, cls: type) -> int:
        return 0 if datapipe is None else token_of(datapipe).yielded


class _CommonPipe:
    """The methods that `IterDataPipe` and `MapDataPipe` share: lengths, `+`, pickling, states and descriptions.

    The methods that set pickling hooks are named as in PyTorch. A pickling hook that a tool sets on a pipe class of
    PyTorch also applies to the pipes of this package.
    """

    counterpart: ClassVar[Counterpart]

    if TYPE_CHECKING:

        def __len__(self) -> int:
            """Returns the number of items. At run time, pipes of unknown length do not have this method."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return derives_from_twin(cls, subclass)

    def __add__(self, other: Any) -> Any:
        joiner = self.counterpart.joiner(other)
        return self.concat(other) if joiner is None else joiner([self, other])  # type: ignore[attr-defined]

    getstate_hook: ClassVar[Callable[[Any], Any] | None] = None
    reduce_ex_hook: ClassVar[Callable[[Any], Any] | None] = None

    def __getstate__(self) -> Any:
        hook = type(self).getstate_hook or self.counterpart.hook("getstate_hook")
        state = self.__dict__
        if self._not_copied:
            state = {name: value for name, value in state.items() if name not in self._not_copied}
        return hook(state) if hook is not None else state

    #: The names of the attributes that the class declares by `state`. A pipe with `iteration_state` can be restored
    #: from the named attributes; `()` means that nothing needs to be restored.
    iteration_state: ClassVar[tuple[str, ...]]
    _own_state: ClassVar[tuple[DeclaredState, ...]] = ()
    _declared: ClassVar[tuple[DeclaredState, ...]] = ()
    #: Names of the attributes that copies and pickles of the pipe leave out.
    _not_copied: ClassVar[frozenset[str]] = frozenset()
    #: Names of attributes that contain items; pipes in these attributes are items, not sources of this pipe.
    item_attributes: ClassVar[frozenset[str]] = frozenset()
    #: Names of attributes that contain the user's data, such as a dataset. When a loader copies the pipe, the copy
    #: shares the values of these attributes with the original. If the value of another attribute is a container, such
    #: as a list, the copy of the pipe has its own container with the same data.
    data_attributes: ClassVar[frozenset[str]] = frozenset()
    #: Whether the class uses the `state_dict` and `load_state_dict` that are derived from its declared attributes (see
    #: `DERIVED`).
    _derives_state: ClassVar[bool] = False

    @classmethod
    def _take_declaration(cls) -> None:
        if cls.__dict__.get("one_to_one") and "iteration_state" not in cls.__dict__:
            cls.iteration_state = ()
        cls._declared = declare(cls)
        if not hasattr(cls, "iteration_state"):
            return
        cls._not_copied = frozenset(state.name for state in cls._declared if not state.copied)
        cls.item_attributes |= {state.name for state in cls._declared if state.items}
        for name, method in DERIVED.items():
            if not hasattr(cls, name):
                setattr(cls, name, method)
        cls._derives_state = all(getattr(cls, name) is method for name, method in DERIVED.items())

    def _declared_state(self) -> dict[str, Any]:
        return {state.key: state.dump(self) for state in self._declared if state.saved}

    def _load_declared(self, state_dict: dict[str, Any]) -> None:
        """Sets all declared attributes to their saved values. Attributes without a saved value are reset."""
        for state in self._declared:
            if state.saved and state.key in state_dict:
                state.load(self, state_dict[state.key])
            elif not state.lasts or state.saved:
                state.reset(self)

    def _lasting_state(self) -> dict[str, Any]:
        return {state.key: state.dump(self) for state in self._declared if state.lasts and state.saved}

    def _load_lasting_state(self, lasting: dict[str, Any]) -> None:
        for state in self._declared:
            if state.lasts and state.saved:
                if state.key in lasting:
                    state.load(self, lasting[state.key])
                else:
                    state.reset(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        hook = type(self).reduce_ex_hook or self.counterpart.hook("reduce_ex_hook")
        if hook is not None:
            with contextlib.suppress(NotImplementedError):
                return hook(self)
        return super().__reduce_ex__(protocol)

    @classmethod
    def set_getstate_hook(cls, hook_fn: Callable[[Any], Any] | None) -> None:
        """Installs `hook_fn`, a function that converts a pipe's attributes to its pickled state; None removes the
        function.

        Raises:
            RuntimeError: another function is installed.
        """
        if cls.getstate_hook is not None and hook_fn is not None:
            raise RuntimeError("Attempt to override existing getstate_hook")
        cls.getstate_hook = staticmethod(hook_fn) if hook_fn is not None else None

    @classmethod
    def set_reduce_ex_hook(cls, hook_fn: Callable[[Any], Any] | None) -> None:
        """Installs `hook_fn`, a function that replaces `__reduce_ex__` of pipes; None removes the function.

        Raises:
            RuntimeError: another function is installed.
        """
        if cls.reduce_ex_hook is not None and hook_fn is not None:
            raise RuntimeError("Attempt to override existing reduce_ex_hook")
        cls.reduce_ex_hook = staticmethod(hook_fn) if hook_fn is not None else None

    def __str__(self) -> str:
        from torchdata.datapipes._pipe.chain import chain

        return chain(self)

    def __repr__(self) -> str:
        # The `repr` is short, because error messages contain it. `str` describes the whole pipeline.
        return type(self).__qualname__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        from torchdata.datapipes._pipe.showing import html_of_pipe

        return html_of_pipe(self)


class _PipeMeta(ABCMeta):
    """The metaclass of pipes. A public method that a user adds to a base class of pipes is also added to torch's pipes.
    If code assigns a new `__iter__` to a pipe class, `_hook_iter` wraps the function."""

    counterpart: Counterpart

    def register(cls, subclass: type[T]) -> type[T]:
        """Makes a class a virtual subclass, as `abc.ABCMeta.register` does."""
        note_virtual()
        return super().register(subclass)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__iter__" and IterDataPipe in cls.__mro__:
            value = _hook_iter(value)
        super().__setattr__(name, value)
        if "counterpart" in vars(cls):
            cls.counterpart.offer(name, value)


class IterDataPipe(IterForms[T_co], _CommonPipe, PipeHooks, Generic[T_co], metaclass=_PipeMeta):
    """A pipeline step that is read by iterating.

    Subclasses define `__iter__`, usually as a generator over `self.source_datapipe`. Every `iter(pipe)` calls
    `reset()`, returns a guarded iterator and invalidates earlier iterators.

    A subclass that defines `state_dict()` and `load_state_dict()` is restored by these methods. `state_dict()` returns
    the position of the pipe, without the positions of its sources. `load_state_dict(state_dict)` makes the next
    iteration resume from the position in `state_dict`. Loaders call both methods. To save the positions of all pipes
    of a graph yourself, use `torchdata.datapipes.state.save_state`.

    Without `state_dict`, a resumed pipe is replayed: it starts from the beginning and drops items up to the saved
    position. A subclass should keep its iteration state in attributes that `reset()` initializes, and its `__iter__`
    should continue from these attributes.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
        >>> class Doubler(IterDataPipe[int]):
        ...     def __init__(self, source_datapipe):
        ...         self.source_datapipe = source_datapipe
        ...     def __iter__(self):
        ...         for item in self.source_datapipe:
        ...             yield 2 * item
        >>> list(Doubler(IterableWrapper([1, 2])).batch(2))
        [[2, 4]]
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    counterpart: ClassVar[Counterpart] = Counterpart("IterDataPipe")

    #: PyTorch reads and sets `_number_of_samples_yielded` and `_snapshot_state` when it restores a pipe from a
    #: snapshot.
    _number_of_samples_yielded: ClassVar[_Yielded] = _Yielded()
    _snapshot_state: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        definer = next(kind for kind in cls.__mro__ if "__iter__" in vars(kind))
        if definer is cls or IterDataPipe not in definer.__mro__:  # a mixin may define `__iter__`
            cls.__iter__ = vars(definer)["__iter__"]  # type: ignore[method-assign]
        cls._take_declaration()
        if "set_seed" in cls.__dict__ and not any(state.lasts for state in cls._declared):
            cls.set_seed = _noting(cls.__dict__["set_seed"])

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} is read by iterating, not by index")

    def reset(self) -> None:
        """Prepares the pipe for a new iteration. `iter(pipe)` calls `reset`, unless the iteration resumes from a loaded
        state."""
        for state in self._declared:
            if not state.lasts:
                state.reset(self)


class MapDataPipe(MapForms[T_co], _CommonPipe, PipeHooks, Generic[T_co], metaclass=_PipeMeta):
    """A pipeline step that is read by index: subclasses define `__getitem__` and often `__len__`.

    Example:
        >>> from torchdata.datapipes.map import MapDataPipe
        >>> class Squares(MapDataPipe[int]):
        ...     def __getitem__(self, index):
        ...         return index * index
        ...     def __len__(self):
        ...         return 10
        >>> Squares().map(str)[3]
        '9'
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    counterpart: ClassVar[Counterpart] = Counterpart("MapDataPipe")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._take_declaration()

    def __iter__(self) -> Iterator[T_co]:
        """Yields the items at the indices 0, 1, … up to the length of the pipe, or up to an IndexError if the length is
        unknown."""
        try:
            indices: Iterable[int] = range(len(self))
        except (TypeError, NotImplementedError):
            indices = itertools.count()
        for index in indices:
            try:
                item = self[index]
            except IndexError:
                return
            yield item

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")


set_bases(IterDataPipe, MapDataPipe)
pair_bases_with_torch(IterDataPipe, MapDataPipe)


class DataChunk(list[T]):
    """A batch. `DataChunk` is a subclass of list, so that `unbatch` and `collate` can distinguish batches from items
    that are lists.

    Args:
        items: the members of the batch.

    Example:
        >>> from torchdata.datapipes import DataChunk
        >>> DataChunk([1, 2])
        [1, 2]
    """

    __slots__ = ()  # a batch needs no more memory than a list

    def __init__(self, items: Iterable[T]) -> None:
        super().__init__(items)

    @property
    def items(self) -> list[T]:
        """Returns the members of the batch as a plain list."""
        return list(self)

    def as_str(self, indent: str = "") -> str:
        """Returns `indent` followed by a list of the members in brackets; `str` converts each member."""
        return indent + "[" + ", ".join(map(str, self)) + "]"

    def raw_iterator(self) -> Iterator[T]:
        """Returns an iterator over the members of the batch."""
        return iter(self)


register(DataChunk, lambda chunk: (DataChunk, (list(chunk),)), DataChunk)
