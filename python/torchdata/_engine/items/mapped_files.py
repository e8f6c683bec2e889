"""Pickles read-only `numpy.memmap` arrays as references to their files, so that workers map the same files.

The main process uses this module when it pickles a program for spawned workers, and each worker when it loads the
program.

A writable array is pickled with its contents, because a worker must not see later writes of the main process, and must
not change the file.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any


def reduce_memmap(array: Any) -> Any:
    """The array's pickle refers to the mapped file. If the mapped file was replaced after it was mapped, the pickle
    contains the array's elements."""
    if array.mode == "r" and not array.flags.writeable and array.flags.c_contiguous and array.size and array.filename:
        offset = _offset_in(array.filename, array.ctypes.data, array.nbytes)
        if offset is not None:
            return _mapped, (os.path.abspath(array.filename), array.dtype, offset, array.shape)
    return array.__reduce_ex__(5)


def _offset_in(path: Any, address: int, length: int) -> int | None:
    """Returns the offset in the file that is mapped at `address`; None if the file was replaced after it was mapped."""
    with contextlib.suppress(OSError):
        number = os.stat(path).st_ino
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                span, _, offset, _, inode, *_ = line.split(maxsplit=5)
                start, end = (int(bound, 16) for bound in span.split("-"))
                if start <= address < end:
                    fits = int(inode) == number and address + length <= end
                    return address - start + int(offset, 16) if fits else None
    return None


def _mapped(path: str, dtype: Any, offset: int, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.memmap(path, dtype, "r", offset, shape)
