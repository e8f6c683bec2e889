"""The parts of the item codec that need Python: pickling what has no encoding of its own, and torch's tensors.

Role: called by the extension (rust/py/src/codec) for the slow cases. Runs in whichever process sends or receives.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from torchdata.datapipes.datapipe import DataChunk

__all__ = ["DataChunk", "dumps", "loads", "tensor_over", "tensor_parts"]


def dumps(obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles `obj` with its large buffers out of band; what pickle cannot, cloudpickle does by value."""
    for pickler in (pickle.Pickler, cloudpickle.Pickler):
        buffers: list[pickle.PickleBuffer] = []
        try:
            pickled = _pickled_by(pickler, obj, buffers.append)
        except Exception:
            if pickler is cloudpickle.Pickler:
                raise
            continue
        try:
            for buffer in buffers:
                buffer.raw().release()
        except BufferError:  # a buffer that is not contiguous cannot travel as it is
            pickled, buffers = _pickled_by(pickler, obj, None), []
        return pickled, [buffer.raw() for buffer in buffers]  # type: ignore[misc]
    raise AssertionError("unreachable")


def _pickled_by(pickler: Any, obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None) -> bytes:
    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=buffer_callback).dump(obj)
    return file.getvalue()


def loads(pickled: bytes, buffers: list[Any]) -> Any:
    """The counterpart of `dumps`."""
    return pickle.loads(pickled, buffers=buffers)


def tensor_parts(tensor: Any) -> tuple[str, tuple[int, ...], bool, int, int] | None:
    """(dtype name, shape, requires_grad, address, bytes) of a dense, contiguous CPU tensor; None for all others."""
    torch = sys.modules["torch"]
    if (
        tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_quantized
        or not tensor.is_leaf
        or tensor.is_conj()
        or tensor.is_neg()
        or not tensor.is_contiguous()
        or tensor.untyped_storage().nbytes() != tensor.nbytes  # a view of something larger may share it
        or tensor.__dict__
    ):
        return None
    return str(tensor.dtype)[6:], tuple(tensor.shape), tensor.requires_grad, tensor.data_ptr(), tensor.nbytes


def tensor_over(dtype: str, shape: tuple[int, ...], requires_grad: bool, buffer: Any) -> Any:
    """A tensor over the memory of `buffer`, without a copy."""
    import torch

    if len(buffer) == 0:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    else:
        tensor = torch.frombuffer(buffer, dtype=getattr(torch, dtype)).view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
