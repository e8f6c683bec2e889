"""Sends the memory of an item's tensors outside the pickle, so that tensors that share memory still share it after
unpickling.

The codec (codec.py and rust/py/src/codec) uses this module once torch is loaded.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._importing import import_whole

if TYPE_CHECKING:
    from torchdata._native import Sender

#: A memory range: the address of its first byte, and the address after its last byte.
Span = tuple[int, int]


class Location(NamedTuple):
    block: int
    offset: int
    #: For a tensor, (dtype name, shape, strides, requires_grad); for a storage, its size in bytes.
    what: tuple[str, tuple[int, ...], tuple[int, ...], bool] | int


class DepartingTensors:
    """The tensors and storages of an item that is being pickled; the pickle refers to each of them by number.

    The tensors of an item are sent in memory blocks, which are determined once all tensors are known. Tensors with
    overlapping memory are placed in one block, so that the received tensors also share their elements. Memory of a
    storage that no tensor of the item uses is not sent.
    """

    def __init__(self) -> None:
        self.locations: list[tuple[Span, Any, Any]] = []

    def add_tensor(self, tensor: Any) -> int:
        what = str(tensor.dtype)[6:], tuple(tensor.shape), tensor.stride(), tensor.requires_grad
        self.locations.append((_span_of(tensor), what, tensor))
        return len(self.locations) - 1

    def add_storage(self, storage: Any) -> int:
        start, size = storage.data_ptr(), storage.nbytes()
        self.locations.append(((start, start + size), size, storage))
        return len(self.locations) - 1

    def reducer(self, cls: Any) -> Callable[[Any], Any] | None:
        """Returns the function that pickles objects of type `cls`. Returns None if `cls` is not a class of tensors or
        storages, or defines its own pickling."""
        torch = sys.modules["torch"]
        if cls is torch.UntypedStorage:
            return self._reduce_storage
        if cls is torch.storage.TypedStorage:
            return self._reduce_typed_storage
        # Subclasses of Tensor with their own operators are excluded, because their elements may not be in memory.
        if (
            issubclass(cls, torch.Tensor)
            and cls.__reduce_ex__ is torch.Tensor.__reduce_ex__
            and cls.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
        ):
            return self._reduce_tensor
        return None

    def _reduce_storage(self, storage: Any) -> Any:
        if not _is_memory(storage):
            return storage.__reduce_ex__(5)
        return _storage_at, (self.add_storage(storage),)

    def _reduce_typed_storage(self, storage: Any) -> Any:
        if not _is_memory(storage._untyped_storage):
            return storage.__reduce_ex__(5)
        return _typed_storage_at, (self.add_storage(storage._untyped_storage), storage.dtype)

    def _reduce_tensor(self, tensor: Any) -> Any:
        torch, cls = sys.modules["torch"], type(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            rebuild: Any = None
            if tensor.layout is not torch.strided and _is_sparse(tensor):
                rebuild = _sparse_tensor
                parts: Any = _parts_of_sparse(tensor)
            elif _is_plain(tensor):
                rebuild = _tensor_at
                if tensor.numel() > 0:
                    parts = (self.add_tensor(tensor),)
                else:
                    rebuild = _empty_tensor
                    parts = str(tensor.dtype)[6:], tuple(tensor.shape), tensor.stride(), tensor.requires_grad
            if rebuild is not None:
                state = torch._utils._get_obj_state(tensor)
        if rebuild is None:
            return tensor.__reduce_ex__(5)
        if cls is torch.Tensor and not state:
            return rebuild, parts
        return torch._tensor._rebuild_from_type_v2, (rebuild, cls, parts, state)

    def hold_shared_memory(self) -> bool:
        return any(obj.is_shared() for _, _, obj in self.locations)

    def lay_out(self) -> tuple[list[Location], list[memoryview], list[Span]]:
        """Returns the location of each tensor, the memory blocks to send, and the address ranges of these blocks."""
        import numpy

        locations: list[Any] = [None] * len(self.locations)
        blocks: list[memoryview] = []
        spans = []
        for span, group in self._overlapping():
            spans.append(span)
            if len(group) == 1:
                self._close_gaps(group[0])
                span, _, _ = self.locations[group[0]]
            for number in group:
                (first, _), what, _ = self.locations[number]
                locations[number] = Location(len(blocks), first - span[0], what)
            blocks.append(numpy.asarray(TensorBytes(span, [self.locations[number][2] for number in group])).data)
        return locations, blocks, spans

    def _overlapping(self) -> list[tuple[Span, list[int]]]:
        groups: list[tuple[Span, list[int]]] = []
        for number in sorted(range(len(self.locations)), key=lambda number: self.locations[number][0]):
            start, end = self.locations[number][0]
            if groups and start < groups[-1][0][1]:
                (first, last), members = groups[-1]
                groups[-1] = (first, max(last, end)), [*members, number]
            else:
                groups.append(((start, end), [number]))
        return groups

    def _close_gaps(self, number: int) -> None:
        (start, end), what, tensor = self.locations[number]
        if isinstance(what, tuple) and end - start > tensor.nbytes:
            tensor = _without_gaps(tensor)
            self.locations[number] = _span_of(tensor), (what[0], what[1], tensor.stride(), what[3]), tensor


class TensorBytes:
    """The memory of one or several tensors, as NumPy reads it."""

    def __init__(self, span: Span, owners: list[Any]) -> None:
        self.span, self.owners = span, owners
        shape = (span[1] - span[0],)
        self.__array_interface__ = {"version": 3, "data": (span[0], False), "shape": shape, "typestr": "|u1"}


class Arrived:
    """The memory blocks of an item that is being unpickled. Each block becomes one storage, which all tensors in the
    block share.
    """

    def __init__(self, locations: list[Location], blocks: list[Any]) -> None:
        self._locations, self._blocks = locations, blocks
        self._storages: dict[int, Any] = {}

    def storage(self, number: int) -> Any:
        block, offset, size = self._locations[number]
        return _part_of(self._whole(block), offset, size)

    def tensor(self, number: int) -> Any:
        import torch

        block, offset, (dtype, shape, strides, requires_grad) = self._locations[number]  # type: ignore[misc]
        storage, tensor = self._whole(block), torch.empty(0, dtype=getattr(torch, dtype), device="cpu")
        elements, odd = divmod(offset, tensor.element_size())
        if odd:
            storage, elements = _part_of(storage, offset, storage.nbytes() - offset), 0
        tensor = tensor.set_(storage, elements, shape, strides)
        return tensor.requires_grad_() if requires_grad else tensor

    def _whole(self, block: int) -> Any:
        if block not in self._storages:
            self._storages[block] = storage_over(self._blocks[block])
        return self._storages[block]


class _Arrivals(threading.local):
    #: The item that this thread is unpickling; in nested unpickling, the innermost item.
    innermost: Arrived | None = None


_arrivals = _Arrivals()


@contextmanager
def arriving(locations: list[Location], blocks: list[Any]) -> Iterator[None]:
    import_whole("torch")
    before, _arrivals.innermost = _arrivals.innermost, Arrived(locations, blocks)
    try:
        yield
    finally:
        _arrivals.innermost = before


def _arrived() -> Arrived:
    assert _arrivals.innermost is not None, "a tensor was received outside of an item"
    return _arrivals.innermost


def _tensor_at(number: int) -> Any:
    return _arrived().tensor(number)


def _storage_at(number: int) -> Any:
    return _arrived().storage(number)


def _typed_storage_at(number: int, dtype: Any) -> Any:
    import torch

    typed: Any = torch.storage.TypedStorage
    return typed(wrap_storage=_storage_at(number), dtype=dtype, _internal=True)


def _empty_tensor(dtype: str, shape: Any, stride: Any, requires_grad: bool) -> Any:
    import torch

    return torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="cpu", requires_grad=requires_grad)


def _is_sparse(tensor: Any) -> bool:
    return str(tensor.layout).startswith("torch.sparse") and _is_leaf_here(tensor)


def _is_leaf_here(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.is_leaf)


def _parts_of_sparse(tensor: Any) -> tuple[Any, ...]:
    torch = sys.modules["torch"]
    coalesced = None
    tensors: tuple[Any, ...]
    if tensor.layout is torch.sparse_coo:
        tensors = tensor._indices(), tensor._values()
        coalesced = tensor.is_coalesced()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        tensors = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    else:
        tensors = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    tensors = tuple(one.detach() for one in tensors)
    return str(tensor.layout)[6:], tensors, tuple(tensor.shape), coalesced, tensor.requires_grad


def _sparse_tensor(layout: str, tensors: Any, shape: Any, coalesced: bool | None, requires_grad: bool) -> Any:
    """Creates a sparse tensor. Torch's own function for unpickling sparse tensors is unsuitable, because it also keeps
    the tensor in a list that only `torch.load` clears."""
    torch: Any = import_whole("torch")
    options = {"check_invariants": False, "device": "cpu", "requires_grad": requires_grad}
    if layout == "sparse_coo":
        return torch.sparse_coo_tensor(*tensors, shape, is_coalesced=coalesced, **options)
    return torch.sparse_compressed_tensor(*tensors, shape, layout=getattr(torch, layout), **options)


def storage_over(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _part_of(storage: Any, offset: int, size: Any) -> Any:
    import torch

    if (offset, size) == (0, storage.nbytes()):
        return storage
    part = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, offset, (size,), (1,))
    return storage_over(part.numpy())


def _is_memory(storage: Any) -> bool:
    return bool(storage.device.type == "cpu" and storage.nbytes() > 0)


def _is_plain(tensor: Any) -> bool:
    """Returns whether the elements in memory are the only state of the tensor. Raises ValueError if the tensor's
    storage is too small for the elements of the tensor.
    """
    torch = sys.modules["torch"]
    if not (
        tensor.layout is torch.strided
        and _is_leaf_here(tensor)
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    ):
        return False
    if tensor.numel() > 0:
        start, end = _span_of(tensor)
        begins, there = tensor.storage_offset() * tensor.element_size(), tensor.untyped_storage().nbytes()
        if start == 0 or begins + (end - start) > there:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} cannot be sent, because its elements are not in memory: its "
                f"storage was resized to {there} bytes, or it is one of the zeros that autograd does not write out; "
                "clone it first"
            )
    return True


def _span_of(tensor: Any) -> Span:
    start, size = tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


def _without_gaps(tensor: Any) -> Any:
    """Returns a copy of the tensor without gaps between the elements. Elements that `Tensor.expand` has repeated are
    copied only once.
    """
    once = tensor.detach()
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0:
            once = once.narrow(axis, 0, 1)
    return once.clone().expand(tensor.shape).requires_grad_(tensor.requires_grad)


def dlpack_functions() -> tuple[Any, Any, Any, Any]:
    """Returns torch's functions for DLPack as a tuple: (table, to_dlpack, from_dlpack, layout).

    `table` is the capsule with DLPack's C functions, or None if this version of torch lacks the capsule. `layout` is
    the only tensor layout that DLPack supports.
    """
    torch = import_whole("torch")
    dlpack = torch.utils.dlpack
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), dlpack.to_dlpack, dlpack.from_dlpack, torch.strided


#: For the memory address of each tensor from `torchdata.empty`, the array that holds this memory.
_rooms: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def empty_tensor(shape: Any, dtype: Any, sender: Sender | None) -> Any:
    import torch

    tensor = torch.empty(0, dtype=dtype, device="cpu")
    sizes = [int(shape)] if hasattr(shape, "__index__") else [int(size) for size in shape]
    if sender is not None and min(sizes, default=0) >= 0:
        import numpy

        array = sender.allocate([math.prod(sizes) * tensor.element_size()], numpy.dtype("u1").num)
        if array is not None:
            storage: Any = torch.from_numpy(array).untyped_storage()
            tensor.set_(storage, 0, torch.Size(sizes))  # type: ignore[call-overload]  # strides may be left out
            _rooms[tensor.data_ptr()] = array
            return tensor
    return torch.empty(sizes, dtype=dtype, device="cpu")


def room_of(tensor: Any, start: int) -> Any:
    """Returns the array that holds the tensor's memory; None if another object may access the same memory."""
    array = _rooms.get(start)
    if array is None:
        return None
    references = sys.getrefcount(array), weakref.getweakrefcount(array)
    return array if (references, holders(tensor)) == sole_holders() else None


def holders(tensor: Any) -> tuple[int, ...]:
    storage = tensor.untyped_storage()
    return (
        tensor._use_count(),
        weakref.getweakrefcount(tensor),
        sys.modules["torch"]._C._storage_Use_Count(storage._cdata),
        sys.getrefcount(storage),
        weakref.getweakrefcount(storage),
    )


@functools.cache
def sole_holders() -> tuple[tuple[int, int], tuple[int, ...]]:
    """Returns the reference counts that a tensor and its array have if no other object can access their memory. The
    reference counts depend on the versions of torch and Python, so `sole_holders` measures the counts on new objects.
    """
    import torch

    held = object()
    by_variable_and_call = sys.getrefcount(held)
    return (1 + by_variable_and_call, 1), holders(torch.empty(1, device="cpu"))
