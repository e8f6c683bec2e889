"""Results of a function that are yielded member by member: what is left of one, as a state can hold it.

Role: a pipe whose function makes several items of what it gets cannot call it again for the same input and be sure of
the same result: functions draw random numbers, and change what they are given. So the members that are left are the
state, wherever they lie in memory; only a result that makes its members as they are asked for (a generator) is made
again. Runs in the process that iterates the pipe. A pipe owns the `Parts` of each result that it has not finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from torchdata.datapipes._streams import with_own_streams

__all__ = ["Parts", "UnfoldsResults"]

#: Types whose iterators tell how many members are left, and whose members can be cut off by a slice.
_SLICED = frozenset({list, tuple, range, str, bytes})

#: Types that lie in memory, too, but must be listed for that.
_LISTED: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    deque,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def _in_memory(result: Any) -> Any:
    """The members of `result` as a sequence that can be sliced; None where they are not all there."""
    kind = type(result)
    if kind in _SLICED:
        return result
    if isinstance(result, _LISTED) or hasattr(kind, "__array__"):
        return list(result)
    return None


class _Counted(Iterator[Any]):
    """An iterator that knows how many items it gave."""

    __slots__ = ("_source", "done")

    def __init__(self, source: Iterator[Any], done: int) -> None:
        self._source = source
        self.done = done

    def __next__(self) -> Any:
        item = next(self._source)
        self.done += 1
        return item


class Parts:
    """One result and what is left of it.

    Args:
        function: makes the result.
        item: what the function gets.
        done: how many members of the result to leave out.
    """

    __slots__ = ("_item", "_members", "left")

    def __init__(self, function: Callable[[Any], Iterable[Any]], item: Any, done: int = 0) -> None:
        result = function(item)
        members = _in_memory(result)
        if members is not None:
            self._item, self._members = None, members[done:] if done else members
            self.left: Iterator[Any] = iter(self._members)
        else:
            self._item, self._members = item, None
            source = iter(result)
            next(islice(source, done, done), None)
            self.left = _Counted(source, done)

    def state_dict(self) -> dict[str, Any] | None:
        """The members left, or what to make them of again; None where none are known to be left."""
        if isinstance(self.left, _Counted):
            return {"item": self._item, "done": self.left.done}
        left = self.left.__length_hint__()  # type: ignore[attr-defined]
        return {"members": self._members[len(self._members) - left :]} if left else None

    @classmethod
    def restored(cls, function: Callable[[Any], Iterable[Any]], state: dict[str, Any]) -> Parts:
        """Parts that go on where those of the state stood. The state can be used again."""
        if "members" not in state:
            return cls(function, with_own_streams(state["item"]), state["done"])
        members = state["members"]
        if type(members) in (list, tuple):
            members = [with_own_streams(member) for member in members]
        return cls(_itself, members)


def _itself(item: Any) -> Any:
    return item


class UnfoldsResults:
    """State and iteration of a pipe that yields the members of one result after another.

    The members are chained by builtins, so none of them costs a Python frame.
    """

    item_attributes: ClassVar[frozenset[str]] = frozenset({"_parts", "_resume"})

    _parts: Parts | None = None
    #: State that was loaded and not continued yet.
    _resume: dict[str, Any] | None = None

    def _unfold(self, items: Iterator[Any], function: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """The members left of the result that a restored pipe was in, then those of `function` of each item."""
        return chain.from_iterable(self._each_parts(items, function))

    def _each_parts(
        self, items: Iterator[Any], function: Callable[[Any], Iterable[Any]]
    ) -> Iterator[Iterator[Any]]:
        if self._resume is not None:
            state, self._resume = self._resume, None
            self._parts = Parts.restored(function, state)
            yield self._parts.left
        for item in items:
            self._parts = None  # what it held can go while the next result is made
            self._parts = Parts(function, item)
            yield self._parts.left

    def reset(self) -> None:
        """Forgets the result that was being unfolded."""
        self._parts = self._resume = None

    def state_dict(self) -> dict[str, Any]:
        """What is left of the result that is being unfolded, if any."""
        if self._resume is not None or self._parts is None:
            return {"parts": self._resume}
        return {"parts": self._parts.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on within the saved result."""
        self._parts, self._resume = None, state_dict["parts"]

    def _attributes_to_copy(self) -> dict[str, Any]:
        attributes: dict[str, Any] = super()._attributes_to_copy()  # type: ignore[misc]
        return {**attributes, "_parts": None, "_resume": None}
