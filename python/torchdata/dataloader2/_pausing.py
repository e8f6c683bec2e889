"""Pausing a loader, resuming it, and limits, through whatever reading service runs it.

Role: a base of `DataLoader2`, of which it is a part; its iterator calls it. Runs in the thread that uses the loader.
"""

from __future__ import annotations

import warnings
from typing import Any

from torchdata.dataloader2.graph.settings import pause_pipes, resume_pipes
from torchdata.dataloader2.services.interface import contract_of

__all__ = ["Pausing"]


class Pausing:
    """The part of a loader that halts it."""

    reading_service: Any
    datapipe: Any

    def _pause(self) -> None:
        service: Any = self.reading_service
        if service is None:
            self._is_paused = True
            pause_pipes(self.datapipe)
        elif contract_of(service)._pause is not None:
            self._is_paused = True
            pause_fn = service._pause()
            if pause_fn is not None:
                self.datapipe = pause_fn(self.datapipe)
        else:
            self._warn_unsupported("pause")

    def _resume(self) -> None:
        service: Any = self.reading_service
        if service is not None and contract_of(service)._resume is None:
            self._warn_unsupported("resume")
        elif not self._is_paused:
            warnings.warn("Resume is called when `DataLoader2` is not paused. No operation is performed.", stacklevel=3)
        else:
            if service is None:
                resume_pipes(self.datapipe)
            else:
                resume_fn = service._resume()
                if resume_fn is not None:
                    self.datapipe = resume_fn(self.datapipe)
            self._is_paused = False

    def _limit(self, num_batches: int | None) -> None:
        service: Any = self.reading_service
        if service is None:
            return
        if contract_of(service)._limit is None:
            self._warn_unsupported("limit")
            return
        limit_fn = service._limit(num_batches)
        if limit_fn is not None:
            self.datapipe = limit_fn(self.datapipe, num_batches)

    def _warn_unsupported(self, what: str) -> None:
        name = type(self.reading_service).__name__
        warnings.warn(f"{name}: ReadingService doesn't support `{what}`.", stacklevel=4)
