"""What a child gets across a process boundary, whatever the start method: its name, shared memory, the pipe graph.

Role: under fork a child inherits everything; under spawn and forkserver descriptors travel by multiprocessing's own
passing, and the graph as one pickle in anonymous shared memory, made once for all children. To a child that another
process forks they travel in a `Parcel`.

Under spawn and forkserver a child imports the program's main module before any code of this package runs in it, which
may take long. multiprocessing sends the name of its process ahead of everything else, so the name brings along what
must not wait (`ChildName`): the child watches main, and searches no cycles.
"""

from __future__ import annotations

import gc
import mmap
import operator
import os
import pickle
import re
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import process, reduction
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from typing import Any, Generic, TypeVar

from torchdata._native import BellBoard, Link, OwnedDescriptor, StatsBoard, is_portable, system_lacks

__all__ = [
    "EARLY_THRESHOLD",
    "PREFIX",
    "ChildName",
    "Handle",
    "Parcel",
    "SharedPickle",
    "end_early_watch",
    "main_without_file",
    "unpack",
    "warn_of_lacks",
    "why_unpicklable",
]

# -- the first acts of a child that inherits nothing -------------------------------------------------------------------

#: What the names of child processes begin with.
PREFIX = "torchdata "

#: New objects that make a child search for cycles while it starts: three times what importing torch makes.
EARLY_THRESHOLD = 1_000_000
#: The thread that watches main until the engine's own does. It carries the event that ends it.
_WATCHER = "torchdata-early-watch"
#: Ends the child within a tenth of a second after main; if nothing else tells, after its parent. If there is no
#: room for a thread, the child learns of main's end after its imports, as it does of the missing room.
_WATCH = f"""
import os, select, threading

def has_ended():
    return bool(ending.poll(0)) if ending else os.getppid() != parent

def watch():
    while not over.wait(0.1):
        if has_ended():
            os._exit(1)
    if ending:
        os.close(descriptor)

parent, ending, over = os.getppid(), None, threading.Event()
try:
    descriptor = os.pidfd_open(main)
    ending = select.poll()
    ending.register(descriptor)
except ProcessLookupError:
    os._exit(1)
except (AttributeError, OSError):
    pass
thread = threading.Thread(target=watch, name={_WATCHER!r}, daemon=True)
thread.over = over
try:
    thread.start()
except RuntimeError:
    if ending:
        os.close(descriptor)
"""


#: The folder in which the program was started.
_ORIGINAL_FOLDER: str = getattr(process, "ORIGINAL_DIR", None) or ""
#: Prevents the import of a main module without a file: multiprocessing skips the import if the path is already set.
_LEAVE_MAIN_OUT = "import sys; sys.modules['__main__'].__file__ = path"


def main_without_file() -> str | None:
    """Returns the path from which children would import the program if that file does not exist, else None.

    A program that is read from standard input has no file, but Python names its file "<stdin>".
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or file is None:
        return None
    path = os.path.normpath(os.path.join(_ORIGINAL_FOLDER, file))  # as multiprocessing does
    return None if os.path.isfile(path) else path


class ChildName(str):
    """The name of a child's process, which does the work that must not wait when it is unpickled in the child.

    It is unpickled before the child imports the main module, and with it the imports of the user's program. It uses the
    standard library alone, as the child may not be able to import this package yet. Anywhere else it is pickled as the
    string that it is.

    The child is made to end with main: one that imports for a minute would outlive main for as long. And its threshold
    of collecting cyclic garbage is raised: if the program imports torch, starting two children by spawn takes 2.8 s
    of their processors' time with that and 3.6 s without (medians of 4 alternating runs). A child of a program that has
    no file does not import it.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        start: Any = get_spawning_popen()
        # On its way elsewhere, in a log record perhaps; or with the process object, behind the program's import.
        if start is None or getattr(start, "_was_told", False):
            return str, (str(self),)
        start._was_told = True
        first = [_Call(exec, _WATCH, {"main": os.getpid()}), _Call(gc.set_threshold, EARLY_THRESHOLD)]
        if (path := main_without_file()) is not None:
            first.append(_Call(exec, _LEAVE_MAIN_OUT, {"path": path}))
        return operator.getitem, ((*first, str(self)), -1)


