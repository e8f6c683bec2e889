"""Writes, reads and checks the list of files that were created for one item, if the paths of these files differ from
the item's path.

A list may be forged: an archive may contain a file with the name of a list, and other users may write into the cache's
folder. As a protection, a list must be a regular file, and the paths in it may refer only to regular files in the
cache's folder.

A list has one path per line, as torchdata 0.9 writes it. A newline in a path is written as `\\n`, and a backslash as
two backslashes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from torchdata._handlers import FailuresSuppressed
from torchdata.datapipes.iter.streams.atomic_files import open_regular

LIST_SUFFIX = ".torchdata_list"

#: Maximum size of a list in bytes, which is enough for several million paths.
_LONGEST = 256 << 20

_RESERVED = re.compile(rf".*{re.escape(LIST_SUFFIX)}|\.torchdata-.*\.(part|lock).*", re.I | re.S)


def is_reserved(path: str) -> bool:
    return ".torchdata" in path.lower() and any(map(_RESERVED.fullmatch, path.split(os.sep)))


def dumped(members: Iterable[str]) -> bytes:
    escaped = (os.fsencode(member).replace(b"\\", b"\\\\").replace(b"\n", b"\\n") for member in members)
    return b"".join(b"%s\n" % line for line in escaped)


def read_list(path: str) -> list[str] | None:
    if not os.access(path, os.F_OK):  # most items have no list, and an exception would cost more than this call
        return None
    data = b""
    with FailuresSuppressed(OSError), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LONGEST:
            return None
        data = file.read(_LONGEST)
    if b"\0" in data or not data.endswith(b"\n"):
        return None
    lines = data.split(b"\n")[:-1]
    try:
        return [os.fsdecode(re.sub(rb"\\(.?)", _unescaped, line) if b"\\" in line else line) for line in lines]
    except KeyError:
        return None


def _unescaped(match: re.Match[bytes]) -> bytes:
    return {b"\\": b"\\", b"n": b"\n"}[match[1]]


class FolderSearch:
    """Finds regular files inside `folder`. Links to folders are resolved."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder or os.curdir)
        #: For each folder that was checked: whether it is inside `folder`. The results are cached, because a cache has
        #: far fewer folders than files.
        self._known: dict[str, bool] = {}

    def __call__(self, path: str) -> os.stat_result | None:
        parent, slash, name = path.rpartition(os.sep)
        parent += slash
        if (inside := self._known.get(parent)) is None:
            resolved = os.path.realpath(parent or os.curdir)
            inside = self._known[parent] = os.path.commonpath((self._folder, resolved)) == self._folder
        if not inside or is_reserved(name):
            return None
        with FailuresSuppressed(OSError):
            found = os.lstat(path)
            return found if stat.S_ISREG(found.st_mode) else None
        return None
