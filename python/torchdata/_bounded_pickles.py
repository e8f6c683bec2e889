"""Keeps pickles in memory up to a maximum size. If a pickle exceeds the maximum size, only its size is measured.

Role: all pickling functions of this package write to the file that `pickle_file` provides. Inside a `bounded` context,
the bytes of all pickles are counted. Once there are too many bytes, the pickles are no longer stored, but only
measured. The `bounded` contexts of several threads are independent.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class TooLargeError(Exception):
    """Raised if the pickles of a `bounded` context are too large.

    Args:
        size: the number of bytes of the pickles so far.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes are too many")
        self.size = size


class LimitedFile:
    """A file for one pickle, which stops the pickling once there are too many bytes.

    Attributes:
        content: the bytes.
        left: the number of bytes that still fit into the file.
    """

    def __init__(self, most: int) -> None:
        self.content = bytearray()
        self.left = most

    def write(self, data: Any) -> int:
        """Raises TooLargeError if the bytes do not fit."""
        size = memoryview(data).nbytes
        self.left -= size
        if self.left < 0:
            raise TooLargeError(len(self.content) + size)
        self.content += data
        return size


class _Bound:
    """The number of bytes that were written, and the maximum number of bytes that are kept."""

    def __init__(self, most: int) -> None:
        self.most, self.written = most, 0


_bound: ContextVar[_Bound | None] = ContextVar("_bound", default=None)


class _BoundedFile(io.BytesIO):
    def __init__(self, bound: _Bound) -> None:
        super().__init__()
        self._bound = bound
        self.written = 0

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.written += size
        self._bound.written += size
        if self._bound.written <= self._bound.most:
            return super().write(data)
        self.seek(0)
        self.truncate()
        return size


@contextmanager
def bounded(most: int | None) -> Iterator[None]:
    """A context manager. Pickles are kept only while they have at most `most` bytes together; None for no limit.

    If the pickles exceed this limit, they are incomplete, and TooLargeError is raised at the end of the context.
    """
    if most is None:
        yield
        return
    bound = _Bound(most)
    token = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(token)
    if bound.written > most:
        raise TooLargeError(bound.written)


@contextmanager
def pickle_file() -> Iterator[io.BytesIO]:
    """A context manager that provides a file for one pickle. If too many bytes were written, the file is empty.

    If an exception ends the context, the bytes of the file are not counted.
    """
    bound = _bound.get()
    if bound is None:
        yield io.BytesIO()
        return
    file = _BoundedFile(bound)
    try:
        yield file
    except BaseException:
        bound.written -= file.written
        raise
