"""PinMemory: copies items to pinned memory in a thread."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torchdata.datapipes.utils.pinning import pin_memory_fn
from torchdata.nodes._read_ahead import ReadSource, ThreadedNode
from torchdata.nodes.base_node import BaseNode, T

__all__ = ["PinMemory"]


class PinMemory(ThreadedNode[T]):
    """Copies the tensors of each item to pinned memory, in a thread that works one item ahead.

    Copying from pinned memory to the GPU by `tensor.to(device, non_blocking=True)` overlaps with computing.

    Args:
        source: the node to read. The thread reads the source, so all direct and indirect sources of the node run in
            this thread.
        pin_memory_device: the CUDA device for the pinned memory, such as `"cuda:1"`; empty (the default) for the
            current device when the node is created.
        snapshot_frequency: the number of items between saved states of the source; see `Prefetcher`; 1 by default.

    Raises:
        TypeError: `source` is not a node, or `pin_memory_device` is not a string.
        ValueError: `snapshot_frequency` is negative.
        RuntimeError: CUDA is not available.

    Example:
        >>> import torch
        >>> from torchdata.nodes import IterableWrapper, PinMemory
        >>> if torch.cuda.is_available():
        ...     pinned = PinMemory(IterableWrapper([torch.zeros(2)]))
    """

    def __init__(self, source: BaseNode[T], pin_memory_device: str = "", snapshot_frequency: int = 1) -> None:
        super().__init__(source, snapshot_frequency)
        if not isinstance(pin_memory_device, str):
            raise TypeError(
                f"PinMemory: pin_memory_device must be the name of a CUDA device, but got {pin_memory_device!r}"
            )
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"PinMemory needs a CUDA device, but PyTorch {torch.__version__} finds none; leave the node out where "
                "torch.cuda.is_available() is False"
            )
        self.pin_memory_device = pin_memory_device
        self._device = torch.device(pin_memory_device or f"cuda:{torch.cuda.current_device()}")

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        pin = partial(pin_memory_fn, device=self._device)
        # By default, torch would use all cores for copying an item, so `set_num_threads` limits torch to one core in
        # the copying thread.
        return ReadSource(self, [pin], state, limit=1, prepare=partial(torch.set_num_threads, 1))
