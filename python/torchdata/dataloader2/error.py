"""Exceptions of the loader and its reading services."""

from __future__ import annotations

from torchdata._ranks import PrefetchTimeoutError, RanksLostError

__all__ = ["PauseIteration", "PrefetchTimeoutError", "RanksLostError", "WorkerExitedError"]


class PauseIteration(StopIteration):
    """Ends a loop over the loader without ending the epoch: after `resume()` the same iterator goes on."""


class WorkerExitedError(RuntimeError):
    """A process that the loader depends on has died.

    Args:
        message: what happened and what to do about it.
        worker: the number of the worker process, or None for the dispatching process.
        exitcode: the exit code; a negative one is the number of the signal that ended the process. None where
            it is not known.
        stage: what the process was doing.
    """

    def __init__(
        self,
        message: str,
        worker: int | None = None,
        exitcode: int | None = None,
        stage: str = "reading items",
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.exitcode = exitcode
        self.stage = stage

    def __reduce__(self) -> tuple[type[WorkerExitedError], tuple[str, int | None, int | None, str]]:
        return type(self), (str(self), self.worker, self.exitcode, self.stage)
