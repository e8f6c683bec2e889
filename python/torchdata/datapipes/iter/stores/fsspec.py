"""Pipes over the file systems of fsspec: FSSpecFileLister, FSSpecFileOpener, FSSpecSaver.

For each item, a pipe requests the file system from fsspec, which stores one instance per process and thread. A stream
owns its file. An unpickled stream reopens the file by its URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._optional import optional_import, require
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int, on_failure
from torchdata.datapipes._pipe.retrying import retried
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.stores.listing import ListsFolders, OpensFiles, check_options
from torchdata.datapipes.iter.streams.atomic_files import appearing
from torchdata.datapipes.iter.streams.saves import SavesItems

__all__ = ["FSSpecFileLister", "FSSpecFileOpener", "FSSpecSaver"]


def _file_system(pipe: str, url: str, options: dict[str, Any]) -> tuple[Any, str]:
    fs, path = optional_import("fsspec.core", extra="fsspec", needed_by=pipe).url_to_fs(url, **options)
    return fs, path


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


class FSSpecFileLister(ListsFolders):
    """Yields the URLs of the files and directories in one or several directories of any file system of fsspec.

    The URLs are in the order of the file system's listing; local files are sorted by name. If a root is a file, its URL
    is yielded. A yielded URL has the protocol of the root. If the root is a chain of URLs (joined by `::`), the yielded
    URL also contains the further URLs of the chain. For example, the root `zip://images::archive.zip` yields
    `zip://images/1.png::archive.zip`, which `open_files_by_fsspec` opens.

    Args:
        root: the directory or file to list, a sequence of directories and files, or a pipe that yields them, as URLs or
            local paths.
        masks: a shell pattern (`*.jpg`) or a list of patterns. Only paths that match a pattern are yielded; by default,
            all paths.
        kwargs: options of the file system, such as host and user.

    Raises:
        ModuleNotFoundError: fsspec is not installed (extra `fsspec`), or while iterating, the library of a protocol is
            not installed.
        FileNotFoundError: while iterating, a root does not exist.
        ValueError: while iterating, the protocol of a root is unknown.

    Example:
        >>> from torchdata.datapipes.iter import FSSpecFileLister
        >>> names = FSSpecFileLister("memory://images", masks=["*.png", "*.jpg"])
    """

    def __init__(
        self, root: str | Sequence[str] | IterDataPipe[str], masks: str | list[str] = "", **kwargs: Any
    ) -> None:
        require("fsspec", extra="fsspec", needed_by=type(self).__name__)
        super().__init__(root, masks)
        self.kwargs_for_connection = kwargs

    def _listed(self, root: str) -> tuple[list[str] | None, bool, Callable[[str], str]]:
        fs, path = _file_system(type(self).__name__, root, self.kwargs_for_connection)
        names = None if fs.isfile(path) else list(fs.ls(path, detail=False))
        return names, _is_local(fs), _naming(root, path)


def _naming(root: str, path: str) -> Callable[[str], str]:
    links = root.split("::")
    # In a chain such as `simplecache::s3://bucket`, fsspec lists the first link that has a path, here `s3://bucket`.
    # The URL of each entry repeats the links before and after the listed link.
    index = next((i for i, link in enumerate(links) if "://" in link), len(links) - 1)
    protocol, separator, _ = links[index].rpartition("://")
    start = "".join(f"{link}::" for link in links[:index])
    end = "".join(f"::{link}" for link in links[index + 1 :])

    def url_of(name: str) -> str:
        if separator and name.startswith(protocol + separator):
            return f"{start}{name}{end}"
        if not name.startswith(path):
            name = f"{path.rstrip('/')}/{name}"
        return f"{start}{protocol}{separator}{name}{end}"

    return url_of


#: Names of metadata that change with the contents of a file, the most reliable first.
_TAGS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime", "size")


@dataclass(eq=False, repr=False)
class _FSSpecRecipe:
    """Describes how to open a file. `version` contains metadata that the file had when it was first opened."""

    pipe: str
    url: str
    mode: str
    for_open: dict[str, Any]
    for_connection: dict[str, Any]
    max_retries: int
    #: A function that is called before each attempt to open the file again; None in a pickled copy.
    count: Callable[[], object] | None
    version: dict[str, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "count": None}

    def open(self) -> Any:
        fs, path = _file_system(self.pipe, self.url, self.for_connection)

        def opened() -> Any:
            return fs.open(path, self.mode, **self.for_open)

        file = retried(opened, self.max_retries, f"{self.pipe}: opening {shown(self.url)}", self.count)
        if self.mode[0] == "r":
            with on_failure(file.close):
                self._check_version(getattr(file, "details", None))
        # The attribute `opened_by` keeps the file system of an archive open as long as the file is used.
        with suppress(AttributeError):
            file.opened_by = fs
        return file

    def _check_version(self, details: Any) -> None:
        known = details if isinstance(details, dict) else {}
        found = {tag: str(known[tag]) for tag in _TAGS if known.get(tag) is not None}
        self.version = found if self.version is None else self.version
        tag = next((tag for tag in _TAGS if tag in found and tag in self.version), None)
        if tag is not None and found[tag] != self.version[tag]:
            raise RuntimeError(
                f"{self.pipe} cannot continue to read {shown(self.url)}, because the file has changed: its {tag} was "
                f"{self.version[tag]} and is {found[tag]}; start the epoch again"
            )

    def __repr__(self) -> str:
        return f"_FSSpecRecipe({shown(self.url)}, {self.mode!r})"


class FSSpecFileOpener(OpensFiles):
    """Opens files by fsspec: yields pairs of URL and stream.

    A stream closes its file when the stream is deleted. A stream can be pickled, together with the options of its file
    system. An unpickled stream reopens the URL, at the saved position if the file system can seek. If the file has
    changed since it was first opened, a RuntimeError is raised.

    Args:
        source_datapipe: yields URLs or local paths.
        mode: the mode of `open`, "r" by default.
        kwargs_for_open: options of the file system's `open`, such as `{"encoding": "utf-8", "compression": "infer"}`.
        max_retries: maximum number of times that a file is opened again after a temporary OSError, such as a broken
            connection, at least 0; 3 by default. Before each retry, the pipe issues a warning and waits. Reading is not
            repeated.
        kwargs: options of the file system, such as host and user.

    Raises:
        ModuleNotFoundError: fsspec is not installed (extra `fsspec`), or while iterating, the library of a protocol is
            not installed.
        OSError: while iterating, a file cannot be opened.
        TypeError: `max_retries` is not an integer.
        ValueError: the mode is unknown, or `max_retries` is negative; or, while iterating, a protocol is unknown.

    Example:
        >>> from torchdata.datapipes.iter import FSSpecFileLister
        >>> pairs = FSSpecFileLister("memory://shards", "*.tar").open_files_by_fsspec(mode="rb")
    """

    def __init__(
        self,
        source_datapipe: Iterable[str],
        mode: str = "r",
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        max_retries: int = 3,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        require("fsspec", extra="fsspec", needed_by=name)
        self.max_retries = check_int(name, "max_retries", max_retries, least=0)
        super().__init__(source_datapipe, mode)
        self.kwargs_for_open = check_options(name, "kwargs_for_open", kwargs_for_open)
        self.kwargs_for_connection = kwargs

    def _recipe(self, name: str) -> Any:
        options, count = (self.kwargs_for_open, self.kwargs_for_connection), token_of(self).count_retry
        return _FSSpecRecipe(type(self).__name__, name, self.mode, *options, self.max_retries, count)


class FSSpecSaver(SavesItems):
    """Writes each pair of metadata and data to a file with fsspec, and yields the URL of the written file.

    A local file has a temporary name until it is complete. On a file system that is not local, data is uploaded while
    it is written. If writing fails, the upload is canceled, provided that the file system supports this.

    Args:
        source_datapipe: yields pairs of metadata and data, which is bytes for a binary mode, and a str for a text mode.
        mode: the mode of `open`, "w" by default; `"w"` and `"wb"` replace existing files.
        filepath_fn: a function from the metadata to the URL or local path; if None (the default), the metadata is the
            URL.
        kwargs_for_open: options of the file system's `open`, such as `{"compression": "gzip"}`.
        kwargs: options of the file system, such as `auto_mkdir=True` to create local directories.

    Raises:
        ModuleNotFoundError: fsspec is not installed (extra `fsspec`), or while iterating, the library of a protocol is
            not installed.
        OSError: while iterating, a file cannot be written.
        TypeError: while iterating, the data is not bytes for a binary mode, or not a str for a text mode.
        ValueError: the mode does not write, or while iterating, a protocol is unknown.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper([("1.txt", b"one"), ("2.txt", b"two")])
        >>> list(pairs.save_by_fsspec(mode="wb", filepath_fn="memory://saved/{}".format))
        ['memory://saved/1.txt', 'memory://saved/2.txt']
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        require("fsspec", extra="fsspec", needed_by=type(self).__name__)
        super().__init__(source_datapipe, mode, filepath_fn)
        self.kwargs_for_open = check_options(type(self).__name__, "kwargs_for_open", kwargs_for_open)
        self.kwargs_for_connection = kwargs

    def _save(self, path: str, data: Any) -> None:
        fs, inner = _file_system(type(self).__name__, path, self.kwargs_for_connection)
        if _is_local(fs) and "w" in self.mode:
            # The temporary file must have the extension of `inner`, because fsspec may infer the compression from the
            # extension.
            with appearing(inner, replace=True, ending=os.path.splitext(inner)[1]) as temporary:
                self._write(fs, temporary, data)
        else:
            self._write(fs, inner, data)

    def _write(self, fs: Any, path: str, data: Any) -> None:
        file = fs.open(path, self.mode, **self.kwargs_for_open)
        with on_failure(partial(_give_up, file)):
            file.write(data)
        file.close()


def _give_up(file: Any) -> None:
    """Closes the file after a failed write, if possible without uploading the incomplete file."""
    from fsspec.spec import AbstractBufferedFile

    inner = getattr(file, "buffer", None) if not isinstance(file, AbstractBufferedFile) else file
    with FailuresSuppressed():
        if isinstance(inner, AbstractBufferedFile):
            inner.discard()
            inner.closed = True
        else:
            file.close()
