"""Finds items that change, or become unusable, when the source reads later items.

If a source writes a later item to the same buffer or object, an item that still waits in a queue changes (see
`common_parts`). If an item cannot be examined completely, this module assumes that the source reuses the item's memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO, IOBase, StringIO
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType, NoneType
from typing import Any

#: Types with values that never change. `_search` adds further types to this set.
_fixed: set[Any] = {NoneType, bool, int, float, complex, str, bytes, range, type, FunctionType, BuiltinFunctionType}
#: The maximum number of examined objects per item, not counting values that never change.
_MOST = 1 << 10
#: The ids and addresses of at least `_RECENT` recent items are kept, so that later items can be compared with the
#: recent items.
_RECENT = 1 << 10
#: The objects of these libraries use only their own memory, or memory that does not change.
_LIBRARIES = frozenset({"PIL", "numpy", "pandas", "polars", "pyarrow", "torch", "torchdata"})
_KNOWN = _LIBRARIES | sys.stdlib_module_names
#: The flag of classes that are not static in C (`Py_TPFLAGS_HEAPTYPE`).
_ON_HEAP = 1 << 9

#: A function that examines one object of an item, and appends the ids of mutable objects to its second argument
#: (`ids`). If the object uses memory, the function appends a pair to its third argument: an identifier of the memory's
#: owner, and the memory's address. The function returns the objects that the examined object refers to; None if the
#: object may use memory that cannot be found.
_Search = Callable[[Any, list[int], list[tuple[int, int]]], Sequence[Any] | None]


class ReusedObjects:
    """Examines the items of a source, in their order, for objects and memory that the source reuses.

    Args:
        waits: a function that returns whether the item at a position still waits for its shard.
        oldest: a function that returns the lowest position of an item that may wait for its shard; records of earlier
            items can be removed.
    """

    def __init__(self, waits: Callable[[int], bool], oldest: Callable[[], int]) -> None:
        self._waits, self._oldest = waits, oldest
        #: Whether an examined item must not be queued. An item must not be queued if it contains a stream, cannot be
        #: examined, or shares memory with an earlier item that still waits for its shard.
        self.is_found = False
        self._objects: dict[int, int] = {}
        self._views: dict[int, dict[int, int]] = {}
        self._most = 4 * _RECENT

    def examine(self, item: Any, position: int) -> Any:
        if type(item) in _fixed:
            return item
        ids: list[int] = []
        views: list[tuple[int, int]] = []
        if not _search(item, ids, views):
            self.is_found = True
        objects = self._objects
        for each in ids:
            before = objects.get(each, position)
            if before != position and self._waits(before):
                self.is_found = True
            objects[each] = position
        for owner, address in views:
            used = self._views.setdefault(owner, {})
            # A source may overwrite a whole memory block at once, so all items that use the same block are checked.
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


def _search(item: Any, ids: list[int], views: list[tuple[int, int]]) -> bool:
    """Returns whether all objects of the item were examined, and none is a stream or an iterator."""
    found, seen = [item], set[int]()
    for each in found:
        kind: Any = type(each)
        if kind in _fixed or id(each) in seen:
            continue
        search = _search_of(kind)
        if search is _search_nothing:
            _fixed.add(kind)
            continue
        seen.add(id(each))
        parts = search(each, ids, views)
        if parts is None or len(seen) > _MOST:
            return False
        if not _fixed.issuperset(map(type, parts)):
            found.extend(parts)
    return True


@cache
def _search_of(kind: Any) -> _Search:
    if issubclass(kind, (type, ModuleType)):
        return _search_nothing
    if kind in (BytesIO, StringIO):
        return _search_object
    if issubclass(kind, IOBase) or hasattr(kind, "__next__") or hasattr(kind, "read"):
        return _refuse
    if issubclass(kind, memoryview):
        return _search_memory
    if hasattr(kind, "untyped_storage"):
        return _search_tensor
    if hasattr(kind, "__array_interface__") and hasattr(kind, "base") and hasattr(kind, "__setitem__"):
        return _search_array
    if hasattr(kind, "_b_base_"):
        return _refuse_hidden
    is_hidden = any(map(_has_hidden_memory, kind.__mro__))
    library = kind.__module__.partition(".")[0]
    is_container = issubclass(kind, (tuple, frozenset)) or hasattr(kind, "__setitem__")
    if _has_own_hash(kind) and not is_container and (is_hidden or (library in _KNOWN and library != "builtins")):
        return _search_nothing
    if library in _LIBRARIES:
        return _search_frame if hasattr(kind, "iloc") else _search_library
    return _refuse_hidden if is_hidden else _search_object


def _has_own_hash(kind: Any) -> bool:
    return kind.__hash__ is not None and kind.__hash__ is not object.__hash__


def _has_hidden_memory(kind: Any) -> bool:
    """Returns whether the class is written in C, does not belong to a known library, and stores data in its instances
    that `gc` cannot see."""
    module = kind.__module__
    if kind is object or (module == "builtins" and not kind.__flags__ & _ON_HEAP):
        return False
    names = [name for name, value in vars(kind).items() if isinstance(value, MemberDescriptorType)]
    names += {"__dict__", "__weakref__"} & vars(kind).keys()
    is_python = kind.__basicsize__ <= kind.__base__.__basicsize__ + tuple.__itemsize__ * len(names)
    return not is_python and (module == "builtins" or module.partition(".")[0] not in _KNOWN)


def _parts_of(item: Any) -> Sequence[Any]:
    """Returns the objects that `item` refers to; the values in its `__dict__` replace the `__dict__` itself."""
    parts = gc.get_referents(item)
    if type(item).__dictoffset__ and any(type(part) is dict for part in parts):
        attributes = item.__dict__
        parts = [*(part for part in parts if part is not attributes), *attributes.values()]
    return parts


def _refuse(*_: Any) -> None:
    """Returns None, because an item that contains a stream or an iterator must not be queued."""


def _refuse_hidden(*_: Any) -> None:
    """Returns None, because the object may have a hidden buffer, which the source may overwrite. Objects of known
    libraries are examined by `_search_library` instead of this function."""


def _search_nothing(*_: Any) -> Sequence[Any]:
    """The object never changes."""
    return ()


def _search_memory(item: Any, _ids: list[int], _views: list[tuple[int, int]]) -> Sequence[Any]:
    return (item.obj,)


def _search_array(item: Any, _ids: list[int], views: list[tuple[int, int]]) -> Sequence[Any]:
    owner = item
    while type(owner) is memoryview or getattr(owner, "base", None) is not None:
        owner = owner.obj if type(owner) is memoryview else owner.base
    if type(owner) is not bytes and item.nbytes:
        address = 0 if owner is item else item.__array_interface__["data"][0]
        views.append((id(owner), address))
        if not hasattr(owner, "base"):  # the memory may have another owner in each item
            views.append((address, 0))
    # Attributes of NumPy's own array classes, such as the file of a memmap, only describe the array's memory, so they
    # are not examined.
    attributes = () if type(item).__module__.startswith("numpy") else _parts_of(item)
    return [*attributes, *item.flat] if item.dtype.hasobject else attributes


def _search_tensor(item: Any, _ids: list[int], views: list[tuple[int, int]]) -> Sequence[Any] | None:
    try:
        views.append((item.untyped_storage().data_ptr() or id(item), item.data_ptr()))
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no such memory
        return None
    return _parts_of(item)


def _search_frame(item: Any, ids: list[int], _views: list[tuple[int, int]]) -> Sequence[Any]:
    """Examines the data of a pandas object, but not its index, because an index never changes and may belong to several
    items."""
    ids.append(id(item))
    return [*item._mgr.arrays, item.attrs]


def _search_library(item: Any, ids: list[int], views: list[tuple[int, int]]) -> Sequence[Any]:
    visible = []
    for part in _search_object(item, ids, views):
        kind: Any = type(part)
        if _search_of(kind) is _refuse_hidden:
            ids.append(id(part))
        else:
            visible.append(part)
    return visible


def _search_object(item: Any, ids: list[int], _views: list[tuple[int, int]]) -> Sequence[Any]:
    # An object with its own `__hash__` is assumed to be immutable. The members of an immutable object are examined,
    # because an immutable object such as a tuple may contain mutable objects.
    if not _has_own_hash(type(item)):
        ids.append(id(item))
    return _parts_of(item)
