"""Pipes that decompress streams: Decompressor, Extractor, Bz2FileLoader, XzFileLoader.

Data is decompressed only when a decompressed stream is read. The decompressed stream owns and closes the compressed
stream. An unpickled stream reopens the compressed stream and decompresses up to the saved position.
"""

from __future__ import annotations

import copy
import io
import re
import zipfile
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

from torchdata._redacting import shown
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.checks import on_failure
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.iter.archives.archive import (
    MAX_RATIO,
    CountedStream,
    LibraryMember,
    LimitedFiles,
    bare,
    check_max_ratio,
    explained,
    is_damage,
    refuse_bomb,
    refuse_text,
)
from torchdata.datapipes.iter.archives.decompressing import bzip2_reader, gzip_reader, lzma_reader, zstd_reader
from torchdata.datapipes.iter.archives.tar import open_tar
from torchdata.datapipes.iter.archives.zip import open_zip
from torchdata.datapipes.iter.streams.pairs import path_and_stream, position_of, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, detached

__all__ = ["Bz2FileLoader", "CompressionType", "Decompressor", "Extractor", "XzFileLoader"]

_PIECE = 1 << 20


class CompressionType(Enum):
    """The formats that `Decompressor` supports. The values are valid arguments for `file_type`."""

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"
    ZSTD = "zstd"


_SUFFIXES = {
    ".tar": CompressionType.TAR,
    ".xz": CompressionType.LZMA,
    ".gz": CompressionType.GZIP,
    ".zip": CompressionType.ZIP,
    ".bz2": CompressionType.BZIP2,
    ".zst": CompressionType.ZSTD,
    ".tgz": CompressionType.TAR,
    ".txz": CompressionType.TAR,
    ".tzst": CompressionType.TAR,
}

_TARS = (".tar.gz", ".tar.xz", ".tar.zst")

_READERS: dict[CompressionType, Callable[[Any], Any]] = {
    CompressionType.GZIP: gzip_reader,
    CompressionType.BZIP2: bzip2_reader,
    CompressionType.LZMA: lzma_reader,
    CompressionType.ZSTD: zstd_reader,
}


def _kind_of_name(path: str) -> CompressionType | None:
    suffixes = PurePath(path.lower()).suffixes
    if "".join(suffixes) in _TARS:
        return CompressionType.TAR
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def _kind_by_suffix(path: str) -> CompressionType | None:
    """Returns the compression type that the suffix of a path indicates. In a URL, a query or fragment may follow the
    suffix."""
    names = [path, re.split("[?#]", path, maxsplit=1)[0]]
    if path.lower().startswith(("http://", "https://")):  # other names may contain a question mark
        names.reverse()
    return next(filter(None, map(_kind_of_name, names)), None)


class _Recipe:
    """Describes how to decompress a stream. `source` is a placeholder that reopens the compressed stream; None if the
    stream cannot be reopened."""

    __slots__ = ("kind", "max_ratio", "path", "pipe", "source")

    def __init__(
        self, kind: CompressionType, path: str, pipe: str, max_ratio: float | None, source: Any = None
    ) -> None:
        self.kind, self.path, self.pipe, self.max_ratio, self.source = kind, path, pipe, max_ratio, source

    def open(self) -> Any:
        return self.on(copy.deepcopy(self.source))  # two calls must open two streams

    def on(self, source: Any) -> Any:
        try:
            if self.kind in _READERS:
                return io.BufferedReader(_Decompressed(self, source))
            opened = self._open_archive(source)
        except Exception as error:
            raise self.explained(self.path, error)
        opened.owned = source if isinstance(source, StreamWrapper) else None
        return opened

    def _open_archive(self, source: Any) -> Any:
        file_obj = bare(source)
        if self.kind is CompressionType.TAR:
            return open_tar(file_obj, max_ratio=self.max_ratio)
        return open_zip(file_obj, self.path, _OpenZip)

    def with_placeholder(self, source: Any, start: int | None) -> _Recipe | None:
        placeholder = detached(source, start)
        if placeholder is source:
            return None
        return _Recipe(self.kind, self.path, self.pipe, self.max_ratio, placeholder)

    def explained(self, name: str, error: Exception) -> Exception:
        what = f"{shown(self.path)} in {self.pipe}"
        if not is_damage(error):
            return name_item(explained(OSError, what, error), self.path)
        cause = str(error) or type(error).__name__
        error.args = (
            f"cannot read {what}: {cause} (it is truncated, damaged, or not of the type {self.kind.value!r})",
        )
        return name_item(error, self.path)

    def __repr__(self) -> str:
        return f"{self.kind.value} stream {shown(self.path)}"


