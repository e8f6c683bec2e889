"""Composable data loading on a Rust engine: `torchdata.datapipes` and `torchdata.dataloader2`.

Role: the package's front door. It imports nothing heavy: neither NumPy nor PyTorch nor any optional
library is loaded before something needs it.
"""

from __future__ import annotations

from typing import Any

from torchdata import _old_modules
from torchdata._version import VERSION as __version__
from torchdata._version import warn_of_upstream

__all__ = ["__version__", "empty"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> Any:
    """A new NumPy array or torch tensor with arbitrary content, to be filled by the caller and handed on.

    In a worker process it lies in the shared memory that its items leave by: an item that holds it whole crosses to the
    main process without a copy. Anywhere else, and where that memory has no room, it is a plain array or tensor.

    That holds for one that nothing but the item refers to, such as one that a function makes, fills and returns. Where
    a variable, a view, a tensor over the array or another container refers to it as well when the item is yielded, it
    is copied like any other: so what is written into it later is not seen by the receiver, and it may be filled and
    yielded again.

    Args:
        shape: number of elements along each dimension.
        dtype: element type, anything that `numpy.dtype` takes; for a tensor, a `torch.dtype`.

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
