"""Exceptions of the loader and its reading services."""

from __future__ import annotations

from torchdata._engine.errors import WorkerExitedError
from torchdata._publishing import publish
from torchdata._ranks.group import PrefetchTimeoutError, RanksLostError

__all__ = ["PauseIteration", "PrefetchTimeoutError", "RanksLostError", "WorkerExitedError"]


class PauseIteration(StopIteration):
    """Ends a loop over the loader without ending the epoch. After `resume()`, the same iterator yields more items.

    Example:
        >>> from torchdata.dataloader2 import PauseIteration
        >>> issubclass(PauseIteration, StopIteration)
        True
    """


publish(globals(), PrefetchTimeoutError, RanksLostError, WorkerExitedError)
