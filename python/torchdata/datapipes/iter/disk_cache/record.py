"""One item on its way through a cached section, from the source to the paths that are yielded for it.

Role: the record that `section.Section` keeps of each item that it has read and not yielded. It owns the locks of the
item's paths. Belongs to the process of its section.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any, Literal

from torchdata.datapipes.iter.disk_cache.locks import Lock
from torchdata.datapipes.iter.streams.atomic_files import create_anew, temporary_name

__all__ = ["Record", "mark_of"]

#: Nothing more is expected; the files are to be made here; the files are looked for when it is the record's turn.
Kind = Literal["ready", "missing", "pending"]

_NONE: frozenset[str] = frozenset()


class Record:
    """One item of the source on its way through the section.

    Attributes:
        item: the item.
        paths: the paths that it stands for.
        kind: what is known of the files.
        targets: the absolute paths of `paths`, once a file is missing.
        written: the targets that were written.
        ready: paths that may be yielded once all earlier paths are.
        members: paths that were written for the item and are none of its own. They are to be listed.
        locks: the held locks, by target.
    """

    __slots__ = ("item", "kind", "locks", "members", "paths", "ready", "targets", "written")

    def __init__(self, item: Any, paths: tuple[str, ...], kind: Kind = "pending") -> None:
        self.item, self.paths, self.kind = item, paths, kind
        self.targets = self.written = _NONE
        self.ready: deque[str] = deque()
        self.members: list[str] = []
        self.locks: dict[str, Lock] = {}

    def aim(self) -> frozenset[str]:
        """Finds out the targets, and returns them."""
        self.targets = frozenset(map(os.path.abspath, self.paths))
        return self.targets

    def release(self) -> None:
        """Releases the locks."""
        for target in list(self.locks):
            if (lock := self.locks.pop(target, None)) is not None:  # not taken meanwhile by another thread
                lock.release()

    def mark_unfinished(self, member: str) -> None:
        """Notes before `member` is written that files are missing yet, if the folder alone would say otherwise.

        That is so if a record stands for a folder, and its members lie in it. The mark stays if the process is killed.
        """
        folder = os.path.abspath(self.paths[0])
        if member.startswith(os.path.join(folder, "")):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            create_anew(mark_of(self.paths[0])).close()

    def unmark(self) -> None:
        """Says that all members are there, and listed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark_of(self.paths[0]))

    def dump(self) -> tuple[Any, ...]:
        """The record without its locks, to be pickled."""
        written = [path for path in self.paths if os.path.abspath(path) in self.written] if self.written else []
        return self.item, self.paths, self.kind, written, list(self.ready), list(self.members)

    @classmethod
    def restored(cls, dumped: tuple[Any, ...]) -> Record:
        """A record from its `dump()`."""
        item, paths, kind, written, ready, members = dumped
        record = cls(item, paths, kind)
        record.aim()
        record.written = frozenset(map(os.path.abspath, written))
        record.ready, record.members = deque(ready), list(members)
        return record


def mark_of(path: str) -> str:
    """The file that says of the folder `path` that it is not complete."""
    return temporary_name(path)
