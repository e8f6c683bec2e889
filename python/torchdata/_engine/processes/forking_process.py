"""The forking process: waits at a socket, forks a child for each request of the main process, and reports exit codes.

Role: runs in a separate process, which the main process has forked or spawned (`forker.py`). The forking process blocks
all signals, so that a new child receives no signals before it has its own signal handling. Only a SIGTERM that the
forking process sends to itself ends it. The forking process reaps a child only when the main process requests the exit
code. A child that is not reaped keeps its id, so the main process may signal the child. The forking process ends when
the main process closes its end of the socket, or exits.

Before a child begins, it waits for permission of the main process. If the forking process is killed between the fork
and its reply, the main process does not know the new child and replaces it. The unknown child gets no permission and
exits immediately, so it cannot receive messages that are meant for its replacement.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import signal
import socket
from collections.abc import Sequence
from multiprocessing import spawn
from multiprocessing.popen_fork import Popen
from typing import Any

from torchdata._engine.processes.crossing import end_early_watch, unpack
from torchdata._engine.processes.fork import fork_process
from torchdata._engine.processes.interrupts import block_all_but_own_sigterm
from torchdata._engine.processes.process import Pidfd, close_inherited, close_pipes, watch_the_parent
from torchdata._native import BellBoard, drop_inherited, name_process

#: Maximum message length, and maximum number of descriptors per message, which is a rounded-down system limit.
LONGEST, DESCRIPTORS = 4096, 200
#: The main process answers a child with `LEAVE` if it knows the process id of the child, and otherwise with `REFUSAL`.
LEAVE, REFUSAL = b"1", b"0"

#: The objects that this process has inherited for its children.
_inherited: Sequence[Any] = ()


class Inherited:
    """A reference, in the main process, to an object that the forking process has inherited. When a child unpickles the
    reference, the child gets the inherited object.

    Args:
        index: the index of the inherited object.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __reduce__(self) -> Any:
        return _of_inherited, (self._index,)


def _of_inherited(index: int) -> Any:
    return _inherited[index]


def serve(
    own: socket.socket,
    main_pid: int,
    mains: socket.socket | None = None,
    bells: BellBoard | None = None,
    inherited: Sequence[Any] = (),
    modules: Sequence[str] = (),
) -> None:
    """Runs the forking process.

    Args:
        mains: the main process's end of the socket, if it was inherited.
        bells: the shared memory for waking other processes, if this process was forked and has inherited it.
        inherited: the objects that `Inherited` represents.
        modules: the names of modules to import for all children, if possible.
    """
    global _inherited
    block_all_but_own_sigterm()
    name_process("td_fork")
    if mains is not None:
        mains.close()
    close_inherited()
    watch_the_parent()
    if bells is not None:
        drop_inherited([], bells)
    for module in modules:
        with contextlib.suppress(Exception):  # the children import the module themselves, and report the error
            __import__(module)
    end_early_watch()  # children must be forked while there is only one thread
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the main process ignores SIGCHLD, exit codes would be lost
    _inherited = inherited
    forking, main = _ForkingProcess(own), Pidfd(main_pid).descriptor
    with contextlib.suppress(ConnectionError):
        forking.reply(None, None)
        while _wait(own, main, main_pid) and forking.serve():
            pass
    os._exit(0)  # this process need not wait, because the children exit with the main process


class _ForkingProcess:
    """The state of the forking process: its children, and the descriptors for the next child."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own
        self._children: dict[int, Popen] = {}
        #: The exit codes of children that have ended.
        self._codes: dict[int, int] = {}
        self._descriptors: list[int] = []

    def serve(self) -> bool:
        """Executes requests; returns False after the last request."""
        message, descriptors, _, _ = socket.recv_fds(self._own, LONGEST, DESCRIPTORS)
        self._descriptors += descriptors
        request = pickle.loads(message) if message else None
        if request is not None:
            number, what, *content = request
            descriptors, self._descriptors = self._descriptors, []
            try:
                reply: Any = self._fork(descriptors, *content) if what == "fork" else self._status(*content)
            except OSError as error:
                reply = OSError(error.errno, error.strerror)
            except Exception as error:  # a warning that was turned into an error must not end this process
                reply = OSError(errno.ECHILD, f"the forking process failed: {type(error).__name__}: {error}")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self.reply(number, reply)
        return bool(message)

    def reply(self, number: int | None, reply: Any) -> None:
        """Replies to a request. A reply without a number reports that the process is running."""
        self._own.send(pickle.dumps((number, reply)))

    def _fork(self, descriptors: list[int], name: str) -> int:
        child = fork_process(name, _run, (self._own, descriptors))
        close_pipes(child)
        self._children[child.pid] = child
        self._codes.pop(child.pid, None)
        return child.pid

    def _status(self, pid: int) -> int | None:
        """Returns the exit code of a child, or None while the child runs. The main process may request the exit code of
        a child twice, because several threads ask, or because Ctrl-C has interrupted the wait for the first reply.
        """
        child = self._children.get(pid)
        if child is None:
            return self._codes[pid]
        code = child.poll()
        if code is not None:
            self._codes[pid] = code
            self._children.pop(pid).close()
        return code


def _wait(own: socket.socket, main: int, main_pid: int) -> bool:
    """Waits for a request; returns False if the main process no longer exists."""
    poll = select.poll()
    poll.register(own, select.POLLIN)
    if main >= 0:
        poll.register(main, select.POLLIN)
    while os.getppid() == main_pid:
        ready = [descriptor for descriptor, _ in poll.poll(None if main >= 0 else 1000)]
        if ready:
            return main not in ready
    return False


def _run(own: socket.socket, descriptors: list[int]) -> None:
    """Runs a child."""
    own.close()
    *parcel, leave = descriptors
    if os.read(leave, 1) != LEAVE:
        os._exit(0)
    os.close(leave)
    contents = unpack(parcel)
    preparation = next(contents)
    if preparation is not None:
        spawn.prepare(preparation)  # this call must precede the unpickling of the program's objects
    target, args = next(contents)
    target(*args)
