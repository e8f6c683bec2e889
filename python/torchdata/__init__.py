"""Composable data loading on a Rust engine: `torchdata.datapipes` and `torchdata.dataloader2`.

Role: the package's front door. It imports nothing heavy: neither NumPy nor PyTorch nor any optional
library is loaded before something needs it.
"""

from __future__ import annotations

from typing import Any

from torchdata import _old_modules

#: The API that this package keeps (torchdata 0.9), for programs that compare with versions of torchdata, and after
#: the plus sign the version of the distribution `torchdata-rs`, which `importlib.metadata` tells.
__version__ = "0.9.0+rs.0.1.0"

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


def _warn_of_upstream() -> None:
    """Says so where the distribution `torchdata` is installed too: both own the folder of this package."""
    import os

    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with os.scandir(site) as entries:  # importlib.metadata would take longer than the rest of the import
        found = [e.name for e in entries if e.name.startswith("torchdata-") and e.name.endswith(".dist-info")]
    found = [name for name in found if "+rs." not in name]  # that one has no files (tools/name_wheel.py)
    if not found:
        return
    version = found[0].removeprefix("torchdata-").removesuffix(".dist-info")
    import warnings

    warnings.warn(
        f"the distributions torchdata {version} and torchdata-rs are installed side by side and own the same folder; "
        "run `pip uninstall torchdata torchdata-rs` and install torchdata-rs again, from where you had it",
        stacklevel=3,
    )


_warn_of_upstream()
_old_modules.install()
