"""Unfolding: what pipes share that turn one item into several (flatmap, unbatch, mux).

Role: chains the parts of one item after another without a Python frame per part, and knows at any time which
item is being unfolded and how many of its parts are left. Runs in the process that iterates the pipe; the
pipe owns a reference to the item being unfolded and to the iterator over its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from torchdata.datapipes.datapipe import token_of

#: Iterators that know how many items they have left; the parts of others are counted as they are yielded.
_COUNTED = frozenset({type(iter([])), type(iter(())), type(iter(range(0)))})


class Unfolding:
    """State and iteration of a pipe that yields the parts of its source's items.

    The state holds the item that is being unfolded and its parts left (or yielded); restoring unfolds it
    again and skips the others.
    """

    item_attributes: ClassVar[frozenset[str]] = frozenset({"_item", "_parts"})

    _item: Any  # the item that is being unfolded
    _parts: Iterator[Any] | None  # what is left of it; None where no item is being unfolded
    _yielded_before: int  # items yielded before its parts, where these are not _COUNTED
    _resume: dict[str, Any] | None  # state that was loaded and not continued yet

    def _forget_unfolding(self) -> None:
        self._item = self._parts = self._resume = None
        self._yielded_before = 0

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yields the parts (by `parts_of`) of the item that a restored pipe was in, and of all `items`."""
        return chain.from_iterable(self._each_parts(items, parts_of))

    def _each_parts(
        self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]
    ) -> Iterator[Iterator[Any]]:
        token, counted = token_of(self), _COUNTED
        if self._resume is not None:
            yield self._resumed_parts(parts_of)
        for item in items:
            self._parts = parts = iter(parts_of(item))
            self._item = item
            if type(parts) not in counted:
                self._yielded_before = token.yielded
            yield parts

    def _resumed_parts(self, parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        state, self._resume = self._resume or {}, None
        self._item = state["item"]
        self._parts = parts = iter(parts_of(self._item))
        if type(parts) in _COUNTED:
            done = parts.__length_hint__() - state["left"]  # type: ignore[attr-defined]
        else:
            done = state["done"]
            self._yielded_before = token_of(self).yielded - done
        next(islice(parts, done, done), None)  # moves on by `done` parts
        return parts

    def reset(self) -> None:
        """Forgets the item that was being unfolded."""
        self._forget_unfolding()

    def state_dict(self) -> dict[str, Any]:
        """The item that is being unfolded, if any, and how many of its parts are left or were yielded."""
        if self._resume is not None:
            return {"unfolding": self._resume}
        if self._parts is None:
            return {"unfolding": None}
        if type(self._parts) in _COUNTED:
            left: int = self._parts.__length_hint__()  # type: ignore[attr-defined]
            return {"unfolding": {"item": self._item, "left": left} if left else None}
        return {"unfolding": {"item": self._item, "done": token_of(self).yielded - self._yielded_before}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on within the saved item."""
        self._forget_unfolding()
        self._resume = state_dict["unfolding"]

    def _attributes_to_copy(self) -> dict[str, Any]:
        attributes: dict[str, Any] = super()._attributes_to_copy()  # type: ignore[misc]
        return {**attributes, "_item": None, "_parts": None, "_resume": None}
