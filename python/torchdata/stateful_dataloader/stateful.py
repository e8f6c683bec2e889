"""The protocol by which a dataset, an iterator, a sampler or a collate function saves its own state."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
