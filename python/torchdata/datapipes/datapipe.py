"""The two bases of all pipes, `IterDataPipe` and `MapDataPipe`, and the hook that guards iteration.

Role: what every pipe shares: registration of functional forms, the pickling hooks, one valid iterator
at a time, `reset()` at the start of an iteration, and the place where loaded state is picked up.
Runs in every process that holds pipes. A pipe owns its sources and one `IterationToken`.
"""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torchdata._native import IterationToken, guard_iterator
from torchdata._reporting import explain
from torchdata.datapipes._registry import FunctionalForms
from torchdata.datapipes._splitting import begin_whole, is_read_whole
from torchdata.datapipes._torch import Counterpart, derives_from_twin, meet_torch

__all__ = ["DataChunk", "IterDataPipe", "MapDataPipe", "begin_iteration", "share_token", "token_of"]

if TYPE_CHECKING:
    from torchdata.datapipes._forms import IterForms, MapForms
else:
    # Type checkers see the forms as methods, which `make stubs` writes down; what runs finds them in registries.
    class IterForms:
        """Stands for FunctionalForms, whatever its parameter."""

        def __class_getitem__(cls, items: Any) -> type[FunctionalForms]:
            return FunctionalForms

    MapForms = IterForms

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TOKEN = "_iteration_token"


def token_of(datapipe: Any) -> IterationToken:
    """The token of a pipe, made on first use (pipes need not call `super().__init__()`)."""
    token: IterationToken | None = datapipe.__dict__.get(_TOKEN)
    if token is None:
        token = datapipe.__dict__[_TOKEN] = IterationToken()
    return token


def share_token(datapipe: Any, token: IterationToken) -> None:
    """Gives a new pipe a token that another pipe knows too, so that the other can end its iteration."""
    datapipe.__dict__[_TOKEN] = token


