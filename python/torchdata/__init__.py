"""Composable data loading on a Rust engine: `torchdata.datapipes` and `torchdata.dataloader2`.

`import torchdata` is cheap: NumPy, PyTorch and optional libraries are loaded only when needed.
"""

from __future__ import annotations

from typing import Any

from torchdata import _old_modules
from torchdata._version import VERSION as __version__
from torchdata._version import warn_of_upstream

__all__ = ["__version__", "empty"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> Any:
    """Returns a new NumPy array or torch tensor with arbitrary contents. Fill the array, and then return or yield it as
    an item.

    In a worker process, the array is allocated in the shared memory for items. An item that contains the whole array
    reaches the main process without a copy. Outside a worker process, or if the shared memory for items is full, the
    result is an ordinary array or tensor.

    The array is sent without a copy only if nothing except the item refers to it, for example after a function has
    created, filled and returned the array. The array is copied if a variable, view, tensor or container also refers to
    it when the item is yielded. If the array was copied, you may fill and yield the same array again, because later
    writes do not change the copy.

    Args:
        shape: the number of elements along each dimension, at least 0.
        dtype: the element type, as `numpy.dtype` accepts it; for a tensor, a `torch.dtype`. The default is float64.

    Raises:
        TypeError: `shape` contains an object that is not an integer, or NumPy does not know `dtype`.
        ValueError: `shape` contains a negative number. If `dtype` is a `torch.dtype`, torch raises RuntimeError for a
            negative number.

    Example:
        >>> import torchdata
        >>> batch = torchdata.empty((2, 3), "float32")
        >>> batch.fill(1.0)
        >>> float(batch.sum())
        6.0
    """
    from torchdata import _engine

    return _engine.empty(shape, dtype)


warn_of_upstream()
_old_modules.install()
