"""Loader: reads a graph of nodes in several epochs, and saves its state.

Several threads may share the loader, but only one thread at a time begins an epoch, reads an item or saves a state.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Generic

from torchdata._engine.workers.group import Group
from torchdata._native import SharedIterator
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.recorder import StatsLevel
from torchdata._stateful import copied
from torchdata._threads import end_at_exit
from torchdata.nodes._counting import NodeRecorder
from torchdata.nodes._fields import StateFields, position_of, state_at
from torchdata.nodes._processes import one_reset
from torchdata.nodes._read_ahead import ThreadedNode
from torchdata.nodes.base_node import BaseNode, T, check_node, copy_of_graph, nodes_of

__all__ = ["Loader", "LoaderIterator"]

_NONE = object()
_LEFT = (
    "this iterator has been invalidated, because iter() of its Loader has begun another epoch; to read both at the "
    "same time, create a second Loader with its own nodes"
)


class Loader(ObservedLoader, Generic[T]):
    """The loader for a training loop. Each `iter()` begins an epoch of the graph that ends in `root`.

    A loader has one valid iterator: a new `iter()` begins the next epoch and invalidates the previous iterator. Threads
    may share an iterator, and each item goes to one of the threads. After a state was loaded, the next `iter()` resumes
    from this state. An iterator that was created before the state was loaded also resumes from the loaded state if it
    has not yielded an item; otherwise, it raises `RuntimeError`. A loader that is used as a context manager calls
    `shutdown` at the end. A copy, by `copy` or pickle, is an independent loader over a copy of the graph, and has not
    begun.

    Args:
        root: the last node.
        restart_on_stop_iteration: whether the first `iter()` after loading a state from the end of an epoch begins the
            next epoch; True by default. With `restart_on_stop_iteration=False`, the first `iter()` after loading a
            state from an epoch's end yields nothing.
        stats: "counts" only counts the items that the loader yields. "full" also measures the time of each node. With
            `stats=None`, the environment variable `TORCHDATA_STATS` is used, and "counts" if it is not set.
        wait_warning: the fraction of an epoch that the program may wait for the loader; None disables the warning; 0.3
            by default. A warning is issued if an epoch lasts at least 10 seconds, and the program waits for more than
            the fraction `wait_warning` of the epoch.

    Raises:
        TypeError: `root` is not a node.
        ValueError: `stats` or `wait_warning` is invalid.

    Example:
        >>> from torchdata.nodes import Batcher, IterableWrapper, Loader
        >>> loader = Loader(Batcher(IterableWrapper(range(4)), 2))
        >>> [list(loader) for epoch in range(2)]
        [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    """

    def __init__(
        self,
        root: BaseNode[T],
        restart_on_stop_iteration: bool = True,
        *,
        stats: StatsLevel | None = None,
        wait_warning: float | None = 0.3,
    ) -> None:
        self.root = check_node("Loader", "root", root)
        self._recorder: NodeRecorder = NodeRecorder(stats, wait_warning)
        self.restart_on_stop_iteration = restart_on_stop_iteration
        self._loaded: dict[str, Any] | None = None
        self._set_up()

    def _set_up(self) -> None:
        self._it: LoaderIterator[T] | None = None
        #: Whether the iterator was created only because a state was requested.
        self._began_for_state = False
        #: `_beginning`: the lock that a thread holds while it begins an epoch. `_process`: the id of the process that
        #: has created this lock.
        self._beginning, self._process = threading.RLock(), os.getpid()

    def __iter__(self) -> Iterator[T]:
        """Begins an epoch, or resumes from a loaded state.

        If another thread is reading the previous epoch, `next` raises RuntimeError in that thread.
        """
        with self._excluding_others():
            began, self._began_for_state = self._began_for_state, False
            if began and self._loaded is None and self._it is not None:
                return self._it
            if self._it is None:
                return self._begin()
            self._it.turn.close(_LEFT)
            return self._it.turn.call(self._begin)

    def _excluding_others(self) -> threading.RLock:
        if self._process != os.getpid():  # after a fork, a thread of the parent process may hold the lock
            self._beginning, self._process = threading.RLock(), os.getpid()
        return self._beginning

    def _begin(self) -> LoaderIterator[T]:
        iterator = LoaderIterator(self)
        self._recorder.begin_graph(iterator, self.root)
        with one_reset():
            iterator.reset(copied(self._loaded))
        self._it, self._loaded = iterator, None
        return iterator

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` resume from a saved state.

        Args:
            state_dict: a result of `state_dict()` of a loader over the same graph.

        Raises:
            ValueError: `state_dict` is not a state of a loader. If the state of a node is invalid, the next `iter()`
                raises an error.
        """
        fields = StateFields("Loader", state_dict, begins=False)
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
        """Returns the state of the latest iterator.

        If a state was loaded after the latest iterator was created, returns the loaded state. The returned state never
        changes and can be pickled. Before the first iteration, the state describes the beginning of the first epoch.

        Raises:
            RuntimeError: this thread is computing an item, because a signal handler or a function of a node has called
                `state_dict`.
        """
        if self._loaded is not None:
            return self._loaded
        with self._excluding_others():
            if self._it is None:
                iter(self)
                self._began_for_state = True
        while True:  # repeats if another thread begins the next epoch meanwhile
            iterator = self._it
            assert iterator is not None
            # A thread that is computing an item would wait forever, because `state_dict` waits until no item is being
            # computed.
            if iterator.turn.is_mine or threading.current_thread() in self._threads():
                raise RuntimeError(
                    "Loader: state_dict() was called while this thread computes an item, in a signal handler or in a "
                    "function of a node, so the nodes have no position now: let the handler set a flag, and call "
                    "state_dict() after the item has arrived"
                )
            state = iterator.turn.call(partial(self._state_of, iterator))
            if state is not None:
                return state

    def _state_of(self, iterator: LoaderIterator[T]) -> dict[str, Any] | None:
        return iterator.state_dict() if iterator is self._it else None

    def __len__(self) -> int:
        """Returns the number of items in a complete epoch, even if the next epoch resumes from a state.

        Raises:
            TypeError: the length of the root, or of one of its sources, is unknown.
        """
        return len(self.root)

    def __bool__(self) -> bool:
        return True

    def _groups(self) -> list[Group]:
        running = (getattr(node, "_workers", None) for node in nodes_of(self.root))
        return [workers for workers in running if workers is not None]

    def _threads(self) -> list[threading.Thread]:
        runs = [node._run for node in nodes_of(self.root) if isinstance(node, ThreadedNode)]
        return [thread for run in runs if run is not None for thread in run.work.threads]

    def shutdown(self) -> None:
        """Ends all threads and processes of the graph. `shutdown` may be called several times. After a shutdown,
        `iter()` starts new threads and processes.
        """
        self._recorder.close()
        self.root.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        run = ("_it", "_began_for_state", "_beginning", "_process")
        kept = {name: value for name, value in list(vars(self).items()) if name not in run}
        return {**kept, "_recorder": self._recorder.copied()}

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
    """The iterator of a `Loader`. Only one thread at a time runs `next`."""

    NUM_YIELDED_KEY = "num_yielded"
    ROOT_KEY = "root"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_before_item", "_item", "_restart_at"})

    _num_yielded = 0
    #: The number of items that the epoch had yielded when the loaded state was saved.
    _yielded_before = 0
    #: An item that `has_next` has read in advance. `_before_item` is the position of the iterator before `_item`.
    _item: Any = _NONE
    _before_item: Any = None
    #: The number of items that had been yielded when the loaded state was saved, or None. If no item of the epoch
    #: follows after the loaded position, the iterator begins the next epoch.
    _restart_at: int | None = None

    def __init__(self, loader: Loader[T]) -> None:
        super().__init__()
        end_at_exit(self.turn)
        # The iterator does not refer to the loader, because such a reference cycle would keep an unused loader alive.
        self.root = loader.root
        self._recorder, self._restarts = loader._recorder, loader.restart_on_stop_iteration
        self._advance = self._first

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Loader", initial_state)
        self._item, self._num_yielded = _NONE, fields.integer(self.NUM_YIELDED_KEY, least=0)
        self._restart_at = self._num_yielded if self._restarts and initial_state is not None else None
        self._advance = fields.reset(self.root, self.ROOT_KEY)
        self._yielded_before = self._num_yielded
        super().reset(initial_state)

    def state_was_loaded(self, loader: Loader[T]) -> None:
        """Makes this iterator resume from the loaded state."""
        self._item = _NONE
        self._advance = partial(self._take_state_of, weakref.ref(loader))

    def _take_state_of(self, reference: weakref.ref[Loader[T]]) -> Any:
        loader = reference()
        state = None if loader is None else loader._loaded
        if loader is None or state is None or self._num_yielded > self._yielded_before:
            raise RuntimeError(
                "Loader: load_state_dict() was called after this iterator had yielded items, so the state cannot apply "
                "to it. Call iter(loader) after load_state_dict(), or begin a new loop"
            )
        with one_reset():
            self.reset(copied(state))
        loader._loaded = None
        return self._advance()

    def has_next(self) -> bool:
        """Reads the next item, if there is one, and keeps it for the next call of `next`."""
        return self.turn.call(self._has_next)

    def _has_next(self) -> bool:
        if self._item is _NONE:
            before = position_of(self)
            try:
                self._item = self.next()
            except StopIteration:
                return False
            self._before_item = before
            self._num_yielded -= 1
        return True

    def next(self) -> T:
        item: T
        if self._item is not _NONE:
            item, self._item = self._item, _NONE
        else:
            try:
                item = self._advance()
            except StopIteration:
                if self._num_yielded != self._restart_at:
                    self._recorder.end()
                    raise
                self.reset(None)
                item = self._advance()
        self._num_yielded += 1
        return item

    def _first(self) -> Any:
        self.reset(None)
        return self._advance()

    def get_state(self) -> dict[str, Any]:
        if self._item is not _NONE:
            return state_at(self._before_item)  # type: ignore[no-any-return]
        return {self.ROOT_KEY: self.root.state_dict(), self.NUM_YIELDED_KEY: self._num_yielded}
