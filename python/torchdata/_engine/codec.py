"""The parts of the item codec that need Python: pickling what has no encoding of its own, and torch's tensors.

Role: called by the extension (rust/py/src/codec) for the slow cases. Runs in whichever process sends or receives.
"""

from __future__ import annotations

import bisect
import copyreg
import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from torchdata.datapipes.datapipe import DataChunk

__all__ = ["DataChunk", "has_own_reducer", "loads", "pickled_parts", "tensor_over", "tensor_parts"]


#: A part of this process' memory: the address of its first byte, and that behind its last one.
Span = tuple[int, int]


def pickled_parts(obj: Any) -> tuple[bytes, list[memoryview], list[Span]]:
    """Pickles `obj` with its large buffers out of band; what pickle cannot, cloudpickle does by value.

    Returns the pickle, the buffers, and where the tensors in `obj` lie.
    """
    try:
        return _dumps_by(pickle.Pickler, obj)
    except Exception:
        import cloudpickle

        return _dumps_by(cloudpickle.Pickler, obj)


def _users_reducers() -> dict[type, Callable[[Any], Any]]:
    """The reducers that users registered with the pickler of multiprocessing, which torch.multiprocessing uses, too.

    Those that the two registered themselves are left out: they send descriptors and handles by other ways.
    """
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return {}
    found: dict[type, Callable[[Any], Any]] = reduction.ForkingPickler._extra_reducers
    libraries = ("multiprocessing", "torch")
    return {
        cls: reduce
        for cls, reduce in found.items()
        if (getattr(reduce, "__module__", None) or "").partition(".")[0] not in libraries
    }


def has_own_reducer(cls: type) -> bool:
    """Whether users said how objects of exactly this type are to be pickled."""
    return cls in copyreg.dispatch_table or cls in _users_reducers()


def _dumps_by(base: Any, obj: Any) -> tuple[bytes, list[memoryview], list[Span]]:
    try:
        return _dumps(base, obj, out_of_band=True)
    except BufferError:  # a buffer that is not contiguous cannot travel as it is
        return _dumps(base, obj, out_of_band=False)


def _dumps(base: Any, obj: Any, out_of_band: bool) -> tuple[bytes, list[memoryview], list[Span]]:
    if "torch" not in sys.modules:
        pickled, buffers = _dump(base, obj, out_of_band)
        return pickled, buffers, []
    pickler, memory = _tensor_pickler(base), _Memory([])
    pickled, buffers = _dump(functools.partial(pickler, memory), obj, out_of_band)
    joined = [(span, owners) for span, owners in memory.grouped() if len(owners) > 1]
    if joined:
        memory = _Memory(joined)
        pickled, buffers = _dump(functools.partial(pickler, memory), obj, out_of_band)
    return pickled, buffers, [span for span, _ in memory.grouped()]


def _dump(pickler: Any, obj: Any, out_of_band: bool) -> tuple[bytes, list[memoryview]]:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickling = pickler(file, protocol=5, buffer_callback=buffers.append if out_of_band else None)
    reducers = _users_reducers()
    if reducers:
        pickling.dispatch_table = ChainMap(
            reducers, getattr(pickling, "dispatch_table", copyreg.dispatch_table)
        )
    pickling.dump(obj)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


class _Memory:
    """The memory of the tensors of an item while it is pickled, in blocks: tensors that overlap lie in one block.

    Which tensors overlap is known when all have been seen. So an item in which some do is pickled twice, the second
    time with the blocks that the first one found. Tensors that lie beside each other in a larger memory, such as rows
    of a data set, have blocks of their own, and the rest of that memory is left where it is.

    Args:
        joined: the blocks that several tensors are known to lie in, in order and apart from each other.
    """

    def __init__(self, joined: list[tuple[Span, list[Any]]]) -> None:
        self._blocks = [_Block(span, owners) for span, owners in joined]
        self._starts = [span[0] for span, _ in joined]
        #: Where tensors lie, and what owns the memory there.
        self.spans: list[Span] = []
        self._owners: list[Any] = []

    def block(self, span: Span, owner: Any) -> _Block | None:
        """The block that tensors at `span` share; None where none is known."""
        self.spans.append(span)
        self._owners.append(owner)
        place = bisect.bisect_right(self._starts, span[0]) - 1
        return self._blocks[place] if place >= 0 and span[1] <= self._blocks[place].span[1] else None

    def grouped(self) -> list[tuple[Span, list[Any]]]:
        """The parts of memory that tensors lie in, with what owns the memory there; tensors that overlap in one."""
        groups: list[tuple[Span, list[Any]]] = []
        for (start, end), owner in sorted(zip(self.spans, self._owners, strict=True), key=itemgetter(0)):
            if groups and start < groups[-1][0][1]:
                (first, last), owners = groups[-1]
                groups[-1] = (first, max(last, end)), [*owners, owner]
            else:
                groups.append(((start, end), [owner]))
        return groups


class _Block:
    """A piece of memory while it is pickled; one object for all that lie in it, so that pickle keeps it one.

    Args:
        span: where it is.
        owners: what keeps it alive.
    """

    def __init__(self, span: Span, owners: list[Any]) -> None:
        self.span, self._owners = span, owners

    @property
    def __array_interface__(self) -> dict[str, Any]:
        start, end = self.span
        return {"version": 3, "shape": (end - start,), "typestr": "|u1", "data": (start, False)}

    def __reduce_ex__(self, protocol: Any) -> Any:
        import numpy

        memory: Any = numpy.asarray(self)
        return _storage_over, (pickle.PickleBuffer(memory),)