class _OpenZip(zipfile.ZipFile):
    owned: Any = None

    def close(self) -> None:
        super().close()
        if self.owned is not None:
            self.owned.close()


class _Decompressed(LibraryMember):
    """A decompressed stream. Seeking back decompresses the source from the start."""

    mode = "rb"

    def __init__(self, recipe: _Recipe, source: Any) -> None:
        self._source, self._start = source, position_of(bare(source))
        self._counted = CountedStream(bare(source))
        super().__init__(recipe, None, recipe.path, _READERS[recipe.kind](self._counted), cheap=False)

    def recipe(self) -> Any:
        return self._archive.with_placeholder(self._source, self._start)

    def seekable(self) -> bool:
        return self._counted.seekable()

    def _content(self, size: int) -> bytes:
        data = super()._content(size)
        try:
            refuse_bomb(self._file_obj.tell(), self._counted.count, self._archive.max_ratio)
        except Exception as error:
            raise self._archive.explained(self._name, error)
        return data

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._content(_PIECE), b""))

    def close(self) -> None:
        if not self.closed:
            super().close()
            if isinstance(self._source, StreamWrapper):  # code that created a bare stream closes it
                self._source.close()


class _Decompressing(ItemByItem[tuple[str, StreamWrapper]]):
    max_ratio: float | None

    def _kind_of(self, path: str) -> CompressionType:
        raise NotImplementedError

    def _path_of(self, path: str) -> str:
        return path

    def _result(self, pair: Any) -> tuple[str, StreamWrapper]:
        path, stream = path_and_stream(pair, self)
        with on_failure(partial(close_dropped, stream)):
            refuse_text(self, path, stream)
            recipe = _Recipe(self._kind_of(path), path, type(self).__name__, self.max_ratio)
            start = position_of(stream)
            file_obj = recipe.on(stream)
        path = self._path_of(path)
        if recipe.kind in _READERS:  # the readers of these formats provide their own recipe
            return path, StreamWrapper(file_obj, None, path)
        return path, StreamWrapper(file_obj, None, path, recipe=recipe.with_placeholder(stream, start))


class Decompressor(_Decompressing):
    """Decompresses streams: yields pairs of path and decompressed stream. Paths stay unchanged.

    A file of type `"tar"` or `"zip"` becomes an open `tarfile.TarFile` or `zipfile.ZipFile` in a `StreamWrapper`, which
    `load_from_tar` and `load_from_zip` accept.

    Args:
        source_datapipe: yields pairs of path and binary stream. Closing a decompressed stream also closes its source.
        file_type: `"gzip"`, `"bz2"`, `"lzma"` (also xz), `"zstd"`, `"tar"` or `"zip"`, or one of `Decompressor.types`;
            None (the default) selects the type by the suffix of the path (in lower or upper case; in a URL, before the
            query): `.gz`, `.bz2`, `.xz`, `.zst`, `.tar`, `.zip`, and for tar archives `.tar.gz`, `.tar.xz`, `.tar.zst`,
            `.tgz`, `.txz`, `.tzst`.
        max_ratio: the largest allowed ratio of decompressed to compressed size, at least 1; 100 by default, None for no
            limit. A decompressed size of at most 1 GiB is always allowed.

    Raises:
        ValueError: the type is unknown, or `max_ratio` is less than 1.
        ModuleNotFoundError: while iterating, a file has the type zstd, but Python is older than 3.14 and the extra
            `zstd` is not installed.
        RuntimeError: while iterating with `file_type=None`, the suffix is unknown.
        OSError, EOFError, zlib.error, lzma.LZMAError: while reading, the stream is damaged or truncated, or its
            ratio exceeds `max_ratio` (OSError).
        tarfile.ReadError, zipfile.BadZipFile: while iterating, an archive is damaged.

    Example:
        >>> import gzip, io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper([("a.gz", io.BytesIO(gzip.compress(b"alpha")))]).decompress()
        >>> [(path, stream.read()) for path, stream in pairs]
        [('a.gz', b'alpha')]
    """

    types = CompressionType

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        file_type: str | CompressionType | None = None,
        *,
        max_ratio: float | None = MAX_RATIO,
    ) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        if file_type is not None and not isinstance(file_type, CompressionType):
            try:
                file_type = CompressionType(file_type.lower() if isinstance(file_type, str) else file_type)
            except ValueError as error:
                names = [kind.value for kind in CompressionType]
                raise ValueError(
                    f"Decompressor: file_type must be one of {names} or None, but {file_type!r} is not a valid "
                    "CompressionType"
                ) from error
        self.file_type = file_type
        self.max_ratio = check_max_ratio("Decompressor", max_ratio)

    def _kind_of(self, path: str) -> CompressionType:
        if self.file_type is not None:
            return self.file_type
        kind = _kind_by_suffix(path)
        if kind is None:
            raise RuntimeError(
                f"Decompressor does not know the compression of {shown(path)} by its suffix; the known suffixes are "
                f"{[*_SUFFIXES]}, for others pass file_type (its file extension does not match what are supported)"
            )
        return kind


