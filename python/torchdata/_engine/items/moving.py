"""Moves the large tensors of a dataset into memory that the main process shares with its workers.

With "spawn" and "forkserver", workers map a copy of each tensor. The main process then maps the same memory instead of
keeping a second copy: its tensors get a new storage, and the old memory is freed. All mappings are private, so if a
process writes to a tensor, no other process sees the change.

A tensor is moved only if no other object can access its memory. Otherwise, for example, a NumPy array that shares the
tensor's memory would no longer see changes of the tensor.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, defaultdict
from typing import Any

from torchdata._engine.items.tensors import TensorBytes, has_only_elements, holders, sole_holders, storage_over
from torchdata._engine.processes.crossing import Part, SharedPickle
from torchdata._native import is_portable

#: Tensors with smaller storages are not moved.
_LEAST_BYTES = 1 << 20
#: The largest number of `SharedPickle` objects with moved tensors, because each one needs two file descriptors.
_MOST_PICKLES = 32
#: A thread in this function does not use a tensor.
_WAITING = threading.Condition.wait.__code__
#: A switch interval in seconds during which no thread is interrupted.
_UNINTERRUPTED = 60.0


class _Moved(TensorBytes):
    """The memory of a moved storage; exists until the last tensor that uses the memory is deleted."""

    def __init__(self, whole: memoryview, place: Part) -> None:
        import numpy

        self._memory = numpy.frombuffer(whole[place.start : place.end], numpy.uint8)
        super().__init__((self._memory.ctypes.data, self._memory.ctypes.data + len(self._memory)), [])
        self.place = place

    def is_unchanged(self) -> bool:
        """Returns whether the main process has not written to the memory, so that new workers may use it, too."""
        import torch

        words, whole = len(self._memory) // 8, self.place.shared.map()
        both = self._memory, whole[self.place.start : self.place.end]
        here, there = (torch.frombuffer(memory, dtype=torch.int64, count=words) for memory in both)
        return torch.equal(here, there) and bytes(both[0][-8:]) == bytes(both[1][-8:])


#: The memory of each moved storage, by its address.
_moved: weakref.WeakValueDictionary[int, _Moved] = weakref.WeakValueDictionary()


def move_tensors(buffers: list[Any]) -> None:
    """Replaces the memory of large tensors in a list of buffers by parts of a `SharedPickle`, and moves these tensors.

    If the tensors were already moved for an earlier loader, the parts refer to the earlier `SharedPickle`, unless the
    main process has since written to the tensors.
    """
    storages: defaultdict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(buffers):
        block = getattr(getattr(part, "obj", None), "base", None)
        if isinstance(block, TensorBytes) and all(hasattr(one, "_base") for one in block.owners):
            storages[block.owners[0].untyped_storage().data_ptr()].append(number)
    places = {start: moved.place for start in storages if (moved := _moved.get(start)) and moved.is_unchanged()}
    if storages and not is_portable():
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            _move(buffers, {start: numbers for start, numbers in storages.items() if start not in places})
    for start, place in places.items():
        _refer(buffers, storages[start], start, place)


def _refer(buffers: list[Any], numbers: list[int], start: int, place: Part) -> None:
    for number in numbers:
        first, last = (place.start + bound - start for bound in buffers[number].obj.base.span)
        buffers[number] = Part(place.shared, first, last)


def _move(buffers: list[Any], storages: dict[int, list[int]]) -> None:
    users = {start: _users([buffers[number].obj.base for number in numbers]) for start, numbers in storages.items()}
    users = {start: tensors for start, tensors in users.items() if tensors and _are_only_users(tensors)}
    if not users or len({moved.place.shared for moved in _moved.values()}) >= _MOST_PICKLES:
        return
    old: list[Any] = [one for tensors in users.values() for one in tensors]
    new: list[Any] = []
    versions, interval = [one._version for one in old], sys.getswitchinterval()
    sys.setswitchinterval(_UNINTERRUPTED)  # other threads run during the copy, but not between the checks below
    try:
        sizes = [tensors[0].untyped_storage().nbytes() for tensors in users.values()]
        shared = SharedPickle(
            b"", [TensorBytes((start, start + size), []).array().data for start, size in zip(users, sizes, strict=True)]
        )
        whole = shared.map()
        for (start, tensors), (_, first, last, _) in zip(users.items(), shared.spans[1:], strict=True):
            moved = _Moved(whole, Part(shared, first, last))
            _moved[moved.span[0]], storage = moved, storage_over(moved.array())
            new += [_like(one, storage) for one in tensors]
            _refer(buffers, storages[start], start, moved.place)
        others = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
        if (
            all(map(_are_only_users, users.values()))
            and versions == [one._version for one in old]
            and all(frame.f_code is _WAITING for frame in others)
        ):
            any(map(sys.modules["torch"]._C.TensorBase.data.__set__, old, new))  # one call moves all tensors, or none
    finally:
        sys.setswitchinterval(interval)


def _users(blocks: list[TensorBytes]) -> list[Any]:
    """Returns the tensors of the dataset that use a storage, and the tensors of which they are views. Returns an empty
    list if torch has not allocated the storage, or if the storage cannot be moved for another reason.
    """
    found = [one for block in blocks for one in block.owners]
    users = list({id(one): one for one in (*found, *(one._base for one in found)) if one is not None}.values())
    storage = users[0].untyped_storage()
    can_move = (
        storage.nbytes() >= _LEAST_BYTES
        and storage.resizable()  # True only for memory that torch has allocated, and without a NumPy view so far
        and not (storage.is_shared() or users[0].is_pinned())
        and all(has_only_elements(one) and not one.is_inference() for one in users)
    )
    return users if can_move else []


def _are_only_users(tensors: list[Any]) -> bool:
    """Returns whether only these tensors use their storage, and no object in C++ uses these tensors."""
    tensor_uses, _, storage_uses, references, _ = sole_holders()[1]
    _, _, found_uses, found_references, _ = holders(tensors[0])
    views = Counter(id(one._base) for one in tensors)
    return (
        (found_uses, found_references) == (storage_uses + len(tensors) - 1, references)
        and len({one.untyped_storage()._cdata for one in tensors}) == 1
        and all(one._use_count() == tensor_uses + views[id(one)] for one in tensors)
    )


def _like(tensor: Any, storage: Any) -> Any:
    empty: Any = sys.modules["torch"].empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
