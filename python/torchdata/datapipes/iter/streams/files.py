"""Pipes that find files, open files, and read files whole or in chunks."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchdata._redacting import shown
from torchdata._reporting import name_item, warn_outside
from torchdata.datapipes._pipe.checks import check_optional_int, explaining
from torchdata.datapipes._pipe.declared_length import DeclaredLength
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import HoldsStream, source_pipe
from torchdata.datapipes.utils._streams import FileRecipe, StreamWrapper

__all__ = ["FileLister", "FileOpener", "StreamReader"]

_MODES = {"b": "rb", "t": "rt", "r": "r", "rb": "rb", "rt": "rt"}


def check_masks(pipe: str, masks: Any) -> str | list[str]:
    if isinstance(masks, str):
        return masks
    if isinstance(masks, (list, tuple)) and all(isinstance(mask, str) for mask in masks):
        return list(masks)
    raise TypeError(f"{pipe}: masks must be a str or a list of str such as ['*.jpg', '*.png'], but got {masks!r}")


def matches(name: str, masks: str | list[str]) -> bool:
    if not masks:
        return True
    return any(fnmatch.fnmatch(name, mask) for mask in ((masks,) if isinstance(masks, str) else masks))


class FileLister(DeclaredLength, IterDataPipe[str]):
    """Yields the paths of the files in one or several directories.

    A directory's own files are sorted by name and precede the files of its subdirectories. Links to directories are not
    followed. If a root is a file, its path is yielded.

    Args:
        root: the directory or file to list, a sequence of directories and files, or a pipe that yields them; the
            working directory by default.
        masks: a shell pattern (`*.jpg`) or a list of patterns for the file names; empty (the default) for all.
        recursive: whether subdirectories are listed; False by default.
        abspath: whether absolute paths are yielded; False by default.
        non_deterministic: whether files are yielded in the order of the file system; False by default. A state that was
            saved in the middle of an unsorted directory is valid only as long as the file system lists this directory
            in the same order.
        length: the number of files that `len` returns; with -1 (the default), `len` raises TypeError.

    Warns: UserWarning: no file was found.

    Raises:
        FileNotFoundError: while iterating, a root does not exist.
        NotADirectoryError, PermissionError: while iterating, a directory cannot be read.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> paths = FileLister("images", masks=["*.png", "*.jpg"], recursive=True)
    """

    _pending: list[str] = checked_state(([str],), list)  # directories to list, the next directory last
    #: The directory that is being listed. `_names_seen` is the number of processed names in the directory.
    _directory: str | None = checked_state((str, None))
    _names_seen: int = state(0)
    #: The first subdirectory that `recursive=False` skipped, for the warning that no file was found. `_unwanted` is the
    #: first file that matches no mask.
    _passed_over: str | None = state(saved=False)
    _unwanted: str | None = state(saved=False)

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[str] = ".",
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> None:
        if isinstance(root, (str, os.PathLike)):
            root = [os.fspath(root)]
        self.datapipe = source_pipe(root, self)
        self.masks = check_masks("FileLister", masks)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic
        self._set_length(length)

    def __iter__(self) -> Iterator[str]:
        # `iter` is called here rather than when the first item is requested, because a state that is saved before the
        # first item must belong to the new epoch.
        return self._files(iter(self.datapipe))

    def _files(self, roots: Iterator[Any]) -> Iterator[str]:
        yield from self._walk()
        root = None
        for root in roots:
            if not isinstance(root, (str, os.PathLike)):
                raise TypeError(f"FileLister expects paths of directories or files, but got {shown(root)}")
            root = os.fspath(root)
            if os.path.isfile(root):
                if matches(os.path.basename(root), self.masks):
                    yield os.path.abspath(root) if self.abspath else root
                elif self._unwanted is None:
                    self._unwanted = root
            else:
                self._pending = [root]
                yield from self._walk()
        if root is not None and not token_of(self).yielded:
            self._warn_of_nothing(root)

    def _drop_broken(self) -> None:
        self._directory = None

    def _warn_of_nothing(self, root: str) -> None:
        kind = f"no file that matches {self.masks!r}" if self.masks else "no file"
        if self._passed_over is not None:
            but = (
                f", and did not enter folders such as {shown(self._passed_over)}; "
                "FileLister(..., recursive=True) also lists files in these folders"
            )
        elif self._unwanted is not None:
            but = f", but other files, such as {shown(self._unwanted)}"
        else:
            but = f" in {shown(root)}"
        warn_outside(f"FileLister found {kind}{but}")

    def _walk(self) -> Iterator[str]:
        while self._directory is not None or self._pending:
            resumed = self._directory is not None
            if self._directory is None:
                self._directory, self._names_seen = self._pending.pop(), 0
            directory = self._directory
            files, subdirectories = self._list(directory)
            if self.recursive and not resumed:
                self._pending.extend(reversed(subdirectories))
            elif subdirectories and not self.recursive and self._passed_over is None:
                self._passed_over = subdirectories[0]
            shown = os.path.abspath(directory) if self.abspath else directory
            for name in files[self._names_seen :]:
                self._names_seen += 1
                if matches(name, self.masks):
                    yield os.path.join(shown, name)
                elif self._unwanted is None:
                    self._unwanted = os.path.join(directory, name)
            self._directory = None

    def _list(self, directory: str) -> tuple[list[str], list[str]]:
        files, subdirectories = [], []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        files.append(entry.name)
                    elif not entry.is_symlink():
                        subdirectories.append(entry.path)
        except OSError as error:
            advice = "check the path that was passed to it."
            folder, _, pattern = directory.rpartition(os.sep)
            if glob.has_magic(directory):
                advice = f"a pattern belongs in masks: FileLister({folder or '.'!r}, masks={pattern!r})."
            error.add_note(f"FileLister cannot list {shown(directory)}: {advice}")
            name_item(error, directory)
            raise
        if not self.non_deterministic:
            files.sort()
            subdirectories.sort()
        return files, subdirectories


class FileOpener(DeclaredLength, ItemByItem[tuple[str, StreamWrapper]]):
    """Opens files: yields pairs of path and stream.

    A stream closes its file when the stream is closed or deleted.

    Args:
        datapipe: yields paths.
        mode: `"r"` (the default), `"t"` or `"rt"` for text, `"b"` or `"rb"` for bytes.
        encoding: the encoding of text files; by default (None), the locale's encoding.
        length: the number of files that `len` returns; with -1 (the default), `len` raises TypeError.

    Raises:
        ValueError: the mode is unknown, or an encoding is given for bytes.
        OSError: while iterating, a file cannot be opened.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.tar").open_files(mode="b")
    """

    def __init__(self, datapipe: Iterable[str], mode: str = "r", encoding: str | None = None, length: int = -1) -> None:
        if mode not in _MODES:
            raise ValueError(f"Invalid mode {mode!r}: FileOpener reads files, by one of the modes {[*_MODES]}")
        if "b" in mode and encoding is not None:
            raise ValueError(
                f"binary mode doesn't take an encoding argument, but FileOpener got {encoding!r}; use mode='t'"
            )
        self.datapipe = source_pipe(datapipe, self)
        self.mode = mode
        self.encoding = encoding
        self._set_length(length)

    def _result(self, path: Any) -> tuple[str, StreamWrapper]:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"Expected string type for pathname, but FileOpener got {shown(path)}")
        path = os.fspath(path)
        recipe = FileRecipe(path, _MODES[self.mode], self.encoding)
        with explaining(self, "cannot open", path):
            file_obj = recipe.open()
        return path, StreamWrapper(file_obj, recipe=recipe)


class StreamReader(HoldsStream[tuple[str, Any]]):
    """Reads streams: yields pairs of path and content, whole or in chunks. Empty streams yield nothing.

    Args:
        datapipe: yields pairs of path and stream. Each stream is closed after it was read.
        chunk: the number of bytes (characters, for text) per item; None (the default) for the whole stream.

    Raises:
        ValueError: `chunk` is not positive.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("letters", io.StringIO("abcde"))]).read_from_stream(chunk=2))
        [('letters', 'ab'), ('letters', 'cd'), ('letters', 'e')]
    """

    def __init__(self, datapipe: Iterable[tuple[str, Any]], chunk: int | None = None) -> None:
        self.datapipe = source_pipe(datapipe, self)
        self.chunk = check_optional_int("StreamReader", "chunk", chunk, least=1)

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[tuple[str, Any]]:
        if self.chunk is None:
            content = stream.read(None)
            self._release(stream)
            self.reset()  # the stream was read to its end, so its position is not saved
            if content:
                yield path, content
            return
        while content := stream.read(self.chunk):
            yield path, content
