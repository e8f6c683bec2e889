"""Composable data loading on a Rust engine: `torchdata.datapipes` and `torchdata.dataloader2`.

Role: the package's front door. It imports nothing heavy: neither NumPy nor PyTorch nor any optional
library is loaded before something needs it.
"""

from __future__ import annotations

from typing import Any

#: The API that this package keeps (torchdata 0.9) and, after the plus sign, its own version.
__version__ = "0.9.0+rs.0.1.0"

__all__ = ["__version__", "empty"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> Any:
    """A new NumPy array of the given shape and type with arbitrary content, to be filled by the caller.

    Args:
        shape: number of elements along each dimension.
        dtype: element type, anything that `numpy.dtype` takes.
    """
    import numpy as np

    return np.empty(shape, dtype)
