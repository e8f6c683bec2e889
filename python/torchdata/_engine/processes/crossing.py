"""Passes data to child processes: the process name, shared memory, and the pipe graph.

With "spawn" and "forkserver", multiprocessing passes file descriptors, and all children load one pickle of the graph
from shared memory.

A spawned child imports the program's main module before any code of this package runs. Multiprocessing first sends the
process name (a `ChildName`), and unpickling this name runs the code that must precede the import of the main module.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import mmap
import operator
import os
import pickle
import re
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import process, reduction
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from typing import Any, Generic, TypeAlias, TypeVar

from torchdata._native import BellBoard, Link, OwnedDescriptor, StatsBoard, bytes_in_place, is_portable, system_lacks

PREFIX = "torchdata "

#: The number of new objects after which garbage collection runs while a child starts; importing torch creates about a
#: third of this number.
EARLY_THRESHOLD = 1_000_000
#: This code makes the kernel resume a suspended child when the main process ends, so that the child can exit. The
#: extension has a function for resuming suspended children, but the child cannot import the extension yet.
_CONTINUE = """
import contextlib, signal, sys
with contextlib.suppress(ImportError, OSError):
    import ctypes
    sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGCONT)
"""
_ORIGINAL_FOLDER: str = getattr(process, "ORIGINAL_DIR", None) or ""
#: This code gives the main module a path without a file, so that multiprocessing does not import the module.
_LEAVE_MAIN_OUT = "import sys; sys.modules['__main__'].__file__ = path"


def main_without_file() -> str | None:
    """Returns the path of the program's main module if no file exists at this path; otherwise None."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or file is None:
        return None
    path = os.path.normpath(os.path.join(_ORIGINAL_FOLDER, file))  # multiprocessing computes the same path
    return None if os.path.isfile(path) else path


