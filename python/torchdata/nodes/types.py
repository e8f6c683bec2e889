"""The protocol for iterables and samplers that save their own positions."""

from __future__ import annotations

from torchdata._stateful import Stateful

__all__ = ["Stateful"]
