"""Defines `QUEUE_TIMEOUT`, which programs for torchdata 0.11 import from this module."""

from __future__ import annotations

__all__ = ["QUEUE_TIMEOUT"]

#: A waiting thread checks every `QUEUE_TIMEOUT` seconds whether it must end.
QUEUE_TIMEOUT = 0.1
