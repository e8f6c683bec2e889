"""Lets a separate process fork children, because a main process with CUDA or threads cannot be forked safely.

With start method "fork", the main process first forks a loader's children, and then the forking process. The forking
process later forks new processes, which replace exited children. If the main process itself forked a process later,
this process might hang or fail, because the main process may have started threads or CUDA in the meantime. The forking
process has one thread, runs no user code, and exits with the loader.

With start method "forkserver", the main process spawns one forking process, which imports the program once and forks
the children of all loaders. Multiprocessing's fork server is not used, because it also forks the user's processes,
and these must not start with blocked signals, unlike the engine's children. If a handled signal such as Ctrl-C arrives
while the forking process starts, the main process ends the forking process, and all requests to it fail.

A forked child is not a child of the main process. The main process monitors a forked child through a pidfd, and
requests the child's exit code from the forking process. If the forking process exits, its children continue to run, but
their exit codes remain unknown.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context, popen_spawn_posix, spawn, util
from multiprocessing.context import BaseContext
from typing import Any

from torchdata._engine.processes.crossing import PREFIX, ChildName, Parcel
from torchdata._engine.processes.exit_messages import NO_GUARD, UNGUARDED
from torchdata._engine.processes.fork import ForkedChild, fork_all
from torchdata._engine.processes.forking_process import DESCRIPTORS, LEAVE, LONGEST, REFUSAL, serve
from torchdata._engine.processes.interrupts import StartGivenUp, interrupt_waits
from torchdata._engine.processes.process import ChildProcess, close_here, is_ready, keep_from_children, reap
from torchdata._engine.processes.shutdown import KILLED
from torchdata._native import BellBoard, HeldLock
from torchdata._threads import OUT_OF_TASKS

_POLL_INTERVAL = 0.02
_NAME, _PROCESS_NAME = "the forking process", f"{PREFIX}forking process"
_ENDED = "the forking process has ended: "
_KILLED = f"{_ENDED}it was killed"
_NO_THREADS = ". The main process cannot fork instead, because it may have started threads since"
_NOT_UP = f"{_ENDED}see its output above. Either the program's main module has failed there, or {OUT_OF_TASKS}"
_STUCK = (
    "the forking process was killed, because it did not reply within {:.0f} s: it was stopped (SIGSTOP, "
    "a debugger, the freezer of a container), or the machine is far too busy"
)
#: The maximum number of seconds until a running forking process answers; forking a process of hundreds of GB takes some
#: time.
_TIMEOUTS = {"fork": 30.0, "status": 5.0}
_ENDING = 1.0


class ForkingProcess:
    """A `ForkingProcess` may be used by any thread, and by signal handlers.

    Args:
        inherits: whether the forking process is a copy of the main process; if so, the forking process is ready
            immediately.
        launch: a function that creates the process, given the two ends of the socket for communication.
    """

    #: If a signal has arrived and the start of the forking process takes more than `_grace` seconds, the start is
    #: abandoned. `_grace` doubles after each abandoned start, so that a later start succeeds even if signals arrive
    #: continuously.
    _grace = _POLL_INTERVAL

    def __init__(self, inherits: bool, launch: Callable[[socket.socket, socket.socket], ChildProcess]) -> None:
        self._owner = os.getpid()
        self.inherits = inherits
        self.is_over = False
        #: Whether the forking process has exited during its start, so that another forking process would probably fail
        #: in the same way.
        self.has_failed = False
        self._up_since = time.monotonic() if inherits else None
        self._numbers = itertools.count()
        self._replies: dict[int, Any] = {}
        # The lock is reentrant, because a signal handler may acquire the lock in the thread that already holds it.
        self._lock = threading.RLock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._process = launch(theirs, self._socket)
            keep_from_children(self._socket)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        # This exit handler has a low priority, so that it runs after the handlers that shut loaders down.
        self._at_exit = util.Finalize(None, self.close, exitpriority=0)

    @classmethod
    def forked(cls, inherited: Sequence[Any], bells: BellBoard, deliver: Callable[[], object]) -> ForkingProcess:
        """Forks a forking process from this process. The caller must defer signals while `forked` runs. `deliver`
        delivers pending signals. If `deliver` raises an exception, the new forking process is killed. `inherited`
        contains the objects that children receive through `Inherited`.
        """

        def launch(theirs: socket.socket, ours: socket.socket) -> ChildProcess:
            def run() -> None:
                serve(theirs, main, mains=ours, bells=bells, inherited=inherited)

            main = os.getpid()
            process = ForkedChild(_NAME, _PROCESS_NAME, run, ())
            try:
                fork_all([process], lambda number: None, deliver)
            except BaseException:
                _end_process(process)
                raise
            return process

        return cls(True, launch)

    @classmethod
    def spawned(cls, modules: Sequence[str]) -> ForkingProcess:
        """Spawns a forking process, which imports `modules` before it forks children."""

        def launch(theirs: socket.socket, _ours: socket.socket) -> ChildProcess:
            arguments = theirs, os.getpid(), None, None, (), modules
            child = SpawnedChild(get_context("spawn"), _NAME, _PROCESS_NAME, serve, arguments)
            child.start()
            return child

        return cls(False, launch)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ask(self, what: str, *content: Any, descriptors: Sequence[int] = ()) -> Any:
        """Sends a request to the forking process, and waits for the reply.

        Raises:
            OSError: the forking process has ended, does not answer, or failed.
            RuntimeError: the user's program lacks a `__main__` guard, and would start processes while it is imported.
            StartGivenUp: a signal was pending, so the start of the forking process was abandoned.
        """
        if os.getpid() != self._owner:
            raise ProcessLookupError("the forking process belongs to the parent of this process")
        with HeldLock(self._lock):
            number, began = next(self._numbers), time.monotonic()
            pieces = [descriptors[i : i + DESCRIPTORS] for i in range(0, len(descriptors), DESCRIPTORS)]
            try:
                for piece in pieces:
                    self._send(None, piece, what, began)
                self._send((number, what, *content), (), what, began)
                while number not in self._replies:
                    self._receive()
                    self._check(what, began)
            except TimeoutError as error:
                self._end()
                raise TimeoutError(errno.ETIMEDOUT, _STUCK.format(_TIMEOUTS[what])) from error
            except StartGivenUp:
                ForkingProcess._grace *= 2
                self._end()
                raise
            except ConnectionError:
                raise self._exit_error() from None
            reply = self._replies.pop(number)
        if isinstance(reply, OSError):
            raise reply
        return reply

    def _check(self, what: str, began: float) -> None:
        now = time.monotonic()
        if self.is_over:
            raise ConnectionResetError
        if self._up_since is None:
            if interrupt_waits() and now >= began + ForkingProcess._grace:
                raise StartGivenUp
        elif now >= max(began, self._up_since) + _TIMEOUTS[what]:
            raise TimeoutError

    def _send(self, message: Any, descriptors: Sequence[int], what: str, began: float) -> None:
        while True:
            self._check(what, began)
            try:
                socket.send_fds(self._socket, [pickle.dumps(message)], descriptors)
                return
            except BlockingIOError:
                is_ready(self._socket.fileno(), _POLL_INTERVAL, select.POLLOUT)

    def _receive(self) -> None:
        if not is_ready(self._socket.fileno(), _POLL_INTERVAL):
            return
        try:
            message = self._socket.recv(LONGEST)
        except BlockingIOError:  # a signal handler has received the reply
            return
        if not message:
            raise ConnectionResetError
        number, reply = pickle.loads(message)
        if number is not None:
            self._replies[number] = reply
        elif self._up_since is None:
            self._up_since, ForkingProcess._grace = time.monotonic(), _POLL_INTERVAL

    def _exit_error(self) -> Exception:
        if not self.is_over:
            self.has_failed = self._up_since is None
            self._process.wait(_ENDING)
            self._end()
        if self._process.exitcode == NO_GUARD:
            return RuntimeError(UNGUARDED)
        text = _NOT_UP if self.has_failed else _KILLED + _NO_THREADS * self.inherits
        return ConnectionResetError(errno.ECONNRESET, text)

    def has_ended(self) -> bool:
        if not self.is_over and self._process.ended:
            with HeldLock(self._lock):
                self._end()
        return self.is_over

    def close(self) -> None:
        """Ends the forking process. Its children continue to run."""
        if os.getpid() != self._owner:
            return
        with HeldLock(self._lock):
            if not self.is_over:
                close_here(self._socket)
                if self._up_since is not None:
                    self._process.wait(_ENDING)
                self._end()

    def _end(self) -> None:
        self.is_over = True
        self._at_exit.cancel()
        close_here(self._socket)
        _end_process(self._process)

    def leave(self) -> None:
        self._socket.close()


def _end_process(process: ChildProcess) -> None:
    process.kill()
    if process.wait(KILLED):
        process.close()


_of_program: ForkingProcess | None = None
# A forked child replaces this lock, because another thread may have held it during the fork.
_finding = threading.RLock()


def forker_of_program(modules: Sequence[str]) -> ForkingProcess:
    """Returns the running forking process of this program, or spawns one. A new forking process imports `modules`, so
    that its children share the memory of these modules.
    """
    global _of_program
    with _finding:
        if _of_program is None or _of_program.has_ended():
            _of_program = ForkingProcess.spawned(modules)
        return _of_program


def _leave_to_the_parent() -> None:
    global _of_program, _finding
    _finding = threading.RLock()
    if _of_program is not None:
        _of_program.leave()
        _of_program = None


os.register_at_fork(after_in_child=_leave_to_the_parent)


class SpawnedChild(ChildProcess):
    def __init__(
        self, context: BaseContext, name: str, process_name: str, target: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        super().__init__(name, process_name)
        kind: Any = context.Process  # type: ignore[attr-defined]
        self._new: Any = partial(kind, target=target, args=args, name=ChildName(process_name), daemon=True)

    def _launch(self) -> int:
        pid = self._take_over(popen_spawn_posix.Popen(self._new()))
        self._new = None
        return pid


class RemoteChild(ChildProcess):
    """A child that the forking process forks. The function `find` returns the forking process to use. With
    "forkserver", `find` starts a new forking process if the last one has exited.
    """

    def __init__(
        self,
        find: Callable[[], ForkingProcess],
        name: str,
        process_name: str,
        target: Callable[..., object],
        args: tuple[Any, ...],
    ) -> None:
        super().__init__(name, process_name)
        self._find = find
        self._call: Any = target, args
        self._forker: ForkingProcess | None = None

    def _launch(self) -> int:
        """Requests the fork. If the forking process exits before it replies, the request is sent to a new forking
        process."""
        forker = self._find()
        try:
            pid = self._ask(forker)
        except OSError:
            another = self._find() if forker.is_over and not forker.has_failed else forker
            if another is forker:
                raise
            pid = self._ask(another)
        self._call = None
        return pid

    def _ask(self, forker: ForkingProcess) -> int:
        leave, ours = os.pipe()
        answer = REFUSAL
        try:
            preparation = None if forker.inherits else spawn.get_preparation_data(ChildName(self._process_name))
            with contextlib.closing(Parcel(preparation, self._call)) as parcel:
                pid: int = forker.ask("fork", self._process_name, descriptors=[*parcel.descriptors(), leave])
            self._forker, answer = forker, LEAVE
            self.is_copy_of_main = forker.inherits
            return pid
        finally:
            # The main process always sends an answer to the child. Closing the pipe without an answer would not
            # suffice, because the child cannot detect a closed pipe while another process has a copy of the main
            # process's end.
            with contextlib.suppress(BrokenPipeError):
                os.close(leave)
                os.write(ours, answer)
            os.close(ours)

    def _look(self, pid: int) -> None:
        watch = self._watch
        if self._forker is None or watch is None or (watch.descriptor >= 0 and not watch.has_ended):
            return
        try:
            code = self._forker.ask("status", pid)
        except OSError:
            if not watch.has_ended:
                return
            # The forking process has exited, so the child's parent is now process 1. If the main process is process 1
            # of a container, it can reap the child.
            try:
                code = reap(pid)
            except ChildProcessError:
                code = None
            self.is_orphan, self._has_ended = code is None, True
        if code is not None:
            self.exitcode, self._has_ended = code, True
