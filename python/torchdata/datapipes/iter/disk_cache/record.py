"""Describes an item between `on_disk_cache` and `end_caching`, until all its paths are yielded."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any, Literal

from torchdata.datapipes.iter.disk_cache.locks import Lock
from torchdata.datapipes.iter.streams.atomic_files import create_new, temporary_name

#: "ready": all files exist; "missing": this process creates the files; "pending": another process may create the files.
Kind = Literal["ready", "missing", "pending"]

_NONE: frozenset[str] = frozenset()


class Record:
    """An item, its files and their locks.

    Attributes:
        paths: the paths of the item's files that `filepath_fn` returned.
        targets: `paths` as absolute paths; empty if no file was missing.
        written: the members of `targets` that were written.
        ready: paths of complete files, to be yielded after the paths of all earlier items.
        members: paths of written files that are not in `paths`, such as the members of an archive.
        locks: the held locks, by path.
    """

    def __init__(self, item: Any, paths: tuple[str, ...], kind: Kind = "pending") -> None:
        self.item, self.paths, self.kind = item, paths, kind
        self.targets = self.written = _NONE
        self.ready: deque[str] = deque()
        self.members: list[str] = []
        self.locks: dict[str, Lock] = {}

    def set_targets(self) -> frozenset[str]:
        self.targets = frozenset(map(os.path.abspath, self.paths))
        return self.targets

    def release(self) -> None:
        for target in list(self.locks):
            if (lock := self.locks.pop(target, None)) is not None:  # another thread may have released the lock
                lock.release()

    def mark_unfinished(self, member: str) -> None:
        """Before the file `member` is written, marks its folder as incomplete, if the folder is the path of the item.
        If the process is killed, the mark shows that files are missing."""
        folder = os.path.abspath(self.paths[0])
        if member.startswith(os.path.join(folder, "")):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            create_new(mark_of(self.paths[0])).close()

    def unmark(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark_of(self.paths[0]))

    def dump(self) -> tuple[Any, ...]:
        written = [path for path in self.paths if os.path.abspath(path) in self.written] if self.written else []
        return self.item, self.paths, self.kind, written, list(self.ready), list(self.members)

    @classmethod
    def restored(cls, dumped: tuple[Any, ...]) -> Record:
        item, paths, kind, written, ready, members = dumped
        record = cls(item, paths, kind)
        record.set_targets()
        record.written = frozenset(map(os.path.abspath, written))
        record.ready, record.members = deque(ready), list(members)
        return record


def mark_of(path: str) -> str:
    return temporary_name(path)
