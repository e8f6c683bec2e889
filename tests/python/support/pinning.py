"""Simulates pinned memory on machines without a GPU, by replacing the function that copies to pinned memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchdata.stateful_dataloader import _pool


def pin_without_device(monkeypatch: pytest.MonkeyPatch, copy: Callable[[Any], Any] = lambda batch: batch) -> None:
    """Makes loaders with `pin_memory` start their pinning thread on machines without an accelerator."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    monkeypatch.setattr(_pool, "pinned", lambda batch, device: copy(batch))
