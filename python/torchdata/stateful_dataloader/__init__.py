"""PyTorch's `DataLoader` with saved and restored positions, as in PyTorch's package of the same name. Importing this
package imports PyTorch."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from torchdata._optional import how_to_install

    raise ImportError(
        "torchdata.stateful_dataloader needs PyTorch, which is not installed; install it with "
        f"{how_to_install('torch')}",
        name="torch",
    ) from error

from torchdata._version import warn_if_replaced
from torchdata.stateful_dataloader.stateful import Stateful
from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader

__all__ = ["Stateful", "StatefulDataLoader"]

warn_if_replaced(__name__)
