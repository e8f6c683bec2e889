"""Pipes over the path handlers of iopath: IoPathFileLister, IoPathFileOpener, IoPathSaver.

The pipes access files through a `PathManager`, which is pickled with the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.stores.listing import ListsFolders, OpensFiles
from torchdata.datapipes.iter.streams.atomic_files import appearing
from torchdata.datapipes.iter.streams.saves import SavesItems

__all__ = ["IoPathFileLister", "IoPathFileOpener", "IoPathSaver"]


def _new_path_manager(file_io: Any) -> Any:
    manager = file_io.PathManager()
    manager.register_handler(file_io.HTTPURLHandler(), allow_override=True)
    manager.register_handler(file_io.OneDrivePathHandler(), allow_override=True)
    with suppress(ImportError):  # S3 needs boto3, which iopath does not install
        from iopath.common.s3 import S3PathHandler

        manager.register_handler(S3PathHandler(), allow_override=True)
    return manager


def _is_local(manager: Any, path: str) -> bool:
    prefixes = getattr(manager, "_path_handlers", ())
    return "://" not in path and not any(path.startswith(prefix) for prefix in prefixes)


class _HasPathManager:
    pathmgr: Any

    def _set_path_manager(self, pathmgr: Any, handler: Any) -> None:
        name = type(self).__name__
        file_io = optional_import("iopath.common.file_io", extra="iopath", needed_by=name)
        if pathmgr is not None and not isinstance(pathmgr, file_io.PathManager):
            raise TypeError(f"{name}: pathmgr must be an iopath.PathManager, but got {pathmgr!r}")
        self.pathmgr = _new_path_manager(file_io) if pathmgr is None else pathmgr
        if handler is not None:
            self.register_handler(handler, allow_override=True)

    def register_handler(self, handler: Any, allow_override: bool = False) -> None:
        """Makes the pipe's path manager use a handler for the prefixes that this handler supports.

        Args:
            handler: an iopath `PathHandler`.
            allow_override: whether the handler may replace handlers for the same prefixes; False by default.

        Raises:
            TypeError: `handler` is not a `PathHandler`.
        """
        from iopath.common.file_io import PathHandler

        if not isinstance(handler, PathHandler):
            raise TypeError(f"{type(self).__name__}: handler must be an iopath PathHandler, but got {handler!r}")
        self.pathmgr.register_handler(handler, allow_override=allow_override)


class IoPathFileLister(_HasPathManager, ListsFolders):
    """Lists one or several directories with iopath: yields the paths of files and subdirectories.

    The paths are in the order of the handler's listing; local files are sorted by name. If a root is a file, its path
    is yielded. Some handlers of iopath do not support listing.

    Args:
        root: the directory or file to list, a sequence of directories and files, or a pipe that yields them, as local
            paths or URLs.
        masks: a shell pattern (`*.jpg`) or a list of patterns for the names; empty (the default) for all.
        pathmgr: an `iopath.PathManager`; None (the default) creates a path manager for local paths, HTTP, OneDrive
            and, if boto3 is installed, S3.
        handler: an additional path handler.

    Raises:
        ModuleNotFoundError: iopath is not installed (extra `iopath`).
        OSError: while iterating, a directory cannot be listed.

    Example:
        >>> from torchdata.datapipes.iter import IoPathFileLister
        >>> paths = IoPathFileLister("images", masks=["*.png", "*.jpg"])
    """

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[str],
        masks: str | list[str] = "",
        *,
        pathmgr: Any = None,
        handler: Any = None,
    ) -> None:
        super().__init__(root, masks)
        self._set_path_manager(pathmgr, handler)

    def _listed(self, root: str) -> tuple[list[str] | None, bool, Callable[[str], str]]:
        names = None if self.pathmgr.isfile(root) else list(self.pathmgr.ls(root))
        return names, _is_local(self.pathmgr, root), partial(os.path.join, root)


class _IoPathRecipe:
    __slots__ = ("manager", "mode", "path")

    def __init__(self, manager: Any, path: str, mode: str) -> None:
        self.manager, self.path, self.mode = manager, path, mode

    def open(self) -> Any:
        return self.manager.open(self.path, self.mode)

    def __repr__(self) -> str:
        return f"_IoPathRecipe({shown(self.path)}, {self.mode!r})"


class IoPathFileOpener(_HasPathManager, OpensFiles):
    """Opens files by iopath: yields pairs of path and stream.

    A stream closes its file when the stream is deleted. A stream is pickled together with its path manager, which the
    unpickled stream uses to reopen the file.

    Args:
        source_datapipe: yields local paths or URLs.
        mode: the mode of `open`, "r" by default.
        pathmgr: an `iopath.PathManager`; None (the default) creates a path manager for local paths, HTTP, OneDrive
            and, if boto3 is installed, S3.
        handler: an additional path handler.

    Raises:
        ModuleNotFoundError: iopath is not installed (extra `iopath`).
        OSError: while iterating, a file cannot be opened.
        ValueError: the mode is unknown.

    Example:
        >>> from torchdata.datapipes.iter import IoPathFileLister
        >>> pairs = IoPathFileLister("shards", "*.tar").open_files_by_iopath(mode="rb")
    """

    def __init__(
        self, source_datapipe: Iterable[str], mode: str = "r", pathmgr: Any = None, handler: Any = None
    ) -> None:
        super().__init__(source_datapipe, mode)
        self._set_path_manager(pathmgr, handler)

    def _recipe(self, name: str) -> Any:
        return _IoPathRecipe(self.pathmgr, name, self.mode)


class IoPathSaver(_HasPathManager, SavesItems):
    """Writes each pair of metadata and data to a file with iopath, and yields the path of the written file.

    An existing local file stays unchanged. A new file has a temporary name until it is complete, so that several
    processes may save the same files without lock files. Directories are created. If a handler writes to remote
    storage, an existing file is replaced.

    Args:
        source_datapipe: yields pairs of metadata and data, which is bytes for a binary mode, and a str for a text mode.
        mode: the mode of `open`, "w" by default.
        filepath_fn: a function from the metadata to the path; if None (the default), the metadata is the path.
        pathmgr: an `iopath.PathManager`; None (the default) creates a path manager for local paths, HTTP, OneDrive
            and, if boto3 is installed, S3.
        handler: an additional path handler.

    Raises:
        ModuleNotFoundError: iopath is not installed (extra `iopath`).
        OSError: while iterating, a file cannot be written.
        TypeError: while iterating, the data does not fit the mode.
        ValueError: the mode does not write.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper([("1.txt", b"one"), ("2.txt", b"two")])
        >>> list(pairs.save_by_iopath(mode="wb", filepath_fn="saved/{}".format))
        ['saved/1.txt', 'saved/2.txt']
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        pathmgr: Any = None,
        handler: Any = None,
    ) -> None:
        super().__init__(source_datapipe, mode, filepath_fn)
        self._set_path_manager(pathmgr, handler)

    def _save(self, path: str, data: Any) -> None:
        if not _is_local(self.pathmgr, path):
            self._write(path, data)
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if not os.path.exists(path):
            with appearing(path, replace=False) as temporary:
                self._write(temporary, data)

    def _write(self, path: str, data: Any) -> None:
        with self.pathmgr.open(path, self.mode) as file:
            file.write(data)
