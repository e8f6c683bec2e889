"""The engine's own exception; `torchdata.dataloader2.error` hands it on."""

from __future__ import annotations

__all__ = ["WorkerExitedError"]


class WorkerExitedError(RuntimeError):
    """A process that the loader depends on has died.

    Args:
        message: what happened and what to do about it.
        worker: the number of the worker process, or None for the dispatching process.
        exitcode: the exit code; a negative one is the number of the signal that ended the process. None where
            it is not known.
        stage: what the process was doing.
        item: the number of the item that the worker was to send next, from 0 in its epoch; for the dispatching process
            that of the item that main was to receive next. None if no other process is put in its place.
    """

    #: No item is left out because a process has died at it: see `on_error`.
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
