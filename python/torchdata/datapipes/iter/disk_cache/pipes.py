"""Pipes that store the results of other pipes in files: OnDiskCacheHolder, EndOnDiskCacheHolder.

Any number of processes may share the cached files. The module `section` decides which items are computed, `locks`
decides which process writes a file, and `atomic_files` writes the file.
"""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_callable, check_source, on_failure
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import fits, state
from torchdata.datapipes._pipe.state.layout import explaining_damage
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.disk_cache.lists import LIST_SUFFIX, FolderSearch, is_reserved, read_list
from torchdata.datapipes.iter.disk_cache.record import mark_of
from torchdata.datapipes.iter.disk_cache.section import FORM, Section
from torchdata.datapipes.iter.streams.atomic_files import digest_of_file, write_file
from torchdata.datapipes.utils.names import check_target

__all__ = ["EndOnDiskCacheHolder", "OnDiskCacheHolder"]

_HASH_TYPES = ("sha256", "md5")
_MODES = {"wb": "wb", "b": "wb", "wt": "wt", "w": "wt", "t": "wt", "": "wt"}


class OnDiskCacheHolder(IterDataPipe[Any]):
    """Begins a section of the pipeline that stores its results in files; `end_caching` ends the section.

    If the files of an item exist, the item skips the section, and `end_caching` yields the paths. If files are missing,
    the item passes through the section, and `end_caching` writes the files. Any number of processes may share the
    cached files. Each file is computed by only one process, which locks the file. If another process needs a locked
    file, it first computes the files of later items, and then waits for the locked file. No process sees an incomplete
    file. If a process is killed while it creates a file, another process computes this file. The locks of items that
    were read ahead are released if the consumer requests no path for one second.

    Args:
        source_datapipe: the pipe to read.
        filepath_fn: a function from an item to the path of its file, or to several paths (a list, a tuple, or a
            generator). If `filepath_fn` is None (the default), each item is the path of its file. If the section
            creates files with other paths for an item (such as members of an archive), a list of these paths is stored
            at the item's path with the suffix `.torchdata_list`.
        hash_dict: a mapping from path to checksum in hexadecimal digits; None (the default) for no check. An existing
            file with a wrong checksum is computed again; a computed file with a wrong checksum raises an error.
            `hash_dict` must contain every yielded file, including members of archives.
        hash_type: the kind of checksums, `"sha256"` (the default) or `"md5"`.
        extra_check_fn: a function that is called with the path of every cached file, and returns False if the file must
            be computed again.
        folder: the folder that must contain all files with paths that `filepath_fn` does not return, such as members of
            an archive. If `folder` is None (the default), the files must be in the folder of the path that
            `filepath_fn` returns. If a list of files contains a path outside `folder`, the files in the list are
            computed again in each epoch, because another user may have changed the list.

    Raises:
        TypeError: an argument is not a function, or `folder` is not a path.
        ValueError: the kind of checksums is unknown.
        RuntimeError: while iterating, no `end_caching` follows this pipe.

    Example:
        >>> import os
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> names = IterableWrapper(["a.txt", "b.txt"]).on_disk_cache(lambda name: os.path.join("cached", name))
        >>> made = names.map(lambda name: (name, f"made for {name}".encode()))
        >>> paths = made.end_caching(mode="wb", same_filepath_fn=True)
        >>> list(paths)
        ['cached/a.txt', 'cached/b.txt']
        >>> list(paths.open_files().readlines(return_path=False))
        ['made for a.txt', 'made for b.txt']
    """

    _section: Section | None = state(saved=False, lasts=True)
    _renews = False  # an iteration begins the section only once

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        filepath_fn: Callable[..., Any] | None = None,
        hash_dict: dict[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        name = type(self).__name__
        self.source_datapipe = check_source(name, source_datapipe, "source_datapipe")
        check_callable(name, "filepath_fn", filepath_fn, optional=True)
        check_callable(name, "extra_check_fn", extra_check_fn, optional=True)
        if hash_dict is not None and not isinstance(hash_dict, dict):
            raise TypeError(f"{name}: hash_dict must be a dict from path to checksum, but got {hash_dict!r}")
        if hash_dict is not None and hash_type not in _HASH_TYPES:
            raise ValueError(f"{name}: Invalid hash_type requested, should be one of {_HASH_TYPES}, not {hash_type!r}")
        self.filepath_fn = filepath_fn
        self.hash_dict = hash_dict
        self.hash_type = hash_type
        self.extra_check_fn = extra_check_fn
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"{name}: folder must be a path, but got {folder!r}")
        self.folder = None if folder is None else os.fspath(folder)
        self._end_caching_flag = False

    def __iter__(self) -> Iterator[Any]:
        if not self._end_caching_flag:
            raise RuntimeError("Please call `end_caching()` before iteration.")
        if self._section is not None:
            return self._section.items()
        # If the user iterates this pipe instead of `end_caching`, it only leaves out items with existing files.
        return (item for item in self.source_datapipe if self.found(self.paths_of(item)) is None)

    def __add__(self, other: Any) -> Any:
        raise RuntimeError("`OnDiskCacheHolder` doesn't support add operation")

    def paths_of(self, item: Any) -> tuple[str, ...]:
        """Returns the paths of the files of `item`, as `filepath_fn` returns them.

        Raises:
            TypeError: `filepath_fn` returned something other than paths.
            ValueError: `filepath_fn` returned no path.
        """
        found = item if self.filepath_fn is None else self.filepath_fn(item)
        several = isinstance(found, (list, tuple)) or inspect.isgenerator(found)
        paths = tuple(_path(self, path) for path in found) if several else (_path(self, found),)
        if not paths:
            raise ValueError(f"{type(self).__name__}: filepath_fn returned no path for {item!r}")
        return paths

    def found(self, paths: tuple[str, ...]) -> list[str] | None:
        """Returns the paths to yield for an item; None if a file is missing. `paths` is the result of `paths_of` for
        the item."""
        if len(paths) == 1:
            members = read_list(paths[0] + LIST_SUFFIX)
            if members is not None:
                look = FolderSearch(self.folder_for(paths[0]))
                return members if all(self._is_valid(member, look(member)) for member in members) else None
        return list(paths) if all(self._is_valid(path, _look(path)) for path in paths) else None

    def folder_for(self, path: str) -> str:
        """Returns the folder that must contain all files that are listed for the item at `path`."""
        return os.path.dirname(path) if self.folder is None else self.folder

    def _is_valid(self, path: str, found: os.stat_result | None) -> bool:
        if found is None:
            return False
        if not stat.S_ISREG(found.st_mode) and (not stat.S_ISDIR(found.st_mode) or os.path.lexists(mark_of(path))):
            return False  # for example, an unfinished folder, or a named pipe, which would block its readers
        if self.hash_dict is not None and not _hash_check(path, self.hash_dict, self.hash_type):
            return False
        return self.extra_check_fn is None or bool(self.extra_check_fn(path))


