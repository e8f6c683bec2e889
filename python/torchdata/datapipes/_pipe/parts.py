"""Tracks which members of a function's result have not been yielded, so that a state can contain them.

Pipes that yield the members of a result, such as `flatmap`, use this module. If the result of the function is in
memory, a state contains the remaining members, because a second call of the function may return different members. If
the result of the function is a generator, a resumed run calls the function again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from torchdata.datapipes._pipe.state.declared import fits
from torchdata.datapipes._pipe.streams import with_detached_streams
from torchdata.datapipes.datapipe import DataChunk

SLICED: frozenset[type] = frozenset({list, tuple, range, str, bytes, DataChunk})

#: Types of results that are in memory, but are converted to lists, because they may not support slices.
_LISTED: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque, *map(type, ({}.keys(), {}.values(), {}.items())))


def listed(result: Any) -> list[Any] | None:
    in_memory = isinstance(result, _LISTED) or hasattr(type(result), "__array__")
    return list(result) if in_memory else None


class Remaining(NamedTuple):
    """The parts of an item that were not yielded: `members`, or the parts after the first `done` parts of `item`."""

    members: Any = None
    item: Any = None
    done: int = 0


def is_rest(saved: Any) -> bool:
    """Returns whether `saved` contains the remaining parts of an item, or the item and the number of yielded parts."""
    return fits(saved, {"item": object, "done": int}, *({"members": kind} for kind in SLICED))


def state_of_members(members: Any, left: Iterator[Any]) -> dict[str, Any] | None:
    count = left.__length_hint__()  # type: ignore[attr-defined]
    return {"members": members[len(members) - count :]} if count else None


def detached(members: Any, left: Iterator[Any]) -> Any:
    rest = members[len(members) - left.__length_hint__() :]  # type: ignore[attr-defined]
    return list(map(with_detached_streams, rest)) if type(rest) in (list, tuple) else rest


class _Counted(Iterator[Any]):
    __slots__ = ("_source", "done")

    def __init__(self, source: Iterator[Any], done: int) -> None:
        self._source = source
        self.done = done

    def __next__(self) -> Any:
        item = next(self._source)
        self.done += 1
        return item


class Parts:
    """The members of one result. `done` is the number of members that were already yielded."""

    __slots__ = ("_item", "_members", "left")

    def __init__(self, function: Callable[[Any], Iterable[Any]], item: Any, done: int = 0) -> None:
        result = function(item)
        members: Any = result if type(result) in SLICED else listed(result)
        if members is not None:
            self._item, self._members = None, members[done:] if done else members
            self.left: Iterator[Any] = iter(self._members)
        else:
            # The item is copied before its members are generated, because generating them may read a stream in the
            # item.
            self._item, self._members = with_detached_streams(item), None
            source = iter(result)
            next(islice(source, done, done), None)
            self.left = _Counted(source, done)

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self.left, _Counted):
            return {"item": self._item, "done": self.left.done}
        return state_of_members(self._members, self.left) or {"members": ()}

    def detach(self) -> None:
        """Called when the iteration is abandoned: closes files, and keeps only what `state_dict` needs."""
        if isinstance(self.left, _Counted):
            self.left = _Counted(iter(()), self.left.done)
        else:
            self._members = detached(self._members, self.left)
            self.left = iter(self._members)

    @classmethod
    def restored(cls, function: Callable[[Any], Iterable[Any]], state: dict[str, Any]) -> Parts:
        rest = Remaining(**state)
        return cls(function, rest.item, rest.done) if rest.members is None else cls(attrgetter("members"), rest)
