"""Time constants of nodes with threads, which programs import from this module, as in torchdata 0.11."""

from __future__ import annotations

__all__ = ["QUEUE_TIMEOUT"]

#: A thread that waits checks at intervals of this many seconds whether it must end.
QUEUE_TIMEOUT = 0.1
