"""A child's part in a trace: it writes the log that main has made for it, epoch by epoch.

Role: runs in workers and in the dispatching process. A log that cannot be opened is no reason to fail: the epoch
goes on without.
"""

from __future__ import annotations

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
        self._log = TraceLog.open(path)
        self._names = Names(self._log)
        self._log.begin()

    def register(self, datapipe: Any) -> _tracing.Registration:
        return self._log, self._names.number(datapipe), None

    def path_for(self, board: StatsBoard, page: int, name: str) -> str | None:
        return None  # a loader within a worker is not traced


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