class _Call:
    """A call that is done where this is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def end_early_watch() -> None:
    """Ends the thread that has watched main, so that there is room for the engine's own."""
    for thread in threading.enumerate():
        if thread.name == _WATCHER:
            thread.over.set()  # type: ignore[attr-defined]
            thread.join()
            for _ in range(100):  # the system counts it a moment longer
                if not os.path.exists(f"/proc/self/task/{thread.native_id}"):
                    break
                time.sleep(0.001)


# -- what it works with -----------------------------------------------------------------------------------------------

SharedT = TypeVar("SharedT", Link, BellBoard, StatsBoard)

#: The message of `pickle` for a function that it does not find in the program.
_MISSING_IN_MAIN = re.compile(r"attribute '([^']+)' on <module '__(?:mp_)?main__'")
#: The buffers of a `SharedPickle` begin at multiples of this many bytes.
_ALIGNMENT = 64
#: The length of the list of places, at the end of a `SharedPickle`.
_LENGTH = struct.Struct("<Q")
#: Whether it was said that the system is not whole.
_warned = False


class Handle(Generic[SharedT]):
    """A link, or a board of bells or counters, on its way to a child.

    Args:
        shared: the link or board.
        spare: makes a private one for a child that finds the shared memory damaged; None where that is an error.
    """

    def __init__(self, shared: SharedT, spare: Callable[[], SharedT] | None = None) -> None:
        self.shared: SharedT = shared
        self.spare: Callable[[], SharedT] | None = spare

    def __reduce__(self) -> Any:
        return _attach, (type(self.shared), reduction.DupFd(self.shared.fileno()), self.spare)


def _attach(kind: type[SharedT], duplicate: Any, spare: Callable[[], SharedT] | None) -> Handle[SharedT]:
    try:
        return Handle(kind.attach(duplicate.detach()), spare)
    except RuntimeError:
        if spare is None:
            raise
        return Handle(spare(), spare)


def warn_of_lacks() -> None:
    """Says, once in a process, that its system is not whole and what that costs."""
    global _warned
    if system_lacks() and not _warned:
        _warned = True
        warnings.warn(
            "this system has no memfd_create or no pidfd_open, or forbids them (an old kernel, or a sandbox that "
            "filters system calls), so workers share memory through temporary files, and wait by short naps: slower, "
            "and limited by the file system that TMPDIR names. TORCHDATA_PORTABLE=1 asks for that without this warning",
            RuntimeWarning,
            stacklevel=2,
        )


