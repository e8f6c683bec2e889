"""The pipe that copies batches into pinned memory: PinMemory.

The pipe's thread reads and pins one item ahead, so training does not wait for pinning. From pinned memory, copies to
the GPU (`tensor.to(device, non_blocking=True)`) can overlap with computing.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torchdata.datapipes._pipe.checks import check_callable
from torchdata.datapipes.datapipe import T_co
from torchdata.datapipes.iter.threads.prefetching import _fill, _PrefetchBase, _PrefetchData
from torchdata.datapipes.utils.pinning import pin_memory_fn as _default_fn

__all__ = ["PinMemory"]


class PinMemory(_PrefetchBase[T_co]):
    """Copies items to pinned memory in a thread, one item ahead of the consumer. With worker processes, this pipe runs
    in the main process.

    Args:
        source_datapipe: the pipe to read.
        device: the CUDA device to pin memory for; None (the default) for the device that is current when the first
            iteration begins.
        pin_memory_fn: a function that receives each item and the device, and returns the pinned item; by default,
            `torchdata.datapipes.utils.pin_memory_fn`, which copies the tensors of the item.

    Raises:
        TypeError: `pin_memory_fn` is not a function.
        RuntimeError: while iterating without your own `pin_memory_fn`, CUDA is not available.
        ValueError: while iterating, `device` is not a CUDA device, and `pin_memory_fn` is not given.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> batches = IterableWrapper(range(10)).batch(2).collate().pin_memory()
    """

    def __init__(
        self,
        source_datapipe: Iterable[T_co],
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] = _default_fn,
    ) -> None:
        super().__init__(source_datapipe, buffer_size=1)
        check_callable("PinMemory", "pin_memory_fn", pin_memory_fn)
        self.device = device
        self.pin_memory_fn = pin_memory_fn

    def _prepare_restored(self, items: list[Any]) -> list[Any]:
        """Pins the items of a loaded state, because unpickled items are not in pinned memory."""
        if items and self.pin_memory_fn is _default_fn:
            return [_default_fn(item, _require_cuda(self.device)) for item in items]
        return items

    def _worker(self) -> Callable[[_PrefetchData], None]:
        device = self.device
        if self.pin_memory_fn is _default_fn:
            device = _require_cuda(device)
        return functools.partial(type(self).thread_worker, pin_memory_fn=self.pin_memory_fn, device=device)

    @staticmethod
    def thread_worker(prefetch_data: _PrefetchData, pin_memory_fn: Callable[[Any, Any], Any], device: Any) -> None:
        """Runs in the thread: reads the source into `prefetch_data`, and pins each item by `pin_memory_fn(item,
        device)`, until the source ends or fails, or the iteration is abandoned.
        """
        try:
            _work_for(device)
        except BaseException as error:
            prefetch_data.queue.finish(prefetch_data.queue.reserve(), error)
            return
        _fill(prefetch_data, lambda item: pin_memory_fn(item, device))

    def is_replicable(self) -> bool:
        """Returns False, because a copy of the pipe in a worker process would need its own CUDA context."""
        return False


def _require_cuda(device: Any) -> int:
    """Returns the index of `device`; if `device` lacks an index, the index of the current CUDA device."""
    remedy = "remove pin_memory from the pipeline here, or pass your own pin_memory_fn"
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError(f"PinMemory needs PyTorch with CUDA, but PyTorch is not installed; {remedy}")
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"PinMemory needs a CUDA device, but PyTorch {torch.__version__} finds none; {remedy}")
    if isinstance(device, int):
        return device
    wanted = torch.device("cuda" if device is None else device)
    if wanted.type != "cuda":
        raise ValueError(f"PinMemory: device must be a CUDA device such as 'cuda:0', but got {device!r}")
    return torch.cuda.current_device() if wanted.index is None else wanted.index


def _work_for(device: Any) -> None:
    """Makes this thread use `device`, because a new thread would use the first GPU, which may belong to another
    rank."""
    torch = sys.modules.get("torch")
    if device is not None and torch is not None and torch.cuda.is_available():
        torch.cuda.set_device(device)
