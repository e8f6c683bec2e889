"""Lets the main process use the shared memory of a program as the memory of its own large arrays, so that a dataset
exists once.

Role: runs in the main process after it has written a program for workers that inherit nothing. The program is then in
shared memory, and a second time in the memory of the main process. This module replaces the pages of large buffers in
the main process by private mappings of the shared memory, at the same addresses. The contents stay the same. If a
process writes to a page, the system copies the page, so no process sees the writes of another process.

Three conditions limit what is replaced:

- glibc has allocated the memory as a mapping of its own, which it returns to the system when the memory is freed. Other
  allocators keep freed memory, and so does glibc for small blocks. Some allocators rely on zeros in discarded pages.
- Most of the program can be replaced. The system frees the shared memory only as a whole, so a single array in shared
  memory would keep everything else.
- No other thread is running, because a write to a page would be lost while the page is being replaced.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torchdata._engine.items.tensors import bytes_at, storage_address
from torchdata._native import replace_pages

#: The minimum size of a replaced buffer in bytes, and the maximum number of replaced buffers. The system limits the
#: number of mappings of a process.
_LEAST, _MOST_BUFFERS = 1 << 20, 1000
#: The minimum part of the shared memory that is used by the main process.
_LEAST_PART = 0.75
#: The number of bytes that are replaced at a time. Other Python threads can run between two pieces.
_PIECE = 4 << 20
#: The maximum number of seconds to wait until all other threads sleep. Idle threads of OpenMP still run for a moment.
_PATIENCE = 0.25
#: The header of a block in glibc's allocator: the size of the gap before the block, and the size of the block with
#: three flags. For a block that is a mapping of its own, only the flag `_IS_MAPPED` is set.
_HEADER = struct.Struct("@NN")
_FLAGS, _IS_MAPPED = 7, 2


class Span(NamedTuple):
    """The memory of a buffer."""

    start: int
    length: int


def replaceable(buffers: Sequence[bytes | memoryview]) -> dict[int, Span]:
    """Returns the buffers whose pages can be replaced, by their index."""
    large = sorted((i for i, one in enumerate(buffers) if len(one) >= _LEAST), key=lambda i: -len(buffers[i]))
    found: dict[int, Span] = {}
    if not large or not _has_glibc():
        return found
    with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
        for index in large[:_MOST_BUFFERS]:
            span, block = _location(buffers[index])
            if _is_own_mapping(memory.fileno(), block, sum(span)) and not _is_pinned(buffers[index], span):
                found[index] = span
    return found


def use_pages(descriptor: int, size: int, spans: Sequence[tuple[Span, int]]) -> None:
    """Replaces the pages of buffers by pages of a sealed memory file.

    Args:
        descriptor: the descriptor of the file.
        size: the size of the file.
        spans: the buffers, each with its offset in the file. Addresses and offsets are equal within a page.
    """
    different = set(spans)
    if sum(span.length for span, _ in different) < _LEAST_PART * size:
        return
    for span, offset in different:
        for start, length in _pieces(span):
            deadline = time.monotonic() + _PATIENCE
            while True:
                try:
                    replace_pages(descriptor, offset + start - span.start, start, length)
                    break
                except BlockingIOError:  # another thread is running
                    if time.monotonic() >= deadline:
                        return
                    time.sleep(0.001)
                except OSError:  # the process has too many mappings
                    return


def _pieces(span: Span) -> Iterator[Span]:
    """Yields the whole pages of a buffer in pieces."""
    page = mmap.PAGESIZE
    first, last = -(-span.start // page) * page, sum(span) // page * page
    for start in range(first, last, _PIECE):
        yield Span(start, min(_PIECE, last - start))


def _has_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError, OSError):
        return False


def _location(buffer: bytes | memoryview) -> tuple[Span, int]:
    """Returns the memory of a buffer, and the address of the block that contains it."""
    if isinstance(buffer, bytes):
        return Span(id(buffer) + bytes.__basicsize__ - 1, len(buffer)), id(buffer)  # the contents follow the header
    import numpy

    start: int = numpy.frombuffer(buffer, numpy.uint8).ctypes.data
    owner: Any = buffer.obj
    while isinstance(owner, numpy.ndarray) and owner.base is not None:
        owner = owner.base
    block = storage_address(owner)
    if block is None:
        block = owner.ctypes.data if isinstance(owner, numpy.ndarray) else start
    return Span(start, buffer.nbytes), block


def _is_own_mapping(memory: int, block: int, end: int) -> bool:
    """Returns whether glibc has allocated a block as a mapping of its own, which reaches to the address `end`.

    Args:
        memory: the descriptor of this process's memory. Reading through the descriptor fails if there is no header.
    """
    try:
        gap, size = _HEADER.unpack(os.pread(memory, _HEADER.size, block - _HEADER.size))
    except (OSError, struct.error):
        return False
    first, last = block - _HEADER.size - gap, block - _HEADER.size + size - _IS_MAPPED
    is_whole = first % mmap.PAGESIZE == 0 and last % mmap.PAGESIZE == 0
    return bool(size & _FLAGS == _IS_MAPPED and is_whole and end <= last)


def _is_pinned(buffer: bytes | memoryview, span: Span) -> bool:
    """Returns whether torch has registered the memory for transfers to a GPU, which access the physical pages."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.from_numpy(bytes_at((span.start, sum(span)), buffer)).is_pinned())
