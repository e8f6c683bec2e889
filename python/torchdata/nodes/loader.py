"""Loader: makes an iterable with epochs and a state of a graph of nodes.

Role: runs in the threads that use the loader. They share it: an epoch, an item and a state exclude each other.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Generic

from torchdata._native import SharedIterator
from torchdata._stateful import copied
from torchdata._threads import end_at_exit
from torchdata.nodes._fields import Fields
from torchdata.nodes._places import place_of, state_at
from torchdata.nodes._seeds import one_reset
from torchdata.nodes.base_node import BaseNode, T, advance_of, check_node, copy_of_graph, nodes_of

__all__ = ["Loader", "LoaderIterator"]

#: Stands for no item.
_NONE = object()
_LEFT = (
    "this iterator has been invalidated, because iter() of its Loader has begun another epoch; a second Loader, over "
    "nodes of its own, reads beside it"
)


class Loader(Generic[T]):
    """The loader that a training loop reads: each `iter()` is an epoch of the graph that ends in `root`.

    A loader has one valid iterator: a new `iter()` begins the next epoch and invalidates the one before. Threads may
    share an iterator, whose items then go to one of them each. A state that was loaded is where the next `iter()`
    begins, and where an iterator resumes that has yielded no item yet. An iterator that has yielded items raises
    `RuntimeError` then. As a context manager it ends threads and processes at the end, as `shutdown` does. A copy, by
    `copy` or pickle, is a loader of its own that has not begun, over a copy of the graph.

    Args:
        root: the last node.
        restart_on_stop_iteration: what the next `iter()` does with a state that was saved at the end of an epoch:
            begin the next epoch, or end at once.

    Raises:
        TypeError: `root` is no node.

    Example:
        >>> from torchdata.nodes import Batcher, IterableWrapper, Loader
        >>> loader = Loader(Batcher(IterableWrapper(range(4)), 2))
        >>> [list(loader) for epoch in range(2)]
        [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    """

    def __init__(self, root: BaseNode[T], restart_on_stop_iteration: bool = True) -> None:
        self.root = check_node("Loader", "root", root)
        self.restart_on_stop_iteration = restart_on_stop_iteration
        self._loaded: dict[str, Any] | None = None
        self._set_up()

    def _set_up(self) -> None:
        """Makes what belongs to a loader that has not begun."""
        self._it: LoaderIterator[T] | None = None
        #: Whether the iterator stands at the beginning because a state was asked for, and not yet for a loop.
        self._began_for_state = False
        #: Held by who begins an epoch, in the process of that number.
        self._beginning, self._process = threading.RLock(), os.getpid()

    def __iter__(self) -> Iterator[T]:
        """Begins an epoch, or goes on at a loaded place.

        A thread that reads the epoch before gets a RuntimeError, once the item that it is at has come; that is waited
        for.
        """
        with self._excluding_others():
            began, self._began_for_state = self._began_for_state, False
            if began and self._loaded is None and self._it is not None:
                return self._it
            if self._it is None:
                return self._begin()
            self._it.turn.close(_LEFT)
            return self._it.turn.call(self._begin)  # behind a thread that is at an item, or at a state

    def _excluding_others(self) -> threading.RLock:
        """The lock of who begins an epoch."""
        if self._process != os.getpid():  # a thread of the parent may hold it
            self._beginning, self._process = threading.RLock(), os.getpid()
        return self._beginning

    def _begin(self) -> LoaderIterator[T]:
        iterator = LoaderIterator(self)
        with one_reset():
            iterator.reset(copied(self._loaded))
        self._it, self._loaded = iterator, None
        return iterator

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` begin at a saved place.

        Args:
            state_dict: what `state_dict()` of a loader over the same graph returned.

        Raises:
            ValueError: it is no state of a loader. Errors in the states of its nodes are found by `iter()`.
        """
        fields = Fields("Loader", state_dict)
        keys = {LoaderIterator.ROOT_KEY, LoaderIterator.NUM_YIELDED_KEY}
        within = [key for key, part in state_dict.items() if isinstance(part, dict) and keys <= part.keys()]
        if within and not keys <= state_dict.keys():
            raise ValueError(
                f"Loader: this is not the state of a Loader, but a dict with the keys {sorted(map(str, state_dict))}; "
                f"load the part of it that is one: load_state_dict(state[{within[0]!r}])"
            )
        fields.integer(LoaderIterator.NUM_YIELDED_KEY, least=0)
        fields[LoaderIterator.ROOT_KEY]
        self._loaded = state_dict
        if self._it is not None:
            self._it.turn.call(partial(self._it.state_was_loaded, self))

    def state_dict(self) -> dict[str, Any]:
        """The place of the latest iterator, or of what was loaded since. It pickles, and does not change any more.

        Before the first iteration it is the beginning.
        """
        if self._loaded is not None:
            return self._loaded
        with self._excluding_others():
            if self._it is None:
                iter(self)
                self._began_for_state = True
        while True:  # another thread may begin the next epoch meanwhile
            iterator = self._it
            assert iterator is not None
            state = iterator.turn.call(partial(self._state_of, iterator))  # in turn with threads that read
            if state is not None:
                return state

    def _state_of(self, iterator: LoaderIterator[T]) -> dict[str, Any] | None:
        return iterator.state_dict() if iterator is self._it else None

    def __len__(self) -> int:
        """How many items a whole epoch has, also if the next one goes on from a state.

        Raises:
            TypeError: the root has no length, because it or a node that it reads cannot tell.
        """
        return len(self.root)

    def __bool__(self) -> bool:
        """True, however many items there are."""
        return True

    def worker_pids(self) -> list[int]:
        """The numbers of the processes that run now for the graph's `ParallelMapper` nodes, in their order."""
        running = (getattr(node, "_workers", None) for node in nodes_of(self.root))
        return [pid for workers in running if workers is not None for pid in workers.pids]

    def shutdown(self) -> None:
        """Ends all threads and processes of the graph. May be called any number of times; `iter()` starts new ones."""
        self.root.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        run = ("_it", "_began_for_state", "_beginning", "_process")
        return {name: value for name, value in list(vars(self).items()) if name not in run}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_up()

    def __copy__(self) -> Loader[T]:
        duplicate = type(self).__new__(type(self))
        duplicate.__setstate__({**self.__getstate__(), "root": copy_of_graph(self.root)})
        return duplicate

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()


class LoaderIterator(SharedIterator, BaseNode[T]):
    """The iterator of a `Loader`. One thread at a time is in `next`.

    Args:
        loader: whose graph it reads.
    """

    NUM_YIELDED_KEY = "num_yielded"
    ROOT_KEY = "root"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_before_item", "_item", "_restart_at"})

    _num_yielded = 0
    #: How many of them were yielded when the state was saved that the epoch goes on from.
    _given_before = 0
    #: An item that `has_next` has read, and the place before it.
    _item: Any = _NONE
    _before_item: Any = None
    #: How many items were yielded where the end of the graph would be that of an epoch that was over when its state was
    #: saved; None if there is no such place.
    _restart_at: int | None = None

    def __init__(self, loader: Loader[T]) -> None:
        super().__init__()
        end_at_exit(self.turn)
        # Not the loader, which holds this: what a half-read loader holds is to go with its last reference.
        self.root = loader.root
        self._restarts = loader.restart_on_stop_iteration
        self._advance = self._first

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`."""
        self._item, self._num_yielded, self._restart_at = _NONE, 0, None
        if initial_state is None:
            self.root.reset(None)
        else:
            fields = Fields("Loader", initial_state)
            self._num_yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
            self._restart_at = self._num_yielded if self._restarts else None
            self.root.reset(fields[self.ROOT_KEY])
        self._given_before = self._num_yielded
        self._advance = advance_of(self.root)
        super().reset(initial_state)

    def state_was_loaded(self, loader: Loader[T]) -> None:
        """Notes that the loader was given a state."""
        self._item = _NONE
        self._advance = partial(self._take_state_of, weakref.ref(loader))

    def _take_state_of(self, reference: weakref.ref[Loader[T]]) -> Any:
        """The first item behind the state that the loader was given."""
        loader = reference()
        state = None if loader is None else loader._loaded
        if loader is None or state is None or self._num_yielded > self._given_before:
            raise RuntimeError(
                "Loader: load_state_dict() was called after this iterator had yielded items, so the state cannot apply "
                "to it. Call iter(loader) after load_state_dict(), or begin a new loop"
            )
        with one_reset():
            self.reset(copied(state))
        loader._loaded = None
        return self._advance()

    def has_next(self) -> bool:
        """Whether there is another item. It is read, and held for the next call of `next`."""
        return self.turn.call(self._has_next)

    def _has_next(self) -> bool:
        if self._item is _NONE:
            before = place_of(self)
            try:
                self._item = self.next()
            except StopIteration:
                return False
            self._before_item = before
            self._num_yielded -= 1
        return True

    def next(self) -> T:
        """See `BaseNode.next`."""
        item: T
        if self._item is not _NONE:
            item, self._item = self._item, _NONE
        else:
            try:
                item = self._advance()
            except StopIteration:
                if self._num_yielded != self._restart_at:
                    raise
                self.reset(None)
                item = self._advance()
        self._num_yielded += 1
        return item

    def _first(self) -> Any:
        """The first item of an iterator that was not reset yet."""
        self.reset(None)
        return self._advance()

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        if self._item is not _NONE:
            return state_at(self._before_item)  # type: ignore[no-any-return]
        return {self.ROOT_KEY: self.root.state_dict(), self.NUM_YIELDED_KEY: self._num_yielded}
