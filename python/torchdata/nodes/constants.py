"""Times that nodes with threads share. Programs import them from here, as from torchdata 0.11."""

from __future__ import annotations

__all__ = ["QUEUE_TIMEOUT"]

#: Seconds after which a wait looks whether it is to go on.
QUEUE_TIMEOUT = 0.1
