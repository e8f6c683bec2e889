"""Containers for snapshots, for user-defined nodes that were written for PyTorch's torchdata.

A thread reads a source and adds the positions of the source to a store, and the node takes the positions from the
store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from torchdata.nodes.constants import QUEUE_TIMEOUT
from torchdata.nodes.exception_wrapper import ExceptionWrapper

__all__ = ["MonotonicIndex", "QueueSnapshotStore", "SnapshotStore"]


@dataclass
class MonotonicIndex:
    """Counts upward: 0, 1, 2 and so on.

    Args:
        initial: the number to start from.
    """

    initial: int = 0

    def __post_init__(self) -> None:
        self._next = self.initial

    def get(self) -> int:
        """Returns the next number."""
        self._next += 1
        return self._next - 1


class SnapshotStore(Protocol):
    """Stores numbered snapshots, which one thread adds and another thread takes."""

    def append(self, snapshot: Any, version: int) -> None:
        """Adds a snapshot. The version must be greater than the previous version."""

    def pop_version(self, version: int) -> Any | None:
        """Returns the snapshot with this version, or None, and removes all snapshots up to this version."""

    def append_initial_snapshot(self, snapshot: Any) -> None:
        """Adds the snapshot of the source's beginning, or an `ExceptionWrapper` if reading has failed."""

    def get_initial_snapshot(self, thread: threading.Thread, timeout: float) -> Any:
        """Waits for the snapshot of the source's beginning, and returns this snapshot."""


class QueueSnapshotStore(SnapshotStore):
    """A snapshot store for threads of one process.

    Example:
        >>> from torchdata.nodes.snapshot_store import QueueSnapshotStore
        >>> store = QueueSnapshotStore()
        >>> store.append({"position": 3}, version=2)
        >>> store.pop_version(1), store.pop_version(2)
        (None, {'position': 3})
    """

    SNAPSHOT_INIT_VERSION = -1

    def __init__(self) -> None:
        self._snapshots: deque[tuple[int, Any]] = deque()
        self._changed = threading.Condition()
        self._latest: int | None = None

    def append(self, snapshot: Any, version: int) -> None:
        """Adds a snapshot.

        Raises:
            ValueError: `version` is not greater than the previous version.
        """
        with self._changed:
            if self._latest is not None and version <= self._latest:
                raise ValueError(f"version {version} of a snapshot must be greater than version {self._latest}")
            self._latest = version
            self._snapshots.append((version, snapshot))
            self._changed.notify_all()

    def pop_version(self, version: int) -> Any | None:
        """Returns the snapshot with this version, or None, and removes all snapshots up to this version."""
        found = None
        with self._changed:
            while self._snapshots and self._snapshots[0][0] <= version:
                oldest, snapshot = self._snapshots.popleft()
                if oldest == version:
                    found = snapshot
        return found

    def append_initial_snapshot(self, snapshot: Any) -> None:
        """See `SnapshotStore.append_initial_snapshot`."""
        self.append(snapshot, self.SNAPSHOT_INIT_VERSION)

    def get_initial_snapshot(self, thread: threading.Thread, timeout: float = 60.0) -> Any:
        """Waits for the snapshot of the source's beginning, and returns this snapshot.

        Args:
            thread: the thread that adds the snapshot.
            timeout: seconds to wait.

        Raises:
            RuntimeError: the thread has ended without adding the snapshot, or has not added it within `timeout`
                seconds.
            Exception: the thread has added an `ExceptionWrapper`, which contains this exception.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while not self._snapshots and thread.is_alive() and time.monotonic() < until:
                self._changed.wait(QUEUE_TIMEOUT)
            found = self._snapshots.popleft() if self._snapshots else None
        if found is None or found[0] != self.SNAPSHOT_INIT_VERSION:
            why = f" within {timeout:g} s" if thread.is_alive() else ": its thread has ended"
            raise RuntimeError(f"the initial snapshot did not arrive{why}")
        if isinstance(found[1], ExceptionWrapper):
            found[1].reraise()  # type: ignore[no-untyped-call]
        return found[1]
