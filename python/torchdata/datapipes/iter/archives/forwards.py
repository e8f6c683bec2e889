"""Adapts a stream that can only be read forward to archive readers, which read at offsets.

The last bytes that were read are kept, because archive readers seek back a little.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable

#: A function that returns the next bytes of a stream, or empty bytes at the end of the stream.
Pieces = Callable[[], bytes]

#: The number of bytes that an archive reader can always seek back, which is enough to reread the last header.
_BACK = 1 << 10


class Forwards:
    """A stream that consists of the bytes that `next_piece` returns. The function `rewind` returns a new `next_piece`,
    which begins at the start of the stream. Without `rewind`, a reader can seek back only within the last piece."""

    def __init__(self, next_piece: Pieces, rewind: Callable[[], Pieces] | None = None, start: int = 0) -> None:
        self._next_piece, self._rewind = next_piece, rewind
        self._position = start
        self._piece = b""
        self._piece_start = start

    def seekable(self) -> bool:
        return self._rewind is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            raise tarfile.StreamError("the end of the stream is not known")
        self._position = offset + (self._position if whence == os.SEEK_CUR else 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        begin = self._position - self._piece_start
        end = begin + size
        at_hand = 0 <= begin <= end <= len(self._piece)
        data = self._piece[begin:end] if at_hand else self._fetch(size)
        self._position += len(data)
        return data

    def _fetch(self, size: int) -> bytes:
        if self._position < self._piece_start:
            if self._rewind is None:
                raise tarfile.StreamError("seeking backwards is not allowed")
            self._next_piece, self._piece, self._piece_start = self._rewind(), b"", 0
        while self._position > self._piece_start + len(self._piece):
            if not self._advance():
                return b""
        parts, position, wanted = [], self._position, size if size >= 0 else 1 << 62
        while wanted:
            begin = position - self._piece_start
            part = self._piece[begin : begin + wanted]
            parts.append(part)
            position += len(part)
            wanted -= len(part)
            if wanted and not self._advance():
                break
        return b"".join(parts)

    def _advance(self) -> bool:
        more, kept = self._next_piece(), self._piece[-_BACK:]
        if not more:
            return False
        self._piece_start += len(self._piece) - len(kept)
        self._piece = kept + more
        return True
