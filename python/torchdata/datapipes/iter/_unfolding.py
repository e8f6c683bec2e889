"""Unfolding: what pipes share that turn one item into several (flatmap, map_batches, unbatch, mux, …).

Role: chains the parts of one item after another without a Python frame per part, and knows at any time which parts
are left. Runs in the process that iterates the pipe; the pipe owns the parts of the item that is being unfolded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from torchdata.datapipes._streams import with_own_streams, with_parked_streams
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter._parts import SLICED, listed, parked, restored, state_of_members


class Unfolding:
    """State and iteration of a pipe that yields the parts of its source's items.

    The state holds the parts that are left, where all lie in memory. Where they are made as they are asked for (by a
    generator), it holds the item and how many of its parts were yielded; restoring unfolds the item again.
    """

    item_attributes: ClassVar[frozenset[str]] = frozenset({"_item", "_in_memory", "_left", "_resume"})

    _left: Iterator[Any] | None  # over the parts; None where no item is being unfolded
    _in_memory: Any  # the parts, where they lie in memory
    _item: Any  # the item that is being unfolded, where they do not
    _yielded_before: int  # and the items yielded before its parts
    _resume: dict[str, Any] | None  # state that was loaded and not continued yet

    def _forget_unfolding(self) -> None:
        self._item = self._in_memory = self._left = self._resume = None
        self._yielded_before = 0

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yields the parts (by `parts_of`) of the item that a restored pipe was in, and of all `items`."""
        return chain.from_iterable(self._each_parts(items, parts_of))

    def _each_parts(
        self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]
    ) -> Iterator[Iterator[Any]]:
        token, sliced = token_of(self), SLICED
        left: Iterator[Any] | None = None
        try:
            if self._resume is not None:
                left = self._resumed_parts(parts_of)
                yield left
            for item in items:
                parts = parts_of(item)
                members: Any = parts if type(parts) in sliced else listed(parts)
                if members is None:
                    # As the item is before the first part is asked for, which may read from a stream in it.
                    self._item, self._yielded_before = with_parked_streams(item), token.yielded
                    left = iter(parts)
                else:
                    left = iter(members)
                self._in_memory, self._left = members, left
                yield left
        except GeneratorExit:
            if self._left is left is not None:  # and not those of a newer iteration
                self._park()
            raise

    def _park(self) -> None:
        """Keeps only what the state needs, after an iteration that was left: no file open, no generator half-way."""
        if self._in_memory is None:
            self._left = iter(())
        elif self._left is not None:
            self._in_memory = parked(self._in_memory, self._left)
            self._left = iter(self._in_memory)

    def _resumed_parts(self, parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        state, self._resume = self._resume or {}, None
        if "members" in state:
            self._in_memory = restored(state)
            self._left = left = iter(self._in_memory)
            return left  # type: ignore[no-any-return]
        self._item, done = with_own_streams(state["item"]), state["done"]
        self._yielded_before = token_of(self).yielded - done
        self._left = left = iter(parts_of(self._item))
        next(islice(left, done, done), None)  # moves on by `done` parts
        return left

    def reset(self) -> None:
        """Forgets the item that was being unfolded."""
        self._forget_unfolding()

    def state_dict(self) -> dict[str, Any]:
        """The parts that are left of the item that is being unfolded, if any, or the item."""
        if self._resume is not None or self._left is None:
            return {"unfolding": self._resume}
        if self._in_memory is not None:
            return {"unfolding": state_of_members(self._in_memory, self._left)}
        return {"unfolding": {"item": self._item, "done": token_of(self).yielded - self._yielded_before}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on within the saved item."""
        self._forget_unfolding()
        self._resume = state_dict["unfolding"]

    def _attributes_to_copy(self) -> dict[str, Any]:
        attributes: dict[str, Any] = super()._attributes_to_copy()  # type: ignore[misc]
        return {**attributes, "_item": None, "_in_memory": None, "_left": None, "_resume": None}
