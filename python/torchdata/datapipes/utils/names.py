"""Converts names from servers and archives to safe file paths: `file_name`, `path_inside`, `check_target`.

Code that joins names from archives or servers to a folder should call `file_name` or `path_inside`.
"""

from __future__ import annotations

import os
import re

from torchdata._redacting import shown

__all__ = ["check_target", "file_name", "path_inside"]

_SEPARATORS = re.compile(r"[/\\]")
_DRIVE = re.compile(r"\A[A-Za-z]:")


def file_name(name: str) -> str:
    """Returns the last part of a name, a path or a URL's path, which is safe to join to any folder.

    Both slashes and backslashes separate parts, and the drive letter is dropped.

    Args:
        name: the name of a file on a server, in an archive or in an object store.

    Raises:
        ValueError: the last part is not a valid file name, because it is empty, `.`, `..`, or contains a NUL.

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
    """Returns the name as a relative path, which is safe to join to any folder.

    Leading slashes are dropped, as `tar` and `unzip` do.

    Raises:
        ValueError: the path leads out of the folder, is the folder itself, or contains a NUL.

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
    """Raises an error if a URL with a part `..`, such as `s3://bucket/../../x`, is passed as a local path.

    Raises:
        ValueError: the path is a URL with a part `..`.
    """
    if "://" in path and os.pardir in path.split("/"):
        raise ValueError(
            f"{type(pipe).__name__} will not write to {shown(path)}: this URL contains '..'; make a path from its last "
            "part only, by filepath_fn and torchdata.datapipes.utils.names.file_name"
        )
