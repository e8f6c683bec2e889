"""The protocol for datasets, iterators, samplers and collate functions that save their own state."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
