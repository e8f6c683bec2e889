"""Defines `QUEUE_TIMEOUT`, which programs for torchdata 0.11 import from this module."""

from __future__ import annotations

__all__ = ["QUEUE_TIMEOUT"]

#: The number of seconds between two checks of a waiting thread whether the thread must end.
QUEUE_TIMEOUT = 0.1