class SharedPickle:
    """A pickle in anonymous shared memory, which any number of children load.

    The buffers of arrays and tensors follow the pickle. Each child maps this memory privately: its arrays and tensors
    are views of the memory that all children share, and a page is copied when a child writes to it.

    Args:
        pickled: the pickle.
        buffers: its buffers.
    """

    def __init__(self, pickled: bytes, buffers: Sequence[memoryview] = ()) -> None:
        if not is_portable() and hasattr(os, "memfd_create"):
            self._owned = OwnedDescriptor(os.memfd_create("torchdata-graph"))
        else:
            with tempfile.TemporaryFile() as file:
                self._owned = OwnedDescriptor(os.dup(file.fileno()))
        # Written, not mapped: if there is no room that is an error rather than a SIGBUS.
        with open(self._owned.fileno(), "wb", closefd=False) as file:
            places, parts = [], [memoryview(pickled), *buffers]
            for part in parts:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                places.append((file.tell(), file.tell() + len(part)))
                file.write(part)
            index = pickle.dumps(places)
            file.write(index)
            file.write(_LENGTH.pack(len(index)))

    def load(self, loads: Callable[[memoryview, list[memoryview]], Any]) -> Any:
        """Unpickles the content.

        Args:
            loads: makes an object of a pickle and its buffers.
        """
        whole = memoryview(mmap.mmap(self._owned.fileno(), 0, access=mmap.ACCESS_COPY))
        (length,) = _LENGTH.unpack(whole[-_LENGTH.size :])
        places = pickle.loads(whole[-_LENGTH.size - length : -_LENGTH.size])
        pickled, *buffers = (whole[start:end] for start, end in places)
        try:
            return loads(pickled, buffers)
        except AttributeError as error:
            if found := _MISSING_IN_MAIN.search(str(error)):
                error.add_note(
                    f'{found[1]!r} is defined under `if __name__ == "__main__":`, or by it, and a worker that '
                    "imports the program (start methods 'spawn' and 'forkserver') does not run that: define it "
                    "above, at the top level of the program"
                )
            raise

    @classmethod
    def adopt(cls, descriptor: int) -> SharedPickle:
        """The one behind a descriptor, which it closes from now on."""
        shared = cls.__new__(cls)
        shared._owned = OwnedDescriptor(descriptor)
        return shared

    def fileno(self) -> int:
        """Its descriptor."""
        return self._owned.fileno()

    def close(self) -> None:
        """Closes the descriptor; the memory goes with the last one. It is closed with the object, too."""
        self._owned.close()

    def __reduce__(self) -> Any:
        return _adopt, (reduction.DupFd(self._owned.fileno()),)


def _adopt(duplicate: Any) -> SharedPickle:
    return SharedPickle.adopt(duplicate.detach())


class Parcel:
    """Contents on their way to a child that another process forks: pickled, and the descriptors in them.

    multiprocessing takes it for what starts a process, and has it pass descriptors, locks and queues on.

    Args:
        contents: what is pickled, each for itself.
    """

    def __init__(self, *contents: Any) -> None:
        self._descriptors: list[int] = []
        set_spawning_popen(self)  # type: ignore[arg-type] # it has what is called
        try:
            pickled = [bytes(reduction.ForkingPickler.dumps(one)) for one in contents]
        finally:
            set_spawning_popen(None)
        self._shared = SharedPickle(pickle.dumps(pickled))

    def duplicate_for_child(self, descriptor: int) -> int:
        """Takes a descriptor along; multiprocessing calls it."""
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    def DupFd(self, index: int) -> Any:
        """What stands for a descriptor in the pickle; multiprocessing calls it."""
        return _Received(index)

    def descriptors(self) -> list[int]:
        """What is to be passed to the child, for `unpack`."""
        return [*self._descriptors, self._shared.fileno()]

    def close(self) -> None:
        """Closes what is its own, once the child has it."""
        self._shared.close()


#: The descriptors that have come with a parcel.
_received: list[int] = []


class _Received:
    """A descriptor that comes with a parcel."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """The descriptor in the process that has got it."""
        return _received[self._index]


def unpack(descriptors: Sequence[int]) -> Iterator[Any]:
    """The contents of a parcel, each of which is unpickled when it is asked for."""
    *_received[:], shared = descriptors
    pickled = SharedPickle.adopt(shared)
    contents = pickled.load(lambda parcel, _: pickle.loads(parcel))
    pickled.close()
    yield from map(pickle.loads, contents)


def why_unpicklable(pipes: list[Any], start_method: str) -> str:
    """A sentence that names the attribute that keeps the graph from being pickled, and what to do."""
    from torchdata._by_value import dumps

    remedy = (
        "make it picklable: open files, locks and connections in the worker, inside `__iter__`, or leave them out by "
        "`__getstate__`"
    )
    for pipe in pipes:
        for name, value in vars(pipe).items():
            if any(value is other for other in pipes):
                continue
            try:
                dumps(value)
            except Exception as error:
                return (
                    f"attribute {name!r} of the pipe {type(pipe).__name__} cannot be pickled, which start method "
                    f"{start_method!r} needs ({type(error).__name__}: {error}); {remedy}"
                )
    return f"the pipeline cannot be pickled, which start method {start_method!r} needs; {remedy}"
