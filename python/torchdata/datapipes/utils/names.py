"""Names that others chose, as paths of files here: `file_name`, `path_inside`, `check_target`.

A member of an archive, a file on a server and a key of an object store are called whatever their author liked. Code
that writes files under such names, or joins them to a folder, asks these functions. Role: plain functions of text, for
the pipes and for users' own functions from names to paths; they touch no file.
"""

from __future__ import annotations

import os
import re

from torchdata._redacting import shown

__all__ = ["check_target", "file_name", "path_inside"]

_SEPARATORS = re.compile(r"[/\\]")
_DRIVE = re.compile(r"\A[A-Za-z]:")


def file_name(name: str) -> str:
    """The last part of a name, of a path or of a URL's path, which is safe to join to any folder.

    Slashes and backslashes alike end a part, and the letter of a drive is dropped.

    Args:
        name: what a server, an archive or an object store calls a file.

    Raises:
        ValueError: nothing is left that can be a file's name: it is empty, `.`, `..`, or holds a NUL.

    Example:
        >>> from torchdata.datapipes.utils.names import file_name
        >>> file_name("../../etc/cron.d/job"), file_name("C:\\\\data\\\\a.tar")
        ('job', 'a.tar')
        >>> file_name("shards/..")
        Traceback (most recent call last):
        ValueError: 'shards/..' names no file: its last part is '..'
    """
    last = _DRIVE.sub("", _SEPARATORS.split(name)[-1], count=1)
    if last in ("", os.curdir, os.pardir) or "\0" in last:
        raise ValueError(f"{name!r} names no file: its last part is {last!r}")
    return last


def path_inside(name: str) -> str:
    """The relative path of a name within any folder.

    Leading slashes are dropped, as `tar` and `unzip` do.

    Raises:
        ValueError: it leads out of the folder, is the folder itself, or holds a NUL.

    Example:
        >>> from torchdata.datapipes.utils.names import path_inside
        >>> path_inside("/a/../b.txt")
        'b.txt'
        >>> path_inside("a/../../b.txt")
        Traceback (most recent call last):
        ValueError: the name 'a/../../b.txt' leads out of its folder
    """
    inside = os.path.normpath(name.lstrip(os.sep)) if "\0" not in name else os.pardir
    if inside in (os.curdir, os.pardir) or inside.startswith(os.pardir + os.sep):
        raise ValueError(f"the name {name!r} leads out of its folder")
    return inside


def check_target(pipe: object, path: str) -> None:
    """Refuses to take a URL for a local path if its key climbs: `s3://bucket/../../x` would lead out of anywhere.

    Raises:
        ValueError: the path is such a URL.
    """
    if "://" in path and os.pardir in path.split("/"):
        raise ValueError(
            f"{type(pipe).__name__} will not write to {shown(path)}: this name of another store climbs by '..'; make "
            "the path of what is its last part alone, by filepath_fn and torchdata.datapipes.utils.names.file_name"
        )
