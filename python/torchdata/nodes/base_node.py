"""The base class of all nodes, `BaseNode`, and helper functions for reading sources.

One thread at a time reads a node. After a reset of a node, only this node may read its sources.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torchdata._native import IterationToken, guard_iterator
from torchdata.datapipes._pipe.checks import wrong_type

__all__ = [
    "Again", "BaseNode", "NotReset", "PassingNode", "T", "advance_of", "check_node", "copy_of_graph", "is_repeatable"
]  # fmt: skip

T = TypeVar("T", covariant=True)
#: The second argument of `iter`, an object that no node yields as an item.
_NEVER = object()


class NotReset:
    """The initial value of `_advance`: a function that raises an error, because the node was never reset.

    `_advance` is an attribute of each node, because looking up a method of `BaseNode` would be slower.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> Any:
        raise RuntimeError(
            f"{self._name}.next() was called before reset(): call reset() first, or read the node by next(node) or a "
            "Loader, which do"
        )


class BaseNode(Iterator[T]):
    """A step of data loading: an iterator that can be reset to its beginning or to a saved position.

    A subclass defines `next`, `reset` and `get_state`. A subclass calls `super().__init__()` in its `__init__`, and
    `super().reset(initial_state)` in its `reset`. Read a node by `next(node)` or in a loop, or preferably through a
    `Loader`, which handles epochs.

    A copy (by pickle or `copy`) of a node has its parameters and starts from the beginning.

    Args:
        *args: ignored, so that a subclass may pass any arguments to `super().__init__`.
        **kwargs: ignored, as well.

    Example:
        >>> from torchdata.nodes import BaseNode, Loader
        >>> class Countdown(BaseNode):
        ...     def __init__(self, start):
        ...         super().__init__()
        ...         self.start = start
        ...     def reset(self, initial_state=None):
        ...         super().reset(initial_state)
        ...         self.left = self.start if initial_state is None else initial_state["left"]
        ...     def next(self):
        ...         if self.left == 0:
        ...             raise StopIteration
        ...         self.left -= 1
        ...         return self.left
        ...     def get_state(self):
        ...         return {"left": self.left}
        >>> list(Loader(Countdown(3)))
        [2, 1, 0]
    """

    #: Names of attributes that copies of a node do not have, because their values belong to one run of the node.
    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance"})

    _advance: Callable[[], Any]
    #: Counts and times the node's items; None if no loader measures this node.
    _counted: IterationToken | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._advance = NotReset(cls.__name__)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__initialized = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            if self.__initialized:
                return self.next()
        except AttributeError:
            self.__require_init()
            raise
        self.__begin()
        return self.next()

    def __bool__(self) -> bool:
        return True

    def next(self) -> T:
        """Returns the next item. Subclasses define this method. Callers use `next(node)`, which also resets a new node.

        Raises:
            StopIteration: all items have been returned.
            RuntimeError: the node was never reset, or a user function raised StopIteration.
        """
        raise NotImplementedError(f"{type(self).__name__} must define next()")

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Moves the node to the beginning of an epoch, or to a saved position. Subclasses reset their sources here.

        Args:
            initial_state: a result of `state_dict()`; None (the default) for the beginning.

        Raises:
            NotImplementedError: the subclass did not call `super().__init__()`.
            ValueError: the state is damaged, or belongs to another kind of node.
        """
        self.__require_init()
        self.__initialized = True

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the node and its sources. Subclasses define `get_state`, and callers use
        `state_dict()`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_state()")

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last item, for `reset`. The returned dict can be pickled and never changes.

        If the node was never reset, `state_dict` first resets the node to its beginning.
        """
        if not getattr(self, "_BaseNode__initialized", False):
            self.__begin()
        return self.get_state()

    def shutdown(self) -> None:
        """Ends all threads and processes of the node and of its sources. `shutdown` may be called several times.

        After a shutdown, the state of the node can still be saved. A node with threads or processes must be reset
        before further items are read.
        """
        for source in sources_of(self):
            source.shutdown()

    def __require_init(self) -> None:
        if not hasattr(self, "_BaseNode__initialized"):  # reading __dict__ would slow down later accesses to attributes
            name = type(self).__name__
            raise NotImplementedError(f"{name} was not set up: call super().__init__() in its __init__()")

    def __begin(self) -> None:
        self.__require_init()
        self.reset(None)
        self._require_reset()

    def _require_reset(self) -> None:
        self.__require_init()
        if not self.__initialized:
            name = type(self).__name__
            raise NotImplementedError(f"{name} was not reset: call super().reset(initial_state) in its reset()")

    def _reader(self) -> Callable[[], Any]:
        """Returns the fastest function that reads this node's next item. `_reader` must be called after a reset."""
        return self.next

    def _repeats(self) -> bool:
        """Returns whether the node yields the same items in the same order whenever it is reset to the same position,
        provided that its sources do so."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        run = self._of_a_run | {"_counted"}
        kept = {name: value for name, value in list(self.__dict__.items()) if name not in run}
        if "_BaseNode__initialized" in kept:
            kept["_BaseNode__initialized"] = False
        return kept


class PassingNode(BaseNode[T]):
    """A node that implements `next` by a call of `_advance`, a function that `reset` sets."""

    def next(self) -> T:
        item: T = self._advance()
        return item

    def _reader(self) -> Callable[[], Any]:
        return self._advance if type(self).next is PassingNode.next else self.next


class Again:
    """Replaces a node's `_advance` after Ctrl-C has interrupted the processing of an item. The next call of `_advance`
    returns the interrupted item, and restores the original `_advance`.
    """

    def __init__(self, node: BaseNode[Any], item: Any) -> None:
        self._node: BaseNode[Any] | None = node
        self._advance = node._advance
        self.item = item

    def __call__(self) -> Any:
        node, self._node = self._node, None
        if node is None:  # the item was returned before, but a loop still calls this object
            return self._advance()
        node._advance = self._advance
        return self.item


def advance_of(source: BaseNode[T]) -> Callable[[], T]:
    """Returns a function that reads the next item of a source after a reset, and is faster than `next(source)`.

    Raises:
        NotImplementedError: the source's class does not call `super().reset()` or `super().__init__()`.
    """
    source._require_reset()
    read = source.__next__ if type(source).__next__ is not BaseNode.__next__ else source._reader()
    token = source._counted
    if token is None:
        return read
    return reader_of(guard_iterator(source, iter(read, _NEVER), token, token.current))


def reader_of(items: Iterator[T]) -> Callable[[], T]:
    """Returns a function that reads the next item of an iterator. The returned function uses a loop, because Ctrl-C
    could lose the item after a call of `next`, but not inside a loop.
    """

    def read() -> T:
        for item in items:
            return item
        raise StopIteration

    return read


def check_node(node: str, argument: str, value: Any) -> Any:
    if not isinstance(value, BaseNode):
        remedy = "; wrap it: IterableWrapper(…) makes a node of an iterable, from_pipe(…) of a pipe"
        raise wrong_type(node, argument, "a node", value, remedy)
    return value


def is_repeatable(node: BaseNode[Any]) -> bool:
    """Returns whether a node yields the same items in the same order after it is reset to the same state.

    The result is False if the node, or one of its sources, yields items as soon as they are ready. If the source is not
    repeatable, nodes store items in their states instead of rereading them.
    """
    return node._repeats() and all(is_repeatable(source) for source in sources_of(node))


def sources_of(node: BaseNode[Any]) -> list[BaseNode[Any]]:
    """Returns the nodes in a node's attributes, including nodes in lists and dicts."""
    found: dict[int, BaseNode[Any]] = {}
    # On CPython 3.11, a call of `vars` makes later accesses to the node's attributes slower. It is only needed if the
    # node has a `__dict__` already (or a dict in an attribute).
    values = gc.get_referents(node)
    if dict in map(type, values):
        values = list(vars(node).values())  # a copy, because threads that read ahead may set attributes meanwhile
    for value in values:
        held = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
        found.update((id(one), one) for one in held if isinstance(one, BaseNode) and one is not node)
    return list(found.values())


def nodes_of(root: BaseNode[Any]) -> list[BaseNode[Any]]:
    found = [root]
    for node in found:
        found += [source for source in sources_of(node) if all(source is not one for one in found)]
    return found


def copy_of_graph(root: BaseNode[T]) -> BaseNode[T]:
    """Copies the nodes of a graph. The copies share the data and functions of the originals."""
    shared: dict[int, Any] = {}
    for node in nodes_of(root):
        sources = sources_of(node)
        held = {id(source) for source in sources}
        for value in list(vars(node).values()):
            if id(value) not in held and not isinstance(value, (Mapping, list, tuple)):
                shared[id(value)] = value
    return copy.deepcopy(root, shared)
