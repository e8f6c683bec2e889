"""Unfolding: what pipes share that turn one item into several (flatmap, unbatch, repeat, mux).

Role: chains the parts of one item after another without a Python frame per part, and knows at any time which
item is being unfolded and how many of its parts have been yielded. Runs in the process that iterates the
pipe; the pipe owns a reference to the item being unfolded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from torchdata.datapipes.datapipe import token_of


class Unfolding:
    """State and iteration of a pipe that yields the parts of its source's items.

    The state holds the item that is being unfolded and the number of its parts that were yielded; restoring
    unfolds it again and skips these.
    """

    item_attributes: ClassVar[frozenset[str]] = frozenset({"_item"})

    _item: tuple[Any, ...]
    _skip: int
    _yielded_before: int

    def _forget_unfolding(self) -> None:
        self._item = ()  # empty, or the one item being unfolded
        self._skip = 0
        self._yielded_before = 0

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yields the parts (by `parts_of`) of the item that a restored pipe was in, and of all `items`."""
        token = token_of(self)
        first: Iterable[Any] = ()
        if self._item:
            self._yielded_before = token.yielded - self._skip
            first = islice(parts_of(self._item[0]), self._skip, None)

        def begin(item: Any) -> Iterable[Any]:
            self._item = (item,)
            self._yielded_before = token.yielded
            return parts_of(item)

        return chain(first, chain.from_iterable(map(begin, items)))

    def reset(self) -> None:
        """Forgets the item that was being unfolded."""
        self._forget_unfolding()

    def state_dict(self) -> dict[str, Any]:
        """The item that is being unfolded, and how many of its parts were yielded."""
        token = token_of(self)
        return {
            "item": self._item,
            "done": self._skip if token.armed else token.yielded - self._yielded_before,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on within the saved item."""
        self._item, self._skip = state_dict["item"], state_dict["done"]
