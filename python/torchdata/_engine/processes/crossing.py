"""Taking shared memory and pipe graphs across a process boundary, whatever the start method.

Role: under fork a child inherits everything; under spawn and forkserver descriptors travel by multiprocessing's own
passing, and the graph as one pickle in anonymous shared memory, made once for all children. To a child that another
process forks they travel in a `Parcel`.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import process as multiprocessing_process
from multiprocessing import reduction
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from torchdata._native import BellBoard, Link, OwnedDescriptor, StatsBoard, is_portable, system_lacks

__all__ = [
    "Handle",
    "Parcel",
    "SharedPickle",
    "close_inherited_pipes",
    "forget_process",
    "note_descriptor",
    "note_pipes",
    "pickle_graph",
    "started_processes",
    "take_off_list",
    "unpack",
    "warn_of_lacks",
    "why_unpicklable",
]

#: All child processes of all loaders here, and main's ends of the pipes to each: descriptors, and what is behind them.
#: No weak keys: their callbacks are Python code, and what a signal handler raises in one is lost.
_started: dict[BaseProcess, list[tuple[int, tuple[int, int]]]] = {}


def note_pipes(process: BaseProcess) -> None:
    """Notes a process that was started: multiprocessing holds a pipe to it, which later children inherit under fork."""
    # No public attribute holds both ends. If they are not found they stay open until a later child ends.
    finalizer = getattr(getattr(process, "_popen", None), "finalizer", None)
    arguments = getattr(finalizer, "_args", None) or ()
    _started[process] = [(one, _behind(one)) for one in arguments if isinstance(one, int)]


def note_descriptor(process: BaseProcess, descriptor: int) -> None:
    """Notes another descriptor of main's that belongs to a process that was started."""
    _started[process] = [*_started.get(process, []), (descriptor, _behind(descriptor))]


def forget_process(process: BaseProcess) -> None:
    """Notes that a process has ended, and that main's descriptors of it are closed."""
    _started.pop(process, None)


def _behind(descriptor: int) -> tuple[int, int]:
    """The file behind a descriptor: device and file number, of which every pipe has its own."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def started_processes() -> list[BaseProcess]:
    """All child processes of all loaders here, as far as they are in use."""
    return list(_started)


def take_off_list(process: BaseProcess) -> None:
    """Has multiprocessing forget a process, which its exit handler would end or wait for."""
    multiprocessing_process._children.discard(process)  # type: ignore[attr-defined]


def close_inherited_pipes() -> None:
    """In a child: closes main's ends of the pipes to its siblings, and to the children of other loaders."""
    for pipes in list(_started.values()):
        for descriptor, behind in pipes:
            with contextlib.suppress(OSError):  # closed, by a thread that was ending that child
                if _behind(descriptor) == behind:  # else the number has gone to something else since
                    os.close(descriptor)
    _started.clear()


SharedT = TypeVar("SharedT", Link, BellBoard, StatsBoard)


#: The message of `pickle` for a function that it does not find in the program.
_MISSING_IN_MAIN = re.compile(r"attribute '([^']+)' on <module '__(?:mp_)?main__'")
#: Whether it was said that the system is not whole.
_warned = False


class Handle(Generic[SharedT]):
    """A link, or a board of bells or counters, on its way to a child."""

    def __init__(self, shared: SharedT) -> None:
        self.shared: SharedT = shared

    def __reduce__(self) -> Any:
        return _attach, (type(self.shared), reduction.DupFd(self.shared.fileno()))


def _attach(kind: type[SharedT], duplicate: Any) -> Handle[SharedT]:
    return Handle(kind.attach(duplicate.detach()))


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
    """A pickle in anonymous shared memory, which any number of children read without copies of their own."""

    def __init__(self, pickled: bytes) -> None:
        if not is_portable() and hasattr(os, "memfd_create"):
            self._owned = OwnedDescriptor(os.memfd_create("torchdata-graph"))
        else:
            with tempfile.TemporaryFile() as file:
                self._owned = OwnedDescriptor(os.dup(file.fileno()))
        # Written, not mapped: if there is no room that is an error rather than a SIGBUS.
        with open(self._owned.fileno(), "wb", closefd=False) as file:
            file.write(pickled)

    def load(self) -> Any:
        """Unpickles the content."""
        with mmap.mmap(self._owned.fileno(), 0, prot=mmap.PROT_READ) as memory:
            try:
                return pickle.load(io.BytesIO(memory))
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
    contents = pickled.load()
    pickled.close()
    yield from map(pickle.loads, contents)


def _main_cannot_be_imported() -> bool:
    """Whether a child could not import what `__main__` defines (an interactive session, `python -c`)."""
    main = sys.modules.get("__main__")
    return getattr(main, "__spec__", None) is None and not getattr(main, "__file__", None)


def pickle_graph(obj: Any) -> bytes:
    """Pickles what a child needs: by pickle if it can, else by cloudpickle (lambdas, local classes)."""
    if not _main_cannot_be_imported():
        try:
            return pickle.dumps(obj, protocol=5)
        except Exception as error:
            if "inheritance" in str(error):  # locks and queues of multiprocessing travel only while a child is started
                raise
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(obj, protocol=5)
    return pickled


def why_unpicklable(pipes: list[Any], start_method: str) -> str:
    """A sentence that names the attribute that keeps the graph from being pickled, and what to do."""
    import cloudpickle

    remedy = (
        "make it picklable (open files, locks and connections are best opened inside `__iter__`, or left out by "
        "`__getstate__`), or use multiprocessing_context='fork'"
    )
    for pipe in pipes:
        for name, value in vars(pipe).items():
            if any(value is other for other in pipes):
                continue
            try:
                cloudpickle.dumps(value)
            except Exception as error:
                return (
                    f"attribute {name!r} of the pipe {type(pipe).__name__} cannot be pickled, which start method "
                    f"{start_method!r} needs ({type(error).__name__}: {error}); {remedy}"
                )
    return f"the pipeline cannot be pickled, which start method {start_method!r} needs; {remedy}"