def begin_iteration(datapipe: Any, function: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """Starts an iteration of `datapipe`, whose own `__iter__` is `function`, and guards it.

    Resets the pipe, unless state was loaded into it, in which case the iteration goes on from there.
    A pipe that is replayed starts anew and drops what it had yielded.
    """
    forwarded: Iterator[Any] | None = datapipe.__dict__.pop("_fast_forward_iterator", None)
    if forwarded is not None:  # torch's helper for snapshots has read the beginning
        datapipe.__dict__.pop("_snapshot_state", None)
        return forwarded
    token = token_of(datapipe)
    iterator_id, resumed, replay = token.begin()
    if not resumed:
        datapipe.reset()
    whole = is_read_whole(datapipe)
    iterator = begin_whole(lambda: function(datapipe)) if whole else function(datapipe)
    guard = guard_iterator(datapipe, iterator, token, iterator_id)
    if replay:
        next(islice(guard, replay - 1, replay), None)
    return guard


def _hook_iter(function: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    @functools.wraps(function)
    def __iter__(self: Any) -> Iterator[Any]:
        if getattr(type(self).__iter__, "__wrapped__", None) is not function:
            # Reached through super().__iter__() of an iteration that is guarded already.
            return function(self)
        try:
            return begin_iteration(self, function)
        except Exception as error:
            explain(error, error.__traceback__, self, None)
            raise

    return __iter__


class _Yielded:
    """How many items the pipe's iteration has yielded. An attribute of that name of a user's pipe comes before it."""

    def __get__(self, datapipe: Any, cls: type) -> int:
        return 0 if datapipe is None else token_of(datapipe).yielded


class _PicklingHooks:
    """Hooks through which graph tools look into pipes while these are pickled, as torch's pipes have them.

    Torch's own graph tools set the hooks of torch's classes; they hold for our pipes as well.
    """

    counterpart: ClassVar[Counterpart]
    getstate_hook: ClassVar[Callable[[Any], Any] | None] = None
    reduce_ex_hook: ClassVar[Callable[[Any], Any] | None] = None
    str_hook: ClassVar[Callable[[Any], str] | None] = None
    repr_hook: ClassVar[Callable[[Any], str] | None] = None

    def __getstate__(self) -> Any:
        hook = type(self).getstate_hook or self.counterpart.hook("getstate_hook")
        state = self._attributes_to_copy()
        return hook(state) if hook is not None else state

    def _attributes_to_copy(self) -> dict[str, Any]:
        """What a pickled or deep-copied pipe takes along.

        A copy starts its iterations anew, so pipes leave out what belongs to the running one.
        """
        return self.__dict__

    def __reduce_ex__(self, protocol: Any) -> Any:
        hook = type(self).reduce_ex_hook or self.counterpart.hook("reduce_ex_hook")
        if hook is not None:
            try:
                return hook(self)
            except NotImplementedError:
                pass
        return super().__reduce_ex__(protocol)

    @classmethod
    def set_getstate_hook(cls, hook_fn: Callable[[Any], Any] | None) -> None:
        """Installs (or with None removes) a function that replaces the pickled state of these pipes."""
        if cls.getstate_hook is not None and hook_fn is not None:
            raise RuntimeError("Attempt to override existing getstate_hook")
        cls.getstate_hook = staticmethod(hook_fn) if hook_fn is not None else None

    @classmethod
    def set_reduce_ex_hook(cls, hook_fn: Callable[[Any], Any] | None) -> None:
        """Installs (or with None removes) a function that replaces `__reduce_ex__` of pipes of this kind."""
        if cls.reduce_ex_hook is not None and hook_fn is not None:
            raise RuntimeError("Attempt to override existing reduce_ex_hook")
        cls.reduce_ex_hook = staticmethod(hook_fn) if hook_fn is not None else None

    def __str__(self) -> str:
        hook = type(self).str_hook
        return hook(self) if hook is not None else type(self).__qualname__

    def __repr__(self) -> str:
        hook = type(self).repr_hook
        return hook(self) if hook is not None else type(self).__qualname__


class _PipeMeta(ABCMeta):
    """The class of pipe classes: what users put on one of the two bases is found on torch's pipes, too."""

    counterpart: Counterpart

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if "counterpart" in vars(cls):
            cls.counterpart.offer(name, value)


class IterDataPipe(IterForms[T_co], _PicklingHooks, Generic[T_co], metaclass=_PipeMeta):
    """A step of a pipeline that is read by iterating.

    Subclasses define `__iter__`, usually as a generator over `self.source_datapipe`. Every `iter(pipe)`
    calls `reset()`, returns a guarded iterator and invalidates the iterators made before.

    A subclass that also defines `state_dict()` and `load_state_dict()` is restored by them; one that does
    not is replayed (see `torchdata.datapipes.state`). Iteration state belongs into attributes that
    `reset()` initialises and from which `__iter__` continues.

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

    #: Names of attributes that hold items; they are not searched for the pipes that this one reads.
    item_attributes: ClassVar[frozenset[str]] = frozenset()

    #: What torch's helper for snapshots reads, and (on a pipe that it has restored) sets.
    _number_of_samples_yielded: ClassVar[_Yielded] = _Yielded()
    _snapshot_state: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__iter__")
        if own is not None:
            cls.__iter__ = _hook_iter(own)  # type: ignore[method-assign]

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return derives_from_twin(cls, subclass)

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    if TYPE_CHECKING:

        def __len__(self) -> int:
            """The number of items. When the package runs, pipes that know none have no such method."""

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} is read by iterating, not by index")

    def __add__(self, other: Any) -> Any:
        joiner = self.counterpart.joiner(other)
        return self.concat(other) if joiner is None else joiner([self, other])

    def reset(self) -> None:
        """Brings the pipe to the start of an iteration. Called whenever an iterator is made."""


class MapDataPipe(MapForms[T_co], _PicklingHooks, Generic[T_co], metaclass=_PipeMeta):
    """A step of a pipeline that is read by index: subclasses define `__getitem__` and often `__len__`.

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

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return derives_from_twin(cls, subclass)

    if TYPE_CHECKING:

        def __len__(self) -> int:
            """The number of items. When the package runs, pipes that know none have no such method."""

        def __iter__(self) -> Iterator[T_co]:
            """Reads the indices 0, 1, … When the package runs, Python does so by itself."""

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __add__(self, other: Any) -> Any:
        joiner = self.counterpart.joiner(other)
        return self.concat(other) if joiner is None else joiner([self, other])


meet_torch(IterDataPipe, MapDataPipe)


class DataChunk(list[T]):
    """A batch: a list that knows it is one, so that `unbatch` and `collate` can tell batches from items.

    Args:
        items: the members of the batch.
    """

    __slots__ = ()  # a batch costs no more memory than a list

    def __init__(self, items: Iterable[T]) -> None:
        super().__init__(items)

    @property
    def items(self) -> list[T]:
        """The members as a plain list."""
        return list(self)

    def as_str(self, indent: str = "") -> str:
        """The members in brackets, each by its `str`."""
        return indent + "[" + ", ".join(map(str, self)) + "]"

    def raw_iterator(self) -> Iterator[T]:
        """Iterates over the members as they were put in."""
        return iter(self)
