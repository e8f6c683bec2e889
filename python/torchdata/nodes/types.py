"""Stateful: what it takes for an iterable or a sampler to save its own place."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
