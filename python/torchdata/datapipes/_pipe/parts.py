"""Tracks which members of a function's result have not been yielded, so that a state can contain them.

Role: if the result is in memory, a state contains its remaining members, because a second call may return other
members, for example if the function draws random numbers. If the result is a generator, a resumed run calls the
function again.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, islice
from operator import itemgetter, length_hint
from typing import Any

from torchdata._reporting import add_note, name_of
from torchdata.datapipes._pipe.streams import with_detached_streams
from torchdata.datapipes.datapipe import DataChunk

_MANY = 1 << 62
_SLICED: frozenset[type] = frozenset({list, tuple, range, str, bytes, DataChunk})

#: Types of results that are in memory, but do not support slices. They are converted to lists.
_LISTED: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    deque,
    *map(type, ({}.keys(), {}.values(), {}.items())),
)


class Parts:
    """The members of the result of a pipe's function. `done` is the number of members that were already yielded, and
    `left` is the iterator over the other members."""

    __slots__ = ("_item", "_members", "_numbers", "left")

    def __init__(self, pipe: Any, function: Callable[[Any], Iterable[Any]], item: Any, done: int = 0) -> None:
        result: Any = function(item)
        if type(result) not in _SLICED and (isinstance(result, _LISTED) or hasattr(type(result), "__array__")):
            result = list(result)
        if type(result) in _SLICED:
            self._numbers, self._members = None, result[done:] if done else result
            self.left: Iterator[Any] = iter(self._members)
            return
        # The item is copied first, because generating a member may read a stream in the item.
        self._item, self._members = with_detached_streams(item), None
        try:
            source = iter(result)
        except TypeError as error:
            add_note(
                error,
                f"The function of {name_of(pipe)} must return an iterable of items, but returned "
                f"{reprlib.repr(result)}; map() takes functions that return one item.",
            )
            raise
        if done:
            next(islice(source, done, done), None)
        #: The numbers of the members, from 1. `compress` requests one for each member, without running Python code.
        self._numbers = iter(range(done + 1, _MANY))
        self.left = compress(source, self._numbers)

    def state_dict(self) -> dict[str, Any]:
        if self._numbers is not None:
            return {"item": self._item, "done": _MANY - 1 - length_hint(self._numbers)}
        return {"members": self._members[len(self._members) - length_hint(self.left) :]}

    def detach(self) -> None:
        """Keeps only what `state_dict` needs, and closes files. Called when the iteration is abandoned."""
        if self._numbers is None:
            rest = self.state_dict()["members"]
            self._members = list(map(with_detached_streams, rest)) if type(rest) in (list, tuple) else rest
            self.left = iter(self._members)
        else:
            self.left = iter(())

    @classmethod
    def restored(cls, pipe: Any, function: Callable[[Any], Iterable[Any]], state: dict[str, Any]) -> Parts:
        if "members" in state:
            return cls(pipe, itemgetter("members"), state)
        return cls(pipe, function, state["item"], state["done"])
