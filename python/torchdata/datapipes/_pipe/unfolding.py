"""Unfolding: what pipes share that turn one item into several (flatmap, map_batches, unbatch, mux, …).

Role: chains the parts of one item after another without a Python frame per part, and knows at any time which parts
are left. Runs in the process that iterates the pipe; the pipe owns the parts of the item that is being unfolded.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torchdata._reporting import add_note, name_of
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.parts import SLICED, detached, listed, restored, state_of_members
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.streams import with_detached_streams
from torchdata.datapipes.datapipe import token_of


class _Raising:
    """An iterator that raises, and has ended then."""

    def __init__(self, error: BaseException) -> None:
        self._errors = [error]

    def __iter__(self) -> _Raising:
        return self

    def __next__(self) -> Any:
        if self._errors:
            raise self._errors.pop()  # no frame is to hold the error that it raises
        raise StopIteration


def _iterator_over(parts: Any, pipe: Any) -> Iterator[Any]:
    """Returns `iter(parts)`, or raises its TypeError with a note that names the pipe and what its function returned."""
    try:
        return iter(parts)
    except TypeError as error:
        add_note(
            error,
            f"The function of {name_of(pipe)} must return an iterable of items, but returned {reprlib.repr(parts)}; "
            "map() takes functions that return one item.",
        )
        raise


class Unfolding:
    """State and iteration of a pipe that yields the parts of its source's items.

    The state holds the parts that are left, if all lie in memory. If they are made as they are asked for (by a
    generator), it holds the item and how many of its parts were yielded; restoring unfolds the item again.
    """

    #: Over the parts; None if no item is being unfolded.
    _left: Iterator[Any] | None = state(items=True, saved=False)
    _in_memory: Any = state(items=True, saved=False)  # the parts, if they lie in memory
    _item: Any = state(items=True, saved=False)  # the item that is being unfolded, if they do not
    _yielded_before: int = state(0, saved=False)  # and the items yielded before its parts
    _resume: dict[str, Any] | None = state(items=True, saved=False)  # state that is to be continued

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yields the parts (by `parts_of`) of the item that a restored pipe was in, and of all `items`."""
        return chain.from_iterable(self._each_parts(items, parts_of))

    def _each_parts(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Iterator[Any]]:
        token, sliced = token_of(self), SLICED
        left: Iterator[Any] | None = None
        try:
            if self._resume is not None:
                try:
                    left = self._resumed_parts(parts_of)
                except Exception as error:
                    left = _Raising(error)
                yield left
            for item in items:
                try:
                    parts = parts_of(item)
                    members: Any = parts if type(parts) in sliced else listed(parts)
                    # The item is kept as it is before the first part is made, which may read from a stream in it.
                    kept = with_detached_streams(item) if members is None else None
                    left = _iterator_over(parts if members is None else members, self)
                except Exception as error:
                    # Raised by the chain as one of the parts, it ends neither that nor this generator.
                    yield _Raising(not_the_end(name_of(self), error))
                    continue
                if members is None:
                    self._item, self._yielded_before = kept, token.yielded
                self._in_memory, self._left = members, left
                yield left
        except GeneratorExit:
            if self._left is left is not None:  # and not those of a newer iteration
                self._park()
            raise

    def _drop_broken(self) -> None:
        """Drops an item one of whose parts has raised an exception."""
        self._item, self._in_memory, self._left = None, [], iter(())

    def _park(self) -> None:
        """Keeps only what the state needs, after an iteration that was left: no file open, no generator half-way."""
        if self._in_memory is None:
            self._left = iter(())
        elif self._left is not None:
            self._in_memory = detached(self._in_memory, self._left)
            self._left = iter(self._in_memory)

    def _resumed_parts(self, parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        state, self._resume = self._resume or {}, None
        if "members" in state:
            self._in_memory = restored(state)
            self._left = left = iter(self._in_memory)
            return left  # type: ignore[no-any-return]
        self._item, done = state["item"], state["done"]
        self._yielded_before = token_of(self).yielded - done
        self._left = left = iter(parts_of(self._item))
        next(islice(left, done, done), None)  # moves on by `done` parts
        return left

    def state_dict(self) -> dict[str, Any]:
        """The parts that are left of the item that is being unfolded, if any, or the item."""
        if self._resume is not None or self._left is None:
            return {"unfolding": self._resume}
        if self._in_memory is not None:
            return {"unfolding": state_of_members(self._in_memory, self._left)}
        return {"unfolding": {"item": self._item, "done": token_of(self).yielded - self._yielded_before}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration continue within the saved item."""
        self._load_declared({})  # type: ignore[attr-defined]
        resume = state_dict["unfolding"]
        if resume is not None and "members" not in resume and not ("item" in resume and type(resume["done"]) is int):
            raise KeyError("it is told neither what is left of an item, nor which item that is")
        self._resume = resume