class Extractor(Decompressor):
    """The old name of `Decompressor`. The constructor returns a `Decompressor`.

    Args:
        source_datapipe: yields pairs of path and binary stream.
        file_type: the type of the files; None (the default) selects the type by the suffix of the path.
        max_ratio: the largest allowed ratio of decompressed to compressed size, as for `Decompressor`; 100 by default,
            None for no limit.

    Raises:
        TypeError: `source_datapipe` is not iterable.
        ValueError: the type is unknown, or `max_ratio` is not a number of at least 1.
        Exception: while iterating or reading, any error that `Decompressor` raises.

    Example:
        >>> from torchdata.datapipes.iter import Extractor
        >>> Extractor([], file_type="gzip")
        Decompressor
    """

    def __new__(  # type: ignore[misc]  # as in torchdata 0.9, what it makes is a Decompressor
        cls,
        source_datapipe: Iterable[tuple[str, Any]],
        file_type: str | CompressionType | None = None,
        *,
        max_ratio: float | None = MAX_RATIO,
    ) -> Decompressor:
        return Decompressor(source_datapipe, file_type, max_ratio=max_ratio)


class _OfOneKind(LimitedFiles, _Decompressing):
    _kind: CompressionType
    _suffix: str

    def _kind_of(self, path: str) -> CompressionType:
        return self._kind

    def _path_of(self, path: str) -> str:
        return path.removesuffix(self._suffix)


class Bz2FileLoader(_OfOneKind):
    """Decompresses bzip2 streams: yields pairs of path, without the suffix `.bz2`, and stream.

    Args:
        datapipe: yields pairs of path and binary stream. Closing a decompressed stream also closes its source.
        length: the number of files that `len` returns; with -1 (the default), `len` raises TypeError.
        max_ratio: the largest allowed ratio of decompressed to compressed size, at least 1; 100 by default, None for no
            limit. A decompressed size of at most 1 GiB is always allowed.

    Raises:
        ValueError: `max_ratio` is less than 1.
        OSError, EOFError: while reading, the stream is damaged or truncated, or exceeds `max_ratio` (OSError).

    Example:
        >>> import bz2, io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper([("a.txt.bz2", io.BytesIO(bz2.compress(b"alpha")))]).load_from_bz2()
        >>> [(path, stream.read()) for path, stream in pairs]
        [('a.txt', b'alpha')]
    """

    _kind = CompressionType.BZIP2
    _suffix = ".bz2"


class XzFileLoader(_OfOneKind):
    """Decompresses xz and lzma streams: yields pairs of path, without the suffix `.xz`, and stream.

    Args:
        datapipe: yields pairs of path and binary stream. Closing a decompressed stream also closes its source.
        length: the number of files that `len` returns; with -1 (the default), `len` raises TypeError.
        max_ratio: the largest allowed ratio of decompressed to compressed size, at least 1; 100 by default, None for no
            limit. A decompressed size of at most 1 GiB is always allowed.

    Raises:
        ValueError: `max_ratio` is less than 1.
        lzma.LZMAError, EOFError, OSError: while reading, the stream is damaged or truncated, or exceeds `max_ratio`
            (OSError).

    Example:
        >>> import io, lzma
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper([("a.txt.xz", io.BytesIO(lzma.compress(b"alpha")))]).load_from_xz()
        >>> [(path, stream.read()) for path, stream in pairs]
        [('a.txt', b'alpha')]
    """

    _kind = CompressionType.LZMA
    _suffix = ".xz"
