"""The protocol by which an iterable or a sampler saves its own position."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
