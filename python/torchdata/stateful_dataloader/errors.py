"""Exceptions of `StatefulDataLoader`, which derive from `RuntimeError` because PyTorch's loader raises
`RuntimeError`."""

from __future__ import annotations

from torchdata._engine.errors import WorkerExitedError
from torchdata.datapipes._pipe.skipping import TooManySkipped

__all__ = ["TooManySkipped", "WorkerExitedError", "WorkerTimeoutError"]


class WorkerTimeoutError(RuntimeError, TimeoutError):
    """Raised if no batch arrives from a worker within the loader's `timeout`."""
