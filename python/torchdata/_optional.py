"""Libraries that only some pipes need: imported where they are used, and named with their extra if they lack.

Role: the package imports optional libraries only by `optional_import`. Runs in whichever process
builds or iterates the pipe; owns nothing.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from torchdata._importing import import_whole

__all__ = ["DISTRIBUTION", "how_to_install", "optional_import", "require"]

#: The name under which this package is installed.
DISTRIBUTION = "torchdata-rs"


def how_to_install(extra: str) -> str:
    """The command that installs what an extra adds, whether this package is from an index, a wheel or a clone.

    It names the libraries, so that pip need not find this package again.
    """
    from importlib import metadata  # a sixth of the time that the package takes to import, and for errors alone

    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # it is on the path alone
        required = []
    marked = re.compile(rf"extra == ['\"]{extra}['\"]")
    libraries = [one.partition(";")[0].strip() for one in required if marked.search(one.partition(";")[2])]
    if not libraries:
        return f"the extra {DISTRIBUTION}[{extra}]"
    quoted = " ".join(f"'{library}'" for library in libraries)
    return f"`pip install {quoted}` (the extra {DISTRIBUTION}[{extra}])"


def optional_import(module: str, *, extra: str, needed_by: str) -> Any:
    """Imports an optional library.

    Args:
        module: the module's dotted name, such as `"pyarrow.parquet"`.
        extra: the extra of this distribution that installs the library.
        needed_by: the pipe that needs it, as its user knows it.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: the library, or one that it needs itself, is not installed.
    """
    try:
        return import_whole(module)
    except ModuleNotFoundError as error:
        # By hand rather than by a note: some loggers print the message alone.
        raise ModuleNotFoundError(
            f"{needed_by} needs {module.partition('.')[0]!r}, which is not installed ({error}); install it with "
            f"{how_to_install(extra)}",
            name=error.name,
        ) from error


def require(module: str, *, extra: str, needed_by: str) -> None:
    """Raises what `optional_import` would if the library is not installed, without importing it.

    For constructors: a pipe is often built in one process and iterated in others, which alone need the library.
    """
    if importlib.util.find_spec(module) is None:
        optional_import(module, extra=extra, needed_by=needed_by)
