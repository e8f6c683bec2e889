"""Imports optional libraries when they are needed, with an error that names the missing extra."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from torchdata._importing import import_whole

DISTRIBUTION = "torchdata-rs"


def how_to_install(extra: str) -> str:
    """Returns a command that installs the libraries of an extra. The command does not mention this package, because pip
    may not find this package in an index."""
    from importlib import metadata  # this import takes a sixth of the package's import time

    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        required = []
    marked = re.compile(rf"extra == ['\"]{extra}['\"]")
    libraries = [one.partition(";")[0].strip() for one in required if marked.search(one.partition(";")[2])]
    if not libraries:
        return f"the extra {DISTRIBUTION}[{extra}]"
    quoted = " ".join(f"'{library}'" for library in libraries)
    return f"`pip install {quoted}` (the extra {DISTRIBUTION}[{extra}])"


def optional_import(module: str, *, extra: str, needed_by: str) -> Any:
    try:
        return import_whole(module)
    except ModuleNotFoundError as error:
        # The installation command is in the message and not in a note, because some loggers print only the message.
        raise ModuleNotFoundError(
            f"{needed_by} needs {module.partition('.')[0]!r}, which is not installed ({error}); install it with "
            f"{how_to_install(extra)}",
            name=error.name,
        ) from error


def require(module: str, *, extra: str, needed_by: str) -> None:
    """Raises ModuleNotFoundError if an optional library is not installed, without importing the library.

    Constructors of pipes call this function instead of importing the library, because a pipe is often built in one
    process and iterated in others.
    """
    if importlib.util.find_spec(module) is None:
        optional_import(module, extra=extra, needed_by=needed_by)
