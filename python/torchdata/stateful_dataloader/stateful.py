"""Stateful: what it takes for a dataset, an iterator, a sampler or a collate function to save its own place."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
