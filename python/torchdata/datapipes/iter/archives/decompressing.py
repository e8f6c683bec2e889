"""Decompresses consecutive streams of a file by the modules of Python and of other libraries.

Role: the file objects between a compressed stream and the pipes that read it. Runs in the process that reads. A reader
borrows the compressed stream, and owns decompressed bytes that were not read yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torchdata._optional import optional_import

__all__ = ["bzip2_reader", "gzip_reader", "lzma_reader", "zstd_reader"]

#: Compressed bytes that are asked for at a time.
_AT_ONCE = 64 << 10

#: Bytes that are decompressed at a time if all is read, or passed over.
_PIECE = 1 << 20

#: Compressed bytes that `zstandard` gets at a time. It gives all that is in them at once: 32 MiB at most.
_STEP = 1 << 10


def gzip_reader(file_obj: Any) -> Any:
    """A file object of what is compressed in `file_obj`."""
    import gzip

    return gzip.GzipFile(fileobj=file_obj, mode="rb")


def bzip2_reader(file_obj: Any) -> Any:
    """A file object of what is compressed in `file_obj`."""
    import bz2

    return bz2.BZ2File(file_obj)


def lzma_reader(file_obj: Any) -> Any:
    """A file object of what is compressed in `file_obj`, in the format of xz or the older one of lzma.

    Unlike that of Python's module it reads what comes after the padding between two streams, and takes nothing else
    for padding.
    """
    import lzma

    return _Streams(file_obj, lzma.LZMADecompressor, padding=b"\0")


def zstd_reader(file_obj: Any) -> Any:
    """A file object of what is compressed in `file_obj`, by Python's own module or `zstandard`.

    Raises:
        ModuleNotFoundError: Python has no module for it, and `zstandard` is not installed.
    """
    return _Streams(file_obj, _zstd())


def _zstd() -> Callable[[], Any]:
    """A function that makes a decompressor of one frame."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # from Python 3.14 on
    except ImportError:
        zstandard = optional_import("zstandard", extra="zstd", needed_by="reading zstd")
        return lambda: _Frame(zstandard.ZstdDecompressor().decompressobj())
    decompressor: Callable[[], Any] = zstd.ZstdDecompressor
    return decompressor


class _Frame:
    """A decompressor of `zstandard` with the methods of those of Python's modules.

    Args:
        decompressor: an object that decompresses one frame, without a limit of its output.
    """

    def __init__(self, decompressor: Any) -> None:
        self._decompressor = decompressor
        self._raw = self._done = memoryview(b"")

    @property
    def eof(self) -> bool:
        """Whether the frame has ended, and all of it was given."""
        return bool(self._decompressor.eof) and not self._done

    @property
    def needs_input(self) -> bool:
        """Whether all given data was decompressed."""
        return not self._raw and not self._done

    @property
    def unused_data(self) -> bytes:
        """The bytes after the frame."""
        return bytes(self._decompressor.unused_data) + bytes(self._raw)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next bytes, `max_length` at most."""
        if data:
            self._raw = memoryview(bytes(self._raw) + data)
        parts = []
        while max_length > 0:
            if not self._done:
                if not self._raw or self._decompressor.eof:
                    break
                step, self._raw = self._raw[:_STEP], self._raw[_STEP:]
                self._done = memoryview(self._decompressor.decompress(step))
            part, self._done = self._done[:max_length], self._done[max_length:]
            parts.append(part)
            max_length -= len(part)
        return b"".join(parts)


class _Streams:
    """The content of a file of one or several compressed streams, one after the other.

    Args:
        file_obj: the compressed file, which is read from its present position.
        new: makes a decompressor of one stream.
        padding: bytes that may follow a stream.
    """

    def __init__(self, file_obj: Any, new: Callable[[], Any], padding: bytes = b"") -> None:
        self._file_obj, self._new, self._padding = file_obj, new, padding
        self._begin()

    def _begin(self) -> None:
        self._decompressor = self._new()
        self._position, self._is_over = 0, False

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes or fewer (-1: all), and nothing at the end.

        Raises:
            EOFError: the file ends in the middle of a stream.
        """
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(_PIECE), b""))
        while size and not self._is_over:
            data = b""
            if self._decompressor.eof:
                data = self._behind_stream()
                if not data:
                    self._is_over = True
                    break
                self._decompressor = self._new()
            elif self._decompressor.needs_input:
                data = self._file_obj.read(_AT_ONCE)
                if not data:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            if found := self._decompressor.decompress(data, size):
                self._position += len(found)
                return bytes(found)
        return b""

    def _behind_stream(self) -> bytes:
        """The first bytes after a stream that has ended, without padding."""
        data: bytes = self._decompressor.unused_data
        while not (data := data.lstrip(self._padding) if self._padding else data):
            data = self._file_obj.read(_AT_ONCE)
            if not data:
                break
        return data

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to an offset: back from the start, forwards by decompressing what lies before."""
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            while self.read(_PIECE):
                pass
            offset += self._position
        if offset < self._position:
            self._file_obj.seek(0)
            self._begin()
        while self._position < offset and self.read(min(_PIECE, offset - self._position)):
            pass
        return self._position

    def close(self) -> None:
        """Forgets what was not read. The compressed file stays open."""
        self._decompressor, self._is_over = None, True
