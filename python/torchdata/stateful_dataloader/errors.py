"""Exceptions of `StatefulDataLoader`, each of which is also a `RuntimeError`, as PyTorch's loader raises."""

from __future__ import annotations

from torchdata._engine.errors import WorkerExitedError
from torchdata.datapipes._pipe.skipping import TooManySkipped

__all__ = ["TooManySkipped", "WorkerExitedError", "WorkerTimeoutError"]


class WorkerTimeoutError(RuntimeError, TimeoutError):
    """No batch came from a worker within the loader's `timeout`."""
