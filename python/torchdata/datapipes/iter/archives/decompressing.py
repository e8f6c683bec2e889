"""Decompresses the consecutive streams of a file with modules of Python and of other libraries.

Closing a decompressed file object does not close the compressed file object.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from torchdata._optional import optional_import

_AT_ONCE = 64 << 10

_PIECE = 1 << 20


def gzip_reader(file_obj: Any) -> Any:
    import gzip

    return gzip.GzipFile(fileobj=file_obj, mode="rb")


def bzip2_reader(file_obj: Any) -> Any:
    import bz2

    return bz2.BZ2File(file_obj)


def lzma_reader(file_obj: Any) -> Any:
    """Returns a file object that reads the xz format or the older lzma format.

    Unlike Python's `lzma` module, the file object also reads streams after padding, and refuses invalid padding.
    """
    import lzma

    return _Streams(file_obj, lzma.LZMADecompressor, padding=b"\0")


def zstd_reader(file_obj: Any) -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return _Streams(file_obj, optional_import(name, extra="zstd", needed_by="reading zstd").ZstdDecompressor)


class _Streams:
    """The contents of a file that consists of one or several consecutive compressed streams.

    Args:
        padding: the bytes that may follow a stream.
    """

    def __init__(self, file_obj: Any, new: Callable[[], Any], padding: bytes = b"") -> None:
        self._file_obj, self._new, self._padding = file_obj, new, padding
        self._begin()

    def _begin(self) -> None:
        self._decompressor = self._new()
        self._position, self._is_over = 0, False

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes, all remaining bytes if `size` is -1, or empty bytes at the end. Raises EOFError
        if the file ends in the middle of a stream."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(_PIECE), b""))
        while size and not self._is_over:
            data = b""
            if self._decompressor.eof:
                data = self._after_stream()
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

    def _after_stream(self) -> bytes:
        data: bytes = self._decompressor.unused_data
        while not (data := data.lstrip(self._padding) if self._padding else data):
            data = self._file_obj.read(_AT_ONCE)
            if not data:
                break
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to an offset. To move backward, decompresses the file from its start."""
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
        self._decompressor, self._is_over = None, True
