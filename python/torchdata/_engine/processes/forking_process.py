"""The forking process: forks a child for each request of the main process, and reports exit codes.

All signals are blocked, except a SIGTERM that the process sends to itself. A new child inherits the blocked signals,
and receives no signal until it has installed its handlers. A child is reaped only when the main process requests its
exit code, because the main process may signal the child until then.

A child begins only after the main process has confirmed that it knows the child's process id. If the forking process is
killed right after a fork, the main process does not know the new child's process id, and starts another child.
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

from torchdata._engine.processes.crossing import unpack
from torchdata._engine.processes.fork import fork_process
from torchdata._engine.processes.interrupts import block_all_but_own_sigterm
from torchdata._engine.processes.process import Pidfd, close_inherited, close_pipes, watch_the_parent
from torchdata._native import BellBoard, drop_inherited, name_process

#: The maximum length in bytes, and the maximum number of file descriptors, of a message.
LONGEST, DESCRIPTORS = 4096, 200
#: The main process's answer to a new child: LEAVE allows the child to begin, and REFUSAL ends the child.
LEAVE, REFUSAL = b"1", b"0"

_inherited: Sequence[Any] = ()


class Inherited:
    """Unpickling this reference in a child returns an object that the forking process has inherited."""

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
    """Runs until the main process exits or closes the socket.

    Args:
        mains: the main process's end of the socket, if this process has inherited it.
        inherited: the objects that this process has inherited from the main process; an `Inherited` refers to one of
            them by its index.
        modules: the names of modules that are imported for all children if possible.
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
        with contextlib.suppress(Exception):  # each child imports the module itself, and reports the error
            __import__(module)
    # exit codes would be lost if the process ignored SIGCHLD, as the main process may do
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _inherited = inherited
    forking, main = _ForkingProcess(own), Pidfd(main_pid).descriptor
    with contextlib.suppress(ConnectionError):
        forking.reply(None, None)
        while _wait(own, main, main_pid) and forking.serve():
            pass
    os._exit(0)  # children need not be waited for, because they exit with the main process


class _ForkingProcess:
    def __init__(self, own: socket.socket) -> None:
        self._own = own
        self._children: dict[int, Popen] = {}
        self._codes: dict[int, int] = {}
        self._descriptors: list[int] = []

    def serve(self) -> bool:
        """Executes one request; returns False if the main process has closed the socket."""
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
            # an exception, for example a warning that is treated as an error, must not end the forking process
            except Exception as error:
                reply = OSError(errno.ECHILD, f"the forking process failed: {type(error).__name__}: {error}")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self.reply(number, reply)
        return bool(message)

    def reply(self, number: int | None, reply: Any) -> None:
        """`number` is the number of the request; None for the first message, which reports that this process is
        running."""
        self._own.send(pickle.dumps((number, reply)))

    def _fork(self, descriptors: list[int], name: str) -> int:
        child = fork_process(name, _run, (self._own, descriptors))
        close_pipes(child)
        self._children[child.pid] = child
        self._codes.pop(child.pid, None)
        return child.pid

    def _status(self, pid: int) -> int | None:
        """Returns a child's exit code. The main process may request a child's exit code twice, from several threads, or
        after Ctrl-C has interrupted the wait for the first reply.
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
