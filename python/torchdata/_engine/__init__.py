"""Python modules that start, command, monitor and stop the processes of the Rust engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata._native import Sender

#: The object that sends the items of a worker process, and allocates shared memory for `torchdata.empty`.
current_sender: Sender | None = None


def empty(shape: Any, dtype: Any) -> Any:
    if type(dtype).__module__ == "torch":
        from torchdata._engine.items.tensors import empty_tensor

        return empty_tensor(shape, dtype, current_sender)
    import numpy as np

    if current_sender is not None:
        kind = np.dtype(dtype)
        sizes = [int(shape)] if hasattr(shape, "__index__") else [int(size) for size in shape]
        if kind.isnative and min(sizes, default=0) >= 0:
            array = current_sender.allocate(sizes, kind.num)
            if array is not None:
                return array
    return np.empty(shape, dtype)
