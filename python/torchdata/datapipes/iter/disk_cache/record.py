"""One item on its way through a cached section, from the source to the paths that are yielded for it.

Role: the record that `section.Section` keeps of each item that it has read and is not done with. It owns the
claims on the item's paths. Belongs to the process of its section.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any, Literal

from torchdata.datapipes.iter.disk_cache.claims import Claim
from torchdata.datapipes.iter.disk_cache.lists import LIST_SUFFIX
from torchdata.datapipes.iter.streams.atomic_files import create_anew, temporary_name

__all__ = ["Record", "mark_of"]

#: Nothing more is to be found out; its files are to be made here; they are to be looked at when its turn comes.
Kind = Literal["ready", "missing", "pending"]


class Record:
    """One item of the source on its way through the section.

    Attributes:
        item: the item.
        paths: the paths that it stands for.
        kind: what is known of the files.
        number: a missing one's place among those that were handed out; None before.
        ready: paths that may be yielded, as soon as all before them are.
        members: paths written for it that are none of its own: to be listed.
        unwritten: those of its own paths that are still to be written.
        claims: claims on its paths.
        rejected: how its files looked when they were found not to do.
    """

    __slots__ = ("claims", "item", "kind", "members", "number", "paths", "ready", "rejected", "unwritten")

    def __init__(self, item: Any, paths: tuple[str, ...], kind: Kind) -> None:
        self.item, self.paths, self.kind = item, paths, kind
        self.number: int | None = None
        self.ready: deque[str] = deque()
        self.members: list[str] = []
        self.unwritten = set(paths)
        self.claims: list[Claim] = []
        self.rejected: list[Any] | None = None

    def release(self) -> None:
        """Gives up the claims."""
        released, self.claims = self.claims, []
        for claim in released:
            claim.release()

    def looks(self) -> list[Any]:
        """Signatures that change when the files, or the lists of the members made for them, are written."""
        return [_signature(path + suffix) for path in self.paths for suffix in ("", LIST_SUFFIX)]

    def mark_unfinished(self, member: str) -> None:
        """Notes before `member` is written that files are missing yet, if the folder alone would say otherwise.

        That is so if a record stands for a folder, and its members lie in it. The mark stays if the process dies.
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
        """The record without its claims, to be pickled."""
        return (
            self.item,
            self.paths,
            self.kind,
            self.number,
            list(self.ready),
            list(self.members),
            set(self.unwritten),
        )

    @classmethod
    def restored(cls, dumped: tuple[Any, ...]) -> Record:
        """A record from its `dump()`."""
        record = cls(*dumped[:3])
        record.number = dumped[3]
        record.ready, record.members, record.unwritten = deque(dumped[4]), list(dumped[5]), set(dumped[6])
        return record


def mark_of(path: str) -> str:
    """The file that says of the folder `path` that it is not complete."""
    return temporary_name(path)


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
