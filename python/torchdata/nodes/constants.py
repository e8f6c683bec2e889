"""Time constants of nodes with threads. Programs import them from this module, as in torchdata 0.11."""

from __future__ import annotations

__all__ = ["QUEUE_TIMEOUT"]

#: Seconds between checks, while waiting, for whether to continue.
QUEUE_TIMEOUT = 0.1
