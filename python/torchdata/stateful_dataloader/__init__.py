"""PyTorch's `DataLoader` with saved and restored positions, as in PyTorch's package of the same name. Importing this
package imports PyTorch."""

from __future__ import annotations

from torchdata._optional import optional_import

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    optional_import("torch", extra="torch", needed_by="torchdata.stateful_dataloader")

from torchdata._version import warn_if_replaced
from torchdata.stateful_dataloader.stateful import Stateful
from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader

__all__ = ["Stateful", "StatefulDataLoader"]

warn_if_replaced(__name__)
