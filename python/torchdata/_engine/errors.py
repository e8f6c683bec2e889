"""Defines the exception `WorkerExitedError`, which `torchdata.dataloader2.error` exports."""

from __future__ import annotations


class WorkerExitedError(RuntimeError):
    """A worker process or the dispatching process exited unexpectedly.

    Args:
        message: what happened and what to do about it.
        worker: the number of the worker process, or None for the dispatching process.
        exitcode: the exit code; None if it is unknown. An exit code of -n means that signal n killed the process.
        stage: a description of what the process was doing when it exited; "reading items" by default.
        item: the number of the item that was due when the process exited, from 0 in its epoch. If a worker exited,
            `item` is the next item that the worker would have sent. If the dispatching process exited, `item` is the
            next item that the workers would have received. `item` is None if the loader does not restart processes.

    Example:
        >>> from torchdata.dataloader2 import WorkerExitedError
        >>> error = WorkerExitedError("worker process 1 was killed", worker=1, exitcode=-9)
        >>> error.worker, error.exitcode
        (1, -9)
    """

    #: The pipe `on_error` does not skip a `WorkerExitedError`.
    never_skipped = True

    def __init__(
        self,
        message: str,
        worker: int | None = None,
        exitcode: int | None = None,
        stage: str = "reading items",
        item: int | None = None,
    ) -> None:
        super().__init__(message)
        self.item = item
        self.worker = worker
        self.exitcode = exitcode
        self.stage = stage

    def __reduce__(self) -> tuple[type[WorkerExitedError], tuple[str, int | None, int | None, str, int | None]]:
        return type(self), (str(self), self.worker, self.exitcode, self.stage, self.item)
