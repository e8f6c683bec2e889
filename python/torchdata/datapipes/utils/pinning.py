"""pin_memory_fn: copies the tensors of an item into pinned memory, from which a GPU fetches them by itself.

Role: called by `PinMemory`, in its thread, or by users. Needs PyTorch with CUDA once it meets a tensor.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["pin_memory_fn"]


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Copies `data` into pinned (page-locked) memory: tensors, and all in mappings, sequences and named tuples.

    An object with a `pin_memory` method is pinned by it, which is called without arguments. An object without one,
    such as a number or a string, is returned as it is.

    Args:
        data: what is to be pinned. Containers are rebuilt, of their own types if these allow it.
        device: the CUDA device that the memory is pinned for; None for the current one.

    Raises:
        RuntimeError: a tensor is met, but there is no CUDA device.

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
        return _like_mapping(data, {key: pin_memory_fn(value, device) for key, value in data.items()})
    if isinstance(data, tuple):
        members = [pin_memory_fn(member, device) for member in data]
        return type(data)(*members) if hasattr(data, "_fields") else type(data)(members)
    if isinstance(data, Sequence) and not isinstance(data, (range, memoryview, bytearray)):
        return _like_sequence(data, [pin_memory_fn(member, device) for member in data])
    return data


def _pin(torch: Any, tensor: Any, device: Any) -> Any:
    try:
        if device is None:
            return tensor.pin_memory()
        with torch.cuda.device(device):  # the method's own argument for it is deprecated
            return tensor.pin_memory()
    except RuntimeError as error:
        if torch.cuda.is_available():
            raise
        raise RuntimeError(
            f"pin_memory_fn needs a CUDA device, but PyTorch {torch.__version__} finds none; "
            "call it only where torch.cuda.is_available()"
        ) from error


def _like_mapping(data: Any, members: dict[Any, Any]) -> Any:
    if type(data) is dict:
        return members
    try:
        duplicate = copy.copy(data)
        duplicate.update(members)
    except (TypeError, AttributeError):  # it cannot be changed: its members matter more than its type
        return members
    return duplicate


def _like_sequence(data: Any, members: list[Any]) -> Any:
    if type(data) is list:
        return members
    try:
        duplicate = copy.copy(data)
        for index, member in enumerate(members):
            duplicate[index] = member
    except TypeError:
        return members
    return duplicate