def _look(path: str) -> os.stat_result | None:
    with FailuresSuppressed(OSError):
        return os.stat(path)
    return None


def _hash_check(filepath: str, hash_dict: dict[str, str], hash_type: str) -> bool:
    """This function keeps the name and parameters of torchdata 0.9, because user tests replace it."""
    expected = hash_dict.get(filepath)
    return expected is not None and digest_of_file(filepath, hash_type) == expected.lower()


def _path(pipe: object, path: Any) -> str:
    if isinstance(path, (str, os.PathLike)):
        path = os.fspath(path)
    if not isinstance(path, str) or not path:
        raise TypeError(
            f"{type(pipe).__name__} expects paths of files as str, but got {shown(path)} of type "
            f"{type(path).__name__}; let filepath_fn return a path"
        )
    return path


class EndOnDiskCacheHolder(IterDataPipe[str]):
    """Ends the section that `on_disk_cache` began: writes files and yields the paths of all files.

    The items of the section must be pairs of a path (or the argument of `filepath_fn`) and the data: bytes, text, an
    open stream, or an iterable of pieces. Paths of existing and of computed files are yielded in the order of the
    source, unless a pipe in the section changes the order.

    Args:
        datapipe: the last pipe of the section.
        mode: `"wb"` (the default) for bytes, `"wt"` for text; the `w` may be left out.
        filepath_fn: a function from the first member of a pair to the path of the file; if None (the default), the
            first member is the path.
        same_filepath_fn: whether to use the `filepath_fn` of `on_disk_cache`; False by default.
        skip_read: ignored, because the type of the data is detected; False by default.
        timeout: seconds to wait for a file that another process computes, 300 by default. The pipe waits for a file
            only if nothing else is left to compute or to yield, and the computing process is alive.

    Raises:
        RuntimeError: no `on_disk_cache` precedes this pipe, or another `end_caching` already ends its section; while
            iterating, the checksum of a file is wrong or not in `hash_dict`, or a file cannot be assigned to an item.
        ValueError: both `filepath_fn` and `same_filepath_fn` are given, or the mode or the timeout is invalid; or,
            while iterating, the name of a file is reserved for the cache's own files (`….torchdata_list`,
            `.torchdata-….part`, `.torchdata-….lock`), or a path is a URL with a part `..`.
        TimeoutError: while iterating, another process did not complete a file in time; the message names this file.
        OSError: while iterating, a file cannot be written. The incomplete file is removed.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pages = IterableWrapper(["index.html"]).on_disk_cache(filepath_fn=lambda page: "pages/" + page)
        >>> pages = pages.map(lambda page: (page, ["<html>", "</html>"])).end_caching(mode="t", same_filepath_fn=True)
        >>> list(pages)
        ['pages/index.html']
    """

    _section: Section | None = state(saved=False)
    _renews = False
    _loaded: dict[str, Any] | None = state(items=True, saved=False)  # the state from which the next iteration resumes

    def __init__(
        self,
        datapipe: Any,
        mode: str = "wb",
        filepath_fn: Callable[..., Any] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
    ) -> None:
        name = type(self).__name__
        check_callable(name, "filepath_fn", filepath_fn, optional=True)
        if filepath_fn is not None and same_filepath_fn:
            raise ValueError("`filepath_fn` is mutually exclusive with `same_filepath_fn`")
        if mode not in _MODES:
            raise ValueError(f"{name}: mode must be one of {[*_MODES]}, but got {mode!r}")
        self.source_datapipe = check_source(name, datapipe)
        holders = (pipe for pipe in Graph(self.source_datapipe).breadth_first() if isinstance(pipe, OnDiskCacheHolder))
        holder = next(holders, None)
        if holder is None:
            raise RuntimeError("Expected `OnDiskCacheHolder` existing in pipeline when `end_caching` is invoked")
        if holder._end_caching_flag:
            raise RuntimeError("`end_caching` can only be invoked once per `OnDiskCacheHolder`")
        self.set_timeout(timeout)
        self.mode = mode
        self.filepath_fn = holder.filepath_fn if same_filepath_fn else filepath_fn
        self.skip_read = skip_read
        # The attribute `cache_holder` makes `on_disk_cache` a direct source of this pipe. Items with existing files
        # come directly from `on_disk_cache`, without passing through the pipes of the section.
        self.cache_holder = holder
        holder._end_caching_flag = True

    def set_timeout(self, timeout: float) -> None:
        """Sets how long to wait for a file that another process creates.

        Args:
            timeout: seconds.

        Raises:
            ValueError: the timeout is not a number, or is negative.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise ValueError(f"{type(self).__name__}: timeout must be a number of seconds, but got {timeout!r}")
        self.timeout = timeout

    def reset(self) -> None:
        """Releases the locks of the previous iteration."""
        if self._section is not None:
            self._section.close()
        super().reset()
        self.cache_holder._section = None

    def __iter__(self) -> Iterator[str]:
        holder = self.cache_holder
        section = Section(type(self).__name__, holder.paths_of, holder.found, holder.folder_for, lambda: self.timeout)
        if self._section is not None:
            self._section.close()
        if self._loaded is not None:
            with explaining_damage(type(self).__name__):
                section.load(self._loaded)
            self._loaded = None
        self._section = holder._section = section
        section.source = iter(holder.source_datapipe)
        paths = self._paths(section, iter(self.source_datapipe))
        next(paths)  # a generator cleans up on closing only if it has started
        return paths

    def _paths(self, section: Section, results: Iterator[Any]) -> Iterator[Any]:
        try:
            yield None
            while True:
                if (path := section.next_ready()) is not None:
                    yield path
                elif section.finished:
                    return
                elif not section.in_flight and not section.ended:
                    section.read_one()
                else:
                    if section.chain_ended:
                        section.begin_round()
                        results = iter(self.source_datapipe)
                    for result in results:
                        with on_failure(partial(close_dropped, result)):
                            self._write(section, result)
                        break
                    else:
                        section.end_round()
        finally:
            section.close()

    def _write(self, section: Section, result: Any) -> None:
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"{type(self).__name__} expects pairs of path and data, but got {result!r}")
        path = _path(self, result[0] if self.filepath_fn is None else self.filepath_fn(result[0]))
        check_target(self, path)
        if is_reserved(path):
            raise ValueError(
                f"{type(self).__name__} will not write {shown(path)}: the on-disk cache reserves such names for its "
                "own files; leave the file out, or give it another name by filepath_fn"
            )
        record = section.owner_of(path)
        hash_dict, hash_type = self.cache_holder.hash_dict, self.cache_holder.hash_type
        if hash_dict is not None and path not in hash_dict:
            raise RuntimeError(f"Unspecified hash for file {path}; add it to hash_dict")
        expected = None if hash_dict is None else hash_dict[path]
        try:
            with section.writing(path, record) as alone:
                write_file(path, result[1], _MODES[self.mode], alone=alone, expected=expected, hash_type=hash_type)
        except OSError as error:
            error.add_note(f"{type(self).__name__} was writing {shown(path)}; the unfinished file was deleted.")
            raise
        section.written(path, record)

    def _sources_in_use(self) -> list[Any]:
        # This pipe reads not only its own source, but also `on_disk_cache` and the source of `on_disk_cache`.
        return [self.source_datapipe, self.cache_holder, self.cache_holder.source_datapipe]

    def state_dict(self) -> dict[str, Any]:
        # A state contains the records of all items that were read from the source and have paths left to yield.
        if self._loaded is not None:
            return {"section": self._loaded}
        return {"section": None if self._section is None else self._section.dump()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        section = state_dict["section"]
        if not fits(section, FORM, None):
            raise TypeError("section does not have the form that this pipe saves")
        self.reset()
        self._loaded = section