class ChildName(str):
    """The name of a child process. Unpickling this name in the child runs code that must run before all other code.

    The code that a `ChildName` runs uses only the standard library, because the child may not be able to import this
    package yet. A name that is pickled for other purposes, such as a log record, becomes an ordinary string.

    The code of a `ChildName` raises the threshold of garbage collection, so that spawning two children that import
    torch takes 2.8 s of processor time instead of 3.6 s.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        start: Any = get_spawning_popen()
        # Only the first pickle of a child's name is sent to the child, so only this pickle contains the code to run.
        if start is None or getattr(start, "_has_code", False):
            return str, (str(self),)
        start._has_code = True
        first = [_Call(exec, _CONTINUE, {}), _Call(gc.set_threshold, EARLY_THRESHOLD)]
        if (path := main_without_file()) is not None:
            first.append(_Call(exec, _LEAVE_MAIN_OUT, {"path": path}))
        return operator.getitem, ((*first, str(self)), -1)


class _Call:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


SharedT = TypeVar("SharedT", Link, BellBoard, StatsBoard)

#: A buffer of a pickle. A tuple (shared, start, end) is a part of the memory of another `SharedPickle`.
Buffer: TypeAlias = "bytes | memoryview | tuple[SharedPickle, int, int]"

_MISSING_IN_MAIN = re.compile(r"attribute '([^']+)' on <module '__(?:mp_)?main__'")
#: The alignment in bytes of each buffer in a `SharedPickle`; the header of a `bytes` object fits into this size.
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_SEALS = (
    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL if sys.platform == "linux" else 0
)
#: The number of seconds after which a memory file that cannot be sealed causes an error.
_SEALING = 10.0
_warned = False


class Handle(Generic[SharedT]):
    """Shared memory (a `Link`, `StatsBoard` or `BellBoard`) that is sent to a child.

    Args:
        replacement: a function that replaces damaged shared memory; None if damaged memory raises an error.
    """

    def __init__(self, shared: SharedT, replacement: Callable[[], SharedT] | None = None) -> None:
        self.shared: SharedT = shared
        self.replacement: Callable[[], SharedT] | None = replacement

    def __reduce__(self) -> Any:
        return _attach, (type(self.shared), reduction.DupFd(self.shared.fileno()), self.replacement)


def _attach(kind: type[SharedT], duplicate: Any, replacement: Callable[[], SharedT] | None) -> Handle[SharedT]:
    try:
        return Handle(kind.attach(duplicate.detach()), replacement)
    except RuntimeError:
        if replacement is None:
            raise
        return Handle(replacement(), replacement)


def warn_of_lacks() -> None:
    global _warned
    if system_lacks() and not _warned:
        _warned = True
        warnings.warn(
            "this system has no memfd_create or no pidfd_open, or forbids them (an old kernel, or a sandbox that "
            "filters system calls), so workers share memory through temporary files, and poll while they wait. This is "
            "slower, and limited by the file system of TMPDIR. TORCHDATA_PORTABLE=1 selects this without a warning",
            RuntimeWarning,
            stacklevel=2,
        )


def _seal(descriptor: int) -> None:
    until = time.monotonic() + _SEALING
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return
        except OSError as error:  # EBUSY: the kernel still uses pages of the file, and soon releases them
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
        time.sleep(0.001)


class SharedPickle:
    """A pickle in anonymous shared memory, which any number of children can load.

    Arrays and tensors in a child use the shared memory directly. If a child writes to a page of this memory, the kernel
    gives the child its own copy of the page. Objects that share a read-only buffer, such as the slices of an Arrow
    table, still share the buffer in a child.

    Args:
        buffers: the separate buffers of the pickle, as `bytes` for a `bytes` object, and as memoryviews or parts of
            another `SharedPickle` for any other object.
        modules: the names of large modules that unpickling imports; empty in a child.
    """

    modules: Sequence[str] = ()

    def __init__(self, pickled: bytes, buffers: Sequence[Buffer] = (), modules: Sequence[str] = ()) -> None:
        self.modules = modules
        #: For the pickle and for each buffer: (number of the mapping, start, end, whether the buffer is `bytes`).
        self.spans: list[tuple[int, int, int, bool]] = []
        self._others = list(dict.fromkeys(part[0] for part in buffers if isinstance(part, tuple)))
        is_sealed = not is_portable() and hasattr(os, "memfd_create")
        if is_sealed:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            self._owned = OwnedDescriptor(os.memfd_create("torchdata-graph", flags))
        else:
            import tempfile  # imports many modules

            with tempfile.TemporaryFile() as file:
                self._owned = OwnedDescriptor(os.dup(file.fileno()))
        # The pickle is written by `write`, because `write` raises an error if memory is lacking, whereas access to
        # mapped memory would cause SIGBUS.
        with open(self._owned.fileno(), "wb", closefd=False) as file:
            spans = self.spans
            written: dict[tuple[int, int], tuple[int, int, int, bool]] = {}
            for part in (memoryview(pickled), *buffers):
                if isinstance(part, tuple):
                    spans.append((1 + self._others.index(part[0]), *part[1:], False))
                    continue
                is_bytes = isinstance(part, bytes)
                memory = None if isinstance(part, bytes) or not spans else _immutable_memory(part)
                if memory is None or memory not in written:
                    file.write(b"\0" * (is_bytes * _ALIGNMENT + -file.tell() % _ALIGNMENT))
                    spans.append((0, file.tell(), file.tell() + len(part), is_bytes))
                    file.write(part)
                    file.write(b"\0" * is_bytes)
                else:
                    spans.append(written[memory])
                if memory is not None:
                    written[memory] = spans[-1]
            index = pickle.dumps(spans)
            file.write(index)
            file.write(_LENGTH.pack(len(index)))
        if is_sealed:
            _seal(self._owned.fileno())

    def load(self, loads: Callable[[bytes | memoryview, list[Any]], Any], is_permanent: bool = False) -> Any:
        """Unpickles the object. If `is_permanent` is True, `bytes` objects use the shared memory without a copy, and
        this process never unmaps the memory."""
        whole, *others = (one.map() for one in (self, *self._others))
        (length,) = _LENGTH.unpack(whole[-_LENGTH.size :])
        spans = pickle.loads(whole[-_LENGTH.size - length : -_LENGTH.size])
        pickled, *buffers = (
            _bytes_at(whole, start, end, is_permanent) if is_bytes else (whole, *others)[file][start:end]
            for file, start, end, is_bytes in spans
        )
        try:
            return loads(pickled, buffers)
        except AttributeError as error:
            if found := _MISSING_IN_MAIN.search(str(error)):
                error.add_note(
                    f'{found[1]!r} is defined inside `if __name__ == "__main__":`, or by code in this block, but a '
                    "worker that imports the program (start methods 'spawn' and 'forkserver') does not run the block: "
                    "define the name above the block, at the top level of the program"
                )
            raise

    def map(self) -> memoryview:
        """Maps the shared memory, so that no other process sees writes to the mapping."""
        return memoryview(mmap.mmap(self._owned.fileno(), 0, access=mmap.ACCESS_COPY))

    @classmethod
    def adopt(cls, descriptor: int, others: Sequence[SharedPickle] = ()) -> SharedPickle:
        shared = cls.__new__(cls)
        shared._owned, shared._others = OwnedDescriptor(descriptor), list(others)
        return shared

    def fileno(self) -> int:
        return self._owned.fileno()

    def close(self) -> None:
        self._owned.close()

    def __reduce__(self) -> Any:
        return _adopt, (reduction.DupFd(self._owned.fileno()), self._others)


def _bytes_at(whole: memoryview, start: int, end: int, is_permanent: bool) -> bytes:
    if is_permanent:
        with contextlib.suppress(BufferError):  # a release of Python may have a larger header of `bytes` objects
            return bytes_in_place(whole[start - _ALIGNMENT : end + 1], _ALIGNMENT)
    return bytes(whole[start:end])


def _immutable_memory(part: memoryview) -> tuple[int, int] | None:
    if not part.nbytes or not (part.readonly or type(part.obj).__module__ == "pyarrow.lib"):
        return None
    import numpy

    return numpy.frombuffer(part, numpy.uint8).ctypes.data, part.nbytes


def _adopt(duplicate: Any, others: Sequence[SharedPickle]) -> SharedPickle:
    return SharedPickle.adopt(duplicate.detach(), others)


class Parcel:
    """The pickled objects for a child of the forking process, and the file descriptors that these objects need.

    While the objects are pickled, the parcel replaces multiprocessing's `Popen` object, which collects the file
    descriptors of locks and queues.
    """

    def __init__(self, *contents: Any) -> None:
        self._descriptors: list[int] = []
        set_spawning_popen(self)  # type: ignore[arg-type] # it has the methods that are called
        try:
            pickled = [bytes(reduction.ForkingPickler.dumps(one)) for one in contents]
        finally:
            set_spawning_popen(None)
        self._shared = SharedPickle(pickle.dumps(pickled))

    def duplicate_for_child(self, descriptor: int) -> int:
        """Called by multiprocessing."""
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    def DupFd(self, index: int) -> Any:
        """Called by multiprocessing."""
        return _Received(index)

    def descriptors(self) -> list[int]:
        return [*self._descriptors, self._shared.fileno()]

    def close(self) -> None:
        """Closes the file descriptor of the pickle, after the child has received it."""
        self._shared.close()


_received: list[int] = []


class _Received:
    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return _received[self._index]


def unpack(descriptors: Sequence[int]) -> Iterator[Any]:
    """Yields the objects of a parcel. Each object is unpickled when it is requested."""
    *_received[:], shared = descriptors
    pickled = SharedPickle.adopt(shared)
    contents = pickled.load(lambda parcel, _: pickle.loads(parcel))
    pickled.close()
    yield from map(pickle.loads, contents)
