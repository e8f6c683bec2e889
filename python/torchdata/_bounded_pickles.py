"""Limits the memory of pickles: once the pickles of a `with` block exceed a limit, their bytes are discarded.

All pickling functions of this package write to a file from `pickle_file`, which enforces the limit of `bounded`. The
limit of a `bounded` context applies only to the thread that has entered the context.
"""

from __future__ import annotations

import io
import math
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class TooLargeError(Exception):
    """Raised if the pickles of a `bounded` context are too large."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a pickle of {size} bytes is too large")
        self.size = size


class LimitedFile:
    """A file that raises TooLargeError if more than `most` bytes are written."""

    def __init__(self, most: int) -> None:
        self.content = bytearray()
        self.left = most

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.left -= size
        if self.left < 0:
            raise TooLargeError(len(self.content) + size)
        self.content += data
        return size


class _Bound:
    def __init__(self, most: float) -> None:
        self.most, self.written = most, 0

    def __enter__(self) -> None:
        self._before, _own.bound = getattr(_own, "bound", None), self

    def __exit__(self, kind: object, *_: object) -> None:
        _own.bound = self._before
        if kind is None and self.written > self.most:
            raise TooLargeError(self.written)


_own = threading.local()


class _PickleFile(io.BytesIO):
    def __init__(self, bound: _Bound) -> None:
        super().__init__()
        self._bound, self._written = bound, 0

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._bound.written -= self._written

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self._written += size
        self._bound.written += size
        if self._bound.written <= self._bound.most:
            return super().write(data)
        self.seek(0)
        self.truncate()
        return size


def bounded(most: int | None) -> AbstractContextManager[None]:
    """Limits the total size of all pickles that are written within this context to `most` bytes. `most=None` means no
    limit.

    If pickles exceed the limit, they are incomplete, and leaving the context raises TooLargeError.
    """
    return nullcontext() if most is None else _Bound(most)


def pickle_file() -> io.BytesIO:
    """Returns an in-memory file that stores one pickle. A `with` statement over the returned file does not close the
    file. If the pickles that are written within a `bounded` context exceed `most` bytes, the file loses its content."""
    return _PickleFile(getattr(_own, "bound", None) or _Bound(math.inf))
