"""Moves the large tensors of a dataset into memory that the main process shares with its workers.

With "spawn" and "forkserver", workers map a copy of each tensor. Afterwards, the main process maps the same memory
instead of keeping a second copy: the tensor gets a new storage, and the old memory is freed. Each process has a private
mapping, so if a process writes to the tensor, no other process sees the change.

A tensor is moved only if no other object can access the tensor's memory, because other objects would still use the old
memory. For example, changes of a tensor would no longer be visible in a NumPy array that shares the tensor's memory.
Code that has only the address of the memory (`Tensor.data_ptr`) cannot be detected.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, defaultdict
from typing import Any

from torchdata._engine.items.tensors import TensorBytes, holders, sole_holders, storage_over
from torchdata._engine.processes.crossing import SharedPickle
from torchdata._handlers import FailuresSuppressed
from torchdata._native import is_portable

#: Smaller storages are copied, but not moved.
_LEAST_BYTES = 1 << 20
#: The largest number of `SharedPickle` objects with moved storages. Each such object uses two file descriptors.
_MOST_PICKLES = 32
#: A thread in this function does not use a tensor.
_WAITING = threading.Condition.wait.__code__
#: The memory of each moved storage by its address, until the last tensor that uses the memory is deleted. The owner of
#: the memory is its place: (shared pickle, start, end, mapping of the shared pickle).
_moved: weakref.WeakValueDictionary[int, TensorBytes] = weakref.WeakValueDictionary()


def move_tensors(buffers: list[Any]) -> None:
    """Moves the tensors of a program, and replaces their memory in the program's buffers by parts of a `SharedPickle`.

    If an earlier loader has already moved the tensors, its `SharedPickle` is used again, unless the main process has
    since written to the tensors.
    """
    storages: defaultdict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(buffers):
        block = getattr(getattr(part, "obj", None), "base", None)
        if isinstance(block, TensorBytes) and all(hasattr(one, "_base") for one in block.owners):
            storages[block.owners[0].untyped_storage().data_ptr()].append(number)
    for start in list(storages):
        if (moved := _moved.get(start)) and _is_unchanged(moved):
            _refer(buffers, storages.pop(start), start, *moved.owners[:2])
    if storages and not is_portable() and len({moved.owners[0] for moved in _moved.values()}) < _MOST_PICKLES:
        # If the move fails, the workers still get a copy.
        with FailuresSuppressed(), sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            _move(buffers, storages)


def _is_unchanged(moved: TensorBytes) -> bool:
    import numpy
    import torch

    shared, first, last, _ = moved.owners
    both = numpy.asarray(moved), shared.map()[first:last]
    here, there = (torch.frombuffer(memory, dtype=torch.int64, count=len(memory) // 8) for memory in both)
    return torch.equal(here, there) and bytes(both[0][-8:]) == bytes(both[1][-8:])


def _refer(buffers: list[Any], numbers: list[int], start: int, shared: SharedPickle, first: int) -> None:
    for number in numbers:
        buffers[number] = shared, *(first + bound - start for bound in buffers[number].obj.base.span)


def _move(buffers: list[Any], storages: dict[int, list[int]]) -> None:
    import numpy
    import torch

    blocks = {start: [buffers[number].obj.base for number in numbers] for start, numbers in storages.items()}
    users = {start: tensors for start in blocks if (tensors := _only_users(blocks[start]))}
    old: list[Any] = [one for tensors in users.values() for one in tensors]
    new, versions = [], [one._version for one in old]
    if not old:
        return
    ends = {start: start + tensors[0].untyped_storage().nbytes() for start, tensors in users.items()}
    shared = SharedPickle(b"", [numpy.asarray(TensorBytes(span, [])).data for span in ends.items()])
    whole = numpy.frombuffer(shared.map(), numpy.uint8)
    for (start, tensors), (_, first, last, _) in zip(users.items(), shared.spans[1:], strict=True):
        moved = TensorBytes((whole.ctypes.data + first, whole.ctypes.data + last), [shared, first, last, whole])
        _moved[moved.span[0]], storage = moved, storage_over(numpy.asarray(moved))
        for one in tensors:
            tensor: Any = torch.empty(0, dtype=one.dtype, device="cpu")
            new.append(tensor.set_(storage, one.storage_offset(), one.shape, one.stride()))
        _refer(buffers, storages[start], start, shared, first)
    others = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
    if (
        all(_only_users(blocks[start]) for start in users)
        and versions == [one._version for one in old]
        and all(frame.f_code is _WAITING for frame in others)
    ):
        setter: Any = torch._C.TensorBase.data
        any(map(setter.__set__, old, new))  # a signal handler cannot interrupt this single call


def _only_users(blocks: list[TensorBytes]) -> list[Any]:
    """Returns the dataset's tensors that use a storage, and the tensors of which they are views. Returns an empty list
    if other objects may use the storage, or if the storage cannot be moved for another reason.
    """
    torch = sys.modules["torch"]
    found = [one for block in blocks for one in block.owners]
    users = list({id(one): one for one in (*found, *(one._base for one in found)) if one is not None}.values())
    if any(one.layout is not torch.strided or one.is_nested or one.is_quantized or one.is_inference() for one in users):
        return []
    tensor_uses, _, storage_uses, references, _ = sole_holders()[1]
    views = Counter(id(one._base) for one in users)
    has_no_other_user = (
        holders(users[0])[2:4] == (storage_uses + len(users) - 1, references)
        and len({one.untyped_storage()._cdata for one in users}) == 1
        and all(one._use_count() == tensor_uses + views[id(one)] for one in users)
    )
    storage = users[0].untyped_storage()
    can_be_moved = (
        storage.nbytes() >= _LEAST_BYTES
        and storage.resizable()  # True only for memory that torch has allocated, and without a NumPy view so far
        and not (storage.is_shared() or users[0].is_pinned())
        and not any(one.is_conj() or one.is_neg() for one in users)
    )
    return users if has_no_other_user and can_be_moved else []
