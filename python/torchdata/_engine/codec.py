"""The parts of the item codec that need Python: pickling what has no encoding of its own, and torch's tensors.

Role: called by the extension (rust/py/src/codec) for the slow cases. Runs in whichever process sends or receives.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from typing import Any

from torchdata.datapipes.datapipe import DataChunk

__all__ = ["DataChunk", "has_own_reducer", "loads", "pickled_parts", "tensor_over", "tensor_parts"]


def pickled_parts(obj: Any) -> tuple[bytes, list[memoryview], list[int]]:
    """Pickles `obj` with its large buffers out of band; what pickle cannot, cloudpickle does by value.

    Returns the pickle, the buffers, and the addresses of the memory of the tensors in `obj`.
    """
    torch_is_loaded = "torch" in sys.modules
    try:
        return _dumps_by(_tensor_pickler(pickle.Pickler) if torch_is_loaded else pickle.Pickler, obj)
    except Exception:
        import cloudpickle

        return _dumps_by(
            _tensor_pickler(cloudpickle.Pickler) if torch_is_loaded else cloudpickle.Pickler, obj
        )


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


def _dumps_by(pickler: Any, obj: Any) -> tuple[bytes, list[memoryview], list[int]]:
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled, storages = _pickled_by(pickler, obj, buffers.append)
        return pickled, [buffer.raw() for buffer in buffers], storages
    except BufferError:  # a buffer that is not contiguous cannot travel as it is
        pickled, storages = _pickled_by(pickler, obj, None)
        return pickled, [], storages


@functools.cache
def _tensor_pickler(base: Any) -> Any:
    """A subclass of the pickler that keeps memory shared which tensors of one item share, and out of band."""

    class TensorPickler(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not hasattr(self, "dispatch_table"):
                self.dispatch_table = copyreg.dispatch_table
            self.storages: dict[int, _Storage] = {}

        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules["torch"]
            if type(obj) is torch.storage.TypedStorage:  # of a tensor of another kind, such as a subclass
                untyped = obj._untyped_storage
                if untyped.device.type == "cpu" and untyped.nbytes() > 0:
                    return _typed_storage, (self._shared(untyped), obj.dtype)
            if type(obj) is not torch.Tensor or not _is_plain(obj) or torch.Tensor in self.dispatch_table:
                return super().reducer_override(obj) if hasattr(base, "reducer_override") else NotImplemented
            shared = self._shared(obj.untyped_storage())
            dtype, place = str(obj.dtype)[6:], (obj.storage_offset(), tuple(obj.shape), obj.stride())
            return _tensor_from_storage, (shared, dtype, place, obj.requires_grad)

        def _shared(self, storage: Any) -> _Storage:
            return self.storages.setdefault(storage.data_ptr(), _Storage(storage))

    return TensorPickler


def _is_plain(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_leaf
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
        and tensor.untyped_storage().nbytes() > 0
    )


class _Storage:
    """The memory of tensors while they are pickled; one object for all that share it, so that pickle keeps it one."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __reduce_ex__(self, protocol: Any) -> Any:
        torch = sys.modules["torch"]
        flat = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        return _storage_over, (pickle.PickleBuffer(flat.numpy()),)


def _storage_over(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed_storage(storage: Any, dtype: Any) -> Any:
    import torch

    typed: Any = torch.storage.TypedStorage
    return typed(wrap_storage=storage, dtype=dtype, _internal=True)


def _tensor_from_storage(storage: Any, dtype: str, place: tuple[Any, ...], requires_grad: bool) -> Any:
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, dtype)).set_(storage, *place)
    return tensor.requires_grad_() if requires_grad else tensor


def _pickled_by(
    pickler: Any, obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
) -> tuple[bytes, list[int]]:
    file = io.BytesIO()
    pickling = pickler(file, protocol=5, buffer_callback=buffer_callback)
    reducers = _users_reducers()
    if reducers:
        pickling.dispatch_table = ChainMap(
            reducers, getattr(pickling, "dispatch_table", copyreg.dispatch_table)
        )
    pickling.dump(obj)
    return file.getvalue(), list(getattr(pickling, "storages", ()))


def loads(pickled: bytes, buffers: list[Any]) -> Any:
    """The counterpart of `pickled_parts`."""
    return pickle.loads(pickled, buffers=buffers)


def tensor_parts(tensor: Any) -> tuple[int, Any]:
    """How a tensor is to be sent: (storage, what).

    `storage` is the address of its memory, by which tensors that share it are found. `what` is (dtype name, shape,
    requires_grad, address, bytes) where its elements can be copied as they lie, else an object to pickle instead,
    which holds no more memory than the tensor needs.
    """
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return 0, tensor
    storage = tensor.untyped_storage()
    if not _is_plain(tensor) and tensor.numel() > 0:
        return storage.data_ptr(), tensor
    if not tensor.is_contiguous():
        if storage.nbytes() > tensor.nbytes:
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return storage.data_ptr(), tensor
    parts = str(tensor.dtype)[6:], tuple(tensor.shape), tensor.requires_grad, tensor.data_ptr(), tensor.nbytes
    return storage.data_ptr(), parts


def tensor_over(dtype: str, shape: tuple[int, ...], requires_grad: bool, buffer: Any) -> Any:
    """A tensor over the memory of `buffer`, without a copy."""
    import torch

    if len(buffer) == 0:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    else:
        tensor = torch.frombuffer(buffer, dtype=getattr(torch, dtype)).view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
