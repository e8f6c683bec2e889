"""Provides folders for files, which child processes share with their parent."""

import atexit
import os
import shutil
import tempfile

__all__ = ["folder"]

_VARIABLE = "TORCHDATA_TEST_FOLDERS"


def folder(name: str) -> str:
    """Returns a folder that exists until the process that first requested it has exited."""
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
