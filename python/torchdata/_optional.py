"""Imports optional libraries when they are needed, and raises an error that names the extra if a library is missing.

Role: the package imports optional libraries only through `optional_import`. The code runs in the process that builds or
iterates the pipe. The module keeps no state.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from torchdata._importing import import_whole

#: The name under which this package is installed.
DISTRIBUTION = "torchdata-rs"


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra, whether this package is from an index, a wheel or a clone.

    The command names the libraries, so that pip need not find this package again.
    """
    from importlib import metadata  # this import takes a sixth of the package's import time

    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # the package was imported from the path, without an installation
        required = []
    marked = re.compile(rf"extra == ['\"]{extra}['\"]")
    libraries = [one.partition(";")[0].strip() for one in required if marked.search(one.partition(";")[2])]
    if not libraries:
        return f"the extra {DISTRIBUTION}[{extra}]"
    quoted = " ".join(f"'{library}'" for library in libraries)
    return f"`pip install {quoted}` (the extra {DISTRIBUTION}[{extra}])"


def optional_import(module: str, *, extra: str, needed_by: str) -> Any:
    """Imports an optional library. Raises ModuleNotFoundError if the library, or one of its requirements, is not
    installed."""
    try:
        return import_whole(module)
    except ModuleNotFoundError as error:
        # The advice is part of the message instead of a note, because some loggers print only the message.
        raise ModuleNotFoundError(
            f"{needed_by} needs {module.partition('.')[0]!r}, which is not installed ({error}); install it with "
            f"{how_to_install(extra)}",
            name=error.name,
        ) from error


def require(module: str, *, extra: str, needed_by: str) -> None:
    """Raises the error of `optional_import` if the library is not installed, without importing it.

    Constructors use this function, because a pipe is often built in one process and iterated in other processes, and
    only the other processes need the library.
    """
    if importlib.util.find_spec(module) is None:
        optional_import(module, extra=extra, needed_by=needed_by)
