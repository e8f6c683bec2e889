"""Folders for files that rows of the table read and write. Child processes use the same folders as their parent."""

import atexit
import os
import shutil
import tempfile

__all__ = ["folder"]

#: The environment variable that contains the parent of all folders. Child processes inherit the variable.
_VARIABLE = "TORCHDATA_TEST_FOLDERS"


def folder(name: str) -> str:
    """Returns the path of a folder that exists until the process that first requested it has exited."""
    above = os.environ.get(_VARIABLE)
    if above is None or not os.path.isdir(above):
        above = os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="torchdata-test-")
        atexit.register(_remove, above, os.getpid())
    path = os.path.join(above, name)
    os.makedirs(path, exist_ok=True)
    return path


def _remove(path: str, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)
