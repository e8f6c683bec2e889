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
from collections import defaultdict
from typing import Any

import numpy
import torch

from torchdata._engine.items.tensors import TensorBytes, holders, sole_holders, storage_over
from torchdata._engine.processes.crossing import SharedPickle
from torchdata._native import is_portable

#: Smaller storages are copied, but not moved.
_LEAST_BYTES = 1 << 20
#: The largest number of `SharedPickle` objects with moved storages. Each such object uses two file descriptors.
_MOST_PICKLES = 32
#: The memory of each moved storage by its address, until the last tensor that uses the memory is deleted. The owners of
#: the memory are: the shared pickle, the start and the end of the memory in it, and a mapping of the shared pickle.
_moved: weakref.WeakValueDictionary[int, TensorBytes] = weakref.WeakValueDictionary()


def move_tensors(buffers: list[Any]) -> None:
    """Moves the tensors of a program, and replaces their memory in the program's buffers by parts of a `SharedPickle`.

    If an earlier loader has already moved the tensors, its `SharedPickle` is used again, unless the main process has
    since written to the tensors.
    """
    blocks: defaultdict[int, dict[int, TensorBytes]] = defaultdict(dict)
    for number, part in enumerate(buffers):
        block = getattr(getattr(part, "obj", None), "base", None)
        if isinstance(block, TensorBytes) and all(hasattr(one, "_base") for one in block.owners):  # no storages
            blocks[block.owners[0].untyped_storage().data_ptr()][number] = block
    places = {start: moved.owners for start in blocks if (moved := _moved.get(start)) and _is_unchanged(moved)}
    users = {start: found for start in blocks.keys() - places if (found := _only_users(blocks[start]))}
    old: list[Any] = [one for tensors in users.values() for one in tensors]
    new, versions = [], [one._version for one in old]
    if old and not is_portable() and len({moved.owners[0] for moved in _moved.values()}) < _MOST_PICKLES:
        spans = ((start, start + tensors[0].untyped_storage().nbytes()) for start, tensors in users.items())
        shared = SharedPickle(b"", [numpy.asarray(TensorBytes(span, [])).data for span in spans])
        whole = numpy.frombuffer(shared.map(), numpy.uint8)
        for (start, tensors), (_, first, last, _) in zip(users.items(), shared.spans[1:], strict=True):
            places[start] = [shared, first, last, whole]
            moved = TensorBytes((whole.ctypes.data + first, whole.ctypes.data + last), places[start])
            _moved[moved.span[0]], storage = moved, storage_over(numpy.asarray(moved))
            with torch.inference_mode(False):
                new += [
                    one.new_empty(0).set_(storage, one.storage_offset(), one.shape, one.stride()) for one in tensors
                ]
    for start, (shared, first, _, _) in places.items():
        for number, block in blocks[start].items():
            buffers[number] = shared, *(first + bound - start for bound in block.span)
    others = sys._current_frames().keys() - {threading.get_ident()}
    is_unchanged = versions == [one._version for one in old] and all(_only_users(blocks[start]) for start in users)
    # Another thread could be using a tensor, or could begin to do so before the tensors are moved.
    if is_unchanged and not others:
        any(map(vars(torch._C.TensorBase)["data"].__set__, old, new))  # one call, which no signal handler interrupts


def _is_unchanged(moved: TensorBytes) -> bool:
    shared, first, last, whole = moved.owners
    end = last + -last % 8  # the bytes after a buffer never change
    return torch.equal(*(torch.frombuffer(one[first:end], dtype=torch.int64) for one in (whole, shared.map())))


def _only_users(blocks: dict[int, TensorBytes]) -> list[Any]:
    """Returns the dataset's tensors that use a storage, and the base tensors of these tensors. Returns an empty list if
    other objects may use the storage, or if the storage cannot be moved for another reason.
    """
    found = [one for block in blocks.values() for one in block.owners]
    if found[0].untyped_storage().nbytes() < _LEAST_BYTES:
        return []
    users = list({id(one): one for one in (*found, *(one._base for one in found)) if one is not None}.values())
    tensor_uses, _, storage_uses, references, _ = sole_holders()[1]
    views = sum(one._base is not None for one in users)  # each view uses the tensor of which it is a view
    can_be_moved = (
        all(one.layout is torch.strided and not (one.is_nested or one.is_quantized) for one in users)
        and holders(users[0])[2:4] == (storage_uses + len(users) - 1, references)
        and len({one.untyped_storage()._cdata for one in users}) == 1
        and sum(one._use_count() for one in users) == len(users) * tensor_uses + views
        # A storage is resizable only if torch has allocated its memory, and if no NumPy array has ever used it.
        and users[0].untyped_storage().resizable()
        and not (users[0].is_shared() or users[0].is_pinned())
        and not any(one.is_inference() or one.is_conj() or one.is_neg() for one in users)
    )
    return users if can_be_moved else []
