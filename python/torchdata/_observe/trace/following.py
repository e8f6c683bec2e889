"""A child's part in a trace: it writes the log that main has made for it, epoch by epoch.

Role: runs in workers and in the dispatching process. A worker on another machine writes one that its host has made. A
log that cannot be opened is no reason to fail: the epoch goes on without.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from torchdata import _tracing
from torchdata._native import TraceLog, end_trace
from torchdata._observe.trace.naming import Names

if TYPE_CHECKING:
    from torchdata._native import StatsBoard

__all__ = ["follow"]


class _Following:
    """The log of a child."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._log = TraceLog.open(_found(path))
        self._names = Names(self._log)
        self._log.begin()

    def register(self, datapipe: Any) -> _tracing.Registration:
        return self._log, self._names.number(datapipe), None

    def path_for(self, board: StatsBoard, page: int, name: str, child: _tracing.Traceable) -> str | None:
        return None  # a loader within a worker is not traced


def _found(path: str) -> str:
    """The path of a log; one of a name alone is behind a descriptor of the host, which has started this process."""
    if os.path.isabs(path):
        return path
    folder = f"/proc/{os.getppid()}/fd"
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{descriptor}") == f"/memfd:{path} (deleted)":
                return f"{folder}/{descriptor}"
    raise FileNotFoundError(f"the host of this worker has no {path}")


def follow(path: str | None) -> None:
    """Writes the log of that path from now on; None: none."""
    current = _tracing.current
    if isinstance(current, _Following) and current.path == path:
        return
    _tracing.switch(None)
    if current is not None:
        end_trace()
    if path is not None:
        try:
            _tracing.switch(_Following(path))
        except (
            OSError,
            RuntimeError,
        ):  # main has ended the trace meanwhile, or the system shows no descriptors
            return
