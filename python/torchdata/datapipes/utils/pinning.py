"""Copies the tensors of an item to pinned memory, which a GPU can read directly: `pin_memory_fn`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torchdata.datapipes.utils.collate import rebuilt

__all__ = ["pin_memory_fn"]


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Copies the tensors in `data`, which may be in mappings, sequences and named tuples, to pinned (page-locked)
    memory.

    An object that has a method `pin_memory` is replaced by the method's result. Objects without a method `pin_memory`,
    such as numbers and strings, are returned unchanged.

    Args:
        data: the item to pin. Containers are rebuilt, with their own types where possible.
        device: the CUDA device to pin memory for; None (the default) for the current device.

    Returns:
        `data` with pinned tensors.

    Raises:
        RuntimeError: `data` contains a tensor, but CUDA is not available.

    Example:
        >>> from torchdata.datapipes.utils import pin_memory_fn
        >>> pin_memory_fn({"label": 3, "name": "cat"})
        {'label': 3, 'name': 'cat'}
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _pin(torch, data, device)
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        return rebuilt(data, {key: pin_memory_fn(value, device) for key, value in data.items()})
    if isinstance(data, tuple):
        members = [pin_memory_fn(member, device) for member in data]
        return type(data)(*members) if hasattr(data, "_fields") else type(data)(members)
    if isinstance(data, Sequence) and not isinstance(data, (range, memoryview, bytearray)):
        return rebuilt(data, [pin_memory_fn(member, device) for member in data])
    return data


def _pin(torch: Any, tensor: Any, device: Any) -> Any:
    try:
        if device is None:
            return tensor.pin_memory()
        with torch.cuda.device(device):  # the argument `device` of `pin_memory` is deprecated
            return tensor.pin_memory()
    except RuntimeError as error:
        if torch.cuda.is_available():
            raise
        raise RuntimeError(
            f"pin_memory_fn needs a CUDA device, but PyTorch {torch.__version__} finds none; "
            "call it only where torch.cuda.is_available()"
        ) from error