@functools.cache
def _tensor_pickler(base: Any) -> Any:
    """A subclass of the pickler that keeps memory shared which tensors of one item share, and out of band."""

    class TensorPickler(base):  # type: ignore[misc]
        def __init__(self, memory: _Memory, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not hasattr(self, "dispatch_table"):
                self.dispatch_table = copyreg.dispatch_table
            self.memory = memory

        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules["torch"]
            if type(obj) is torch.storage.TypedStorage:  # of a tensor of another kind, such as a subclass
                untyped = obj._untyped_storage
                if untyped.device.type == "cpu" and untyped.nbytes() > 0:
                    span = untyped.data_ptr(), untyped.data_ptr() + untyped.nbytes()
                    block = self.memory.block(span, untyped) or _Block(span, [untyped])
                    return _typed_storage, (block, obj.dtype, span[0] - block.span[0], untyped.nbytes())
            if type(obj) is torch.Tensor and _is_plain(obj) and torch.Tensor not in self.dispatch_table:
                return self._reduce_tensor(obj)
            return super().reducer_override(obj) if hasattr(base, "reducer_override") else NotImplemented

        def _reduce_tensor(self, tensor: Any) -> Any:
            if tensor.numel() == 0:
                parts = str(tensor.dtype)[6:], tuple(tensor.shape), tensor.stride(), tensor.requires_grad
                return _empty_tensor, parts
            span = _span_of(tensor)
            block = self.memory.block(span, tensor)
            if block is None:  # nothing else is known to lie there
                tensor = _without_gaps(tensor)
                span = _span_of(tensor)
                block = _Block(span, [tensor])
            dtype, place = str(tensor.dtype)[6:], (tuple(tensor.shape), tensor.stride())
            return _tensor_from_storage, (block, dtype, span[0] - block.span[0], place, tensor.requires_grad)

    return TensorPickler


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor is nothing but elements in memory.

    Raises:
        ValueError: the memory is not there.
    """
    torch = sys.modules["torch"]
    if not (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_leaf
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
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
    """Where the elements of a plain tensor that has some lie, and what is between them."""
    start, size = tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


def _without_gaps(tensor: Any) -> Any:
    """The tensor, copied if there is something else between its elements."""
    start, end = _span_of(tensor)
    return (
        tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if end - start > tensor.nbytes
        else tensor
    )


def _storage_over(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _part_of(storage: Any, offset: int, size: int) -> Any:
    """The storage, or one of its own over a part of the memory."""
    import torch

    if (offset, size) == (0, storage.nbytes()):
        return storage
    part = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, offset, (size,), (1,))
    return _storage_over(part.numpy())


def _typed_storage(storage: Any, dtype: Any, offset: int, size: int) -> Any:
    import torch

    typed: Any = torch.storage.TypedStorage
    return typed(wrap_storage=_part_of(storage, offset, size), dtype=dtype, _internal=True)


def _empty_tensor(dtype: str, shape: Any, stride: Any, requires_grad: bool) -> Any:
    import torch

    return torch.empty_strided(
        shape, stride, dtype=getattr(torch, dtype), device="cpu", requires_grad=requires_grad
    )


def _tensor_from_storage(
    storage: Any, dtype: str, offset: int, place: tuple[Any, Any], requires_grad: bool
) -> Any:
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, dtype), device="cpu")
    elements, odd = divmod(offset, tensor.element_size())
    if odd:  # the memory was shared at places that are no multiples of an element's size
        storage, elements = _part_of(storage, offset, storage.nbytes() - offset), 0
    tensor = tensor.set_(storage, elements, *place)
    return tensor.requires_grad_() if requires_grad else tensor


def loads(pickled: bytes, buffers: list[Any]) -> Any:
    """The counterpart of `pickled_parts`."""
    return pickle.loads(pickled, buffers=buffers)


def tensor_parts(tensor: Any) -> tuple[Span | None, Any]:
    """How a tensor is to be sent: (span, what).

    `span` is where it lies, by which tensors that overlap are found; None where pickling it tells. `what` is (dtype
    name, shape, requires_grad, address, bytes) where its elements can be copied as they lie, else an object to pickle
    instead.

    Raises:
        ValueError: the tensor's memory is not there.
    """
    if not _is_plain(tensor):
        return None, tensor
    if tensor.numel() == 0:
        return (0, 0), (str(tensor.dtype)[6:], tuple(tensor.shape), tensor.requires_grad, 0, 0)
    if not tensor.is_contiguous():
        return _span_of(tensor), _without_gaps(tensor)
    start, size = tensor.data_ptr(), tensor.nbytes
    return (start, start + size), (
        str(tensor.dtype)[6:],
        tuple(tensor.shape),
        tensor.requires_grad,
        start,
        size,
    )


def tensor_over(dtype: str, shape: tuple[int, ...], requires_grad: bool, buffer: Any) -> Any:
    """A tensor over the memory of `buffer`, without a copy."""
    import torch

    if len(buffer) == 0:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
    else:
        tensor = torch.frombuffer(buffer, dtype=getattr(torch, dtype)).view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
