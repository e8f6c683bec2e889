"""Finds items that change, or become unusable, when the source reads later items.

Role: some sources reuse one buffer or object for all items, so their items must not wait for other shards (see
`common_parts`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import IOBase
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

__all__ = ["ReusedObjects"]

#: Values of these types never change.
_FIXED = frozenset({NoneType, bool, int, float, complex, str, bytes, range, FunctionType, BuiltinFunctionType})
#: The maximum number of levels of nested containers, and of members of a container, that are examined.
_LEVELS, _MEMBERS = 4, 64
#: The objects of this many recent items are always remembered.
_RECENT = 1 << 10

#: Appends the ids of an item's mutable objects to a list, and its memory to a list of (id of the owner, address).
#: Returns whether the item contains a stream or an iterator.
_Search = Callable[[Any, int, list[int], list[tuple[int, int]]], bool]


class ReusedObjects:
    """Examines the items of a source in their order.

    Args:
        waits: returns whether the item at a position still waits for its shard.
        oldest: returns a lower bound of the positions of all waiting items.
    """

    def __init__(self, waits: Callable[[int], bool], oldest: Callable[[], int]) -> None:
        self._waits, self._oldest = waits, oldest
        #: Whether an item contains a stream, or shares memory with an item that `waits`.
        self.is_found = False
        self._objects: dict[int, int] = {}
        self._views: dict[int, dict[int, int]] = {}
        self._most = 4 * _RECENT

    def examine(self, item: Any, position: int) -> Any:
        kind: Any = type(item)
        if kind in _FIXED or (search := _search_of(kind)) is None:
            return item
        ids: list[int] = []
        views: list[tuple[int, int]] = []
        if search(item, _LEVELS, ids, views):
            self.is_found = True
        objects = self._objects
        for each in ids:
            before = objects.get(each, position)
            if before != position and self._waits(before):
                self.is_found = True
            objects[each] = position
        for owner, address in views:
            used = self._views.setdefault(owner, {})
            # A source may overwrite the whole memory at once, so this concerns all items with views of the memory.
            if used.get(address, position) != position:
                self.is_found |= any(map(self._waits, used.values()))
            used[address] = position
        if len(objects) > self._most or (views and len(used) + len(self._views) > self._most):
            self._forget(position)
        return item

    def _forget(self, position: int) -> None:
        oldest = min(self._oldest(), position - _RECENT)
        self._objects = {each: last for each, last in self._objects.items() if last >= oldest}
        recent = {
            owner: {address: last for address, last in used.items() if last >= oldest}
            for owner, used in self._views.items()
        }
        self._views = {owner: used for owner, used in recent.items() if used}
        sizes = [len(self._objects), len(self._views), *(len(used) for used in self._views.values())]
        self._most = 4 * _RECENT + 2 * max(sizes)


@cache
def _search_of(kind: Any) -> _Search | None:
    """Returns None for types with instances that never change."""
    if kind in _FIXED or issubclass(kind, (type, ModuleType)):
        return None
    if issubclass(kind, IOBase) or hasattr(kind, "__next__") or hasattr(kind, "read"):
        return lambda *_: True
    if issubclass(kind, memoryview):
        return _search_memory
    if hasattr(kind, "untyped_storage"):
        return _search_tensor
    if hasattr(kind, "__array_interface__"):  # NumPy's scalars never change
        return _search_array if hasattr(kind, "base") and hasattr(kind, "__setitem__") else None
    return _search_object


def _search(item: Any, levels: int, ids: list[int], views: list[tuple[int, int]]) -> bool:
    kind: Any = type(item)
    search = _search_of(kind) if levels else None
    return search is not None and search(item, levels, ids, views)


def _search_memory(item: Any, levels: int, ids: list[int], views: list[tuple[int, int]]) -> bool:
    return _search(item.obj, levels, ids, views)


def _search_array(item: Any, levels: int, ids: list[int], views: list[tuple[int, int]]) -> bool:
    owner = item
    while type(owner) is memoryview or getattr(owner, "base", None) is not None:
        owner = owner.obj if type(owner) is memoryview else owner.base
    if type(owner) is not bytes and item.nbytes:
        views.append((id(owner), 0 if owner is item else item.__array_interface__["data"][0]))
    return bool(item.dtype.hasobject) and _search((*islice(item.flat, _MEMBERS),), levels, ids, views)


def _search_tensor(item: Any, _levels: int, ids: list[int], views: list[tuple[int, int]]) -> bool:
    try:
        views.append((item.untyped_storage().data_ptr() or id(item), item.data_ptr()))
    except (RuntimeError, NotImplementedError):  # raised, for example, for a sparse tensor
        ids.append(id(item))
    return False


def _search_object(item: Any, levels: int, ids: list[int], views: list[tuple[int, int]]) -> bool:
    # Objects of types with their own hash do not change, but the members of a tuple may change.
    own_hash: Any = type(item).__hash__
    if own_hash is None or own_hash is object.__hash__:
        ids.append(id(item))
    if isinstance(item, (tuple, list, dict, set, frozenset)):
        parts = item.values() if isinstance(item, dict) else item
        for part in parts if len(parts) <= _MEMBERS else islice(parts, _MEMBERS):
            if type(part) not in _FIXED and _search(part, levels - 1, ids, views):
                return True
    attributes: dict[str, Any] = getattr(item, "__dict__", {})
    return any(_search(part, levels - 1, ids, views) for part in islice(attributes.values(), _MEMBERS))
