"""Exceptions of `StatefulDataLoader`: each is also the `RuntimeError` that torch's loader raises in its place."""

from __future__ import annotations

from torchdata._engine.errors import WorkerExitedError

__all__ = ["WorkerExitedError", "WorkerTimeoutError"]


class WorkerTimeoutError(RuntimeError, TimeoutError):
    """No batch came from a worker within the loader's `timeout`."""
