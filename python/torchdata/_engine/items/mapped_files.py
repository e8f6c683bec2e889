"""Lets workers map the files of a program's read-only memory-mapped arrays, so that the contents are not sent.

Role: runs in the main process when it pickles a program for workers that inherit nothing, and in each worker when it
loads the program.

A writable array is pickled with its contents, because the main process may write to the array after the workers have
started. A worker must not see writes of the main process, and must not change the file.
"""

from __future__ import annotations

import os
from typing import Any


def reduce_memmap(array: Any) -> Any:
    """Returns the reduced form of a `numpy.memmap` array. If it is certain that the file still contains the array, the
    result refers to the file instead of containing the elements.
    """
    if array.mode == "r" and not array.flags.writeable and array.flags.c_contiguous and array.size and array.filename:
        offset = _offset_in(array.filename, array.ctypes.data, array.nbytes)
        if offset is not None:
            return _mapped, (os.path.abspath(array.filename), array.dtype, offset, array.shape)
    return array.__reduce_ex__(5)


def _offset_in(path: Any, address: int, length: int) -> int | None:
    """Returns the offset of memory in a file; None if another file, or an earlier file with the same name, is mapped at
    this memory.
    """
    try:
        number = os.stat(path).st_ino
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                span, _, offset, _, inode, *_ = line.split(maxsplit=5)
                start, end = (int(bound, 16) for bound in span.split("-"))
                if start <= address < end:
                    fits = int(inode) == number and address + length <= end
                    return address - start + int(offset, 16) if fits else None
    except OSError:
        pass
    return None


def _mapped(path: str, dtype: Any, offset: int, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.memmap(path, dtype, "r", offset, shape)
