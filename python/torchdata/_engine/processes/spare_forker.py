"""A process that is kept since a loader has begun, and forks others in the places of children that have died.

Role: start method "fork" copies main as it is, and by the time that a child dies main may have threads that hold locks,
and CUDA, of which a forked process can make no use. So main forks one process right behind its children. It has one
thread, runs nothing of the user's, and waits at a socket; what is to be forked later is forked from there. Start
methods "spawn" and "forkserver" need none of this.

A forked process is not main's child: the forking process reaps it, but only when it is asked how that has ended, so its
number is not another's before. It ends with main's end of the socket, or with main. A forked process waits for main's
leave to begin, so that one of which main has never heard, as the forking process was killed in between, ends at once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, Protocol

from torchdata._engine.processes.bootstrap import ChildName
from torchdata._engine.processes.child_setup import CommonSetup
from torchdata._engine.processes.crossing import close_inherited_pipes
from torchdata._engine.processes.fork import ForkedChild
from torchdata._engine.processes.interrupts import interrupts_blocked
from torchdata._engine.processes.pidfd import Pidfd, is_ready
from torchdata._engine.processes.start import start_all
from torchdata._native import Link, StatsBoard, drop_inherited

__all__ = ["ForkedProcess", "SpareForker"]

#: Longest message, and most descriptors in one: a limit of the system's, rounded down.
_LONGEST, _DESCRIPTORS = 4096, 200
#: Seconds between two looks at whether a reply has come to somebody else, and at who is gone.
_LOOK = 0.05
_GONE = (
    "the process that forks others in the places of those that die has ended: somebody has killed it. Main cannot fork "
    "in its stead, as it may have threads by now"
)
_STUCK = (
    "the process that forks others in the places of those that die has not answered for {:.0f} s, and was ended: it "
    "was stopped (SIGSTOP, a debugger, the freezer of a container), or the machine is far too busy"
)
#: Seconds within which it has to answer. Forking a process of hundreds of GB takes some.
_PATIENCE = {"fork": 30.0, "status": 5.0}
#: What main says to a forked process that it knows.
_LEAVE = b"1"
#: How long the forking process may take to end.
_ENDING = 1.0


class Setup(Protocol):
    """What is asked of the setup of a child."""

    name: str
    common: CommonSetup

    def shared(self) -> list[Link | StatsBoard]:
        """What is the child's own, and whose descriptors travel to the process that takes its place."""

    def attached(self, descriptors: Sequence[int], common: CommonSetup) -> Any:
        """The setup in that process."""


#: What runs in a process that is forked: called with its setup.
Target = Callable[[Any], object]


class SpareForker:
    """Main's side of the forking process. Threads and signal handlers may ask it at the same time.

    Args:
        setups: by child, what each is set up with; what is its own is told with each request.
        target: what is called with the setup in the forked process.
    """

    def __init__(self, setups: Sequence[Setup], target: Target) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        arguments = (theirs, self._socket, list(setups), target, self._owner)
        self._process = ForkedChild("the forking process", "torchdata forking process", _serve, arguments, daemon=False)
        self._numbers = itertools.count()
        self._replies: dict[int, Any] = {}
        # Nobody takes it in a forked child; a handler may, while the thread that it interrupts has it.
        self._lock = threading.RLock()
        try:
            start_all([self._process], "fork")
            self._process.note_descriptor(self._socket.fileno())
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def ask(self, what: str, *content: Any, descriptors: Sequence[int] = ()) -> Any:
        """Asks for something, and waits for the reply.

        Raises:
            OSError: the forking process has ended, does not answer, or could not do it.
        """
        if os.getpid() != self._owner:
            raise ProcessLookupError("the forking process belongs to the parent of this process")
        with self._lock:
            number, deadline = next(self._numbers), time.monotonic() + _PATIENCE[what]
            pieces = [descriptors[i : i + _DESCRIPTORS] for i in range(0, len(descriptors), _DESCRIPTORS)]
            try:
                for piece in pieces:
                    self._send(None, piece, deadline)
                self._send((number, what, *content), (), deadline)
                while number not in self._replies:
                    self._receive()
                    self._check(deadline)
            except TimeoutError as error:
                self._process.kill()
                raise TimeoutError(errno.ETIMEDOUT, _STUCK.format(_PATIENCE[what])) from error
            except ConnectionError as error:
                raise ConnectionResetError(errno.ECONNRESET, _GONE) from error
            reply = self._replies.pop(number)
        if isinstance(reply, OSError):
            raise reply
        return reply

    def _check(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise TimeoutError

    def _send(self, message: Any, descriptors: Sequence[int], deadline: float) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [pickle.dumps(message)], descriptors)
                return
            except BlockingIOError:
                is_ready(self._socket.fileno(), _LOOK, select.POLLOUT)
                self._check(deadline)

    def _receive(self) -> None:
        """Takes a reply, if one comes soon."""
        if not is_ready(self._socket.fileno(), _LOOK):
            return
        try:
            message = self._socket.recv(_LONGEST)
        except BlockingIOError:  # a handler has taken it
            return
        if not message:
            raise ConnectionResetError
        number, reply = pickle.loads(message)
        self._replies[number] = reply

    def close(self) -> None:
        """Ends the forking process, once it has nothing to look after; what it has forked is left alone."""
        if os.getpid() != self._owner:
            return
        self._socket.close()
        if not self._process.wait(_ENDING):
            self._process.kill()
            self._process.wait(_ENDING)
        if self._process.ended:
            self._process.close()


class ForkedProcess:
    """One process that is forked there, as `ChildProcess` knows processes.

    Args:
        forker: who forks it.
        index: which child it is.
        setup: what it is set up with.
    """

    def __init__(self, forker: SpareForker, index: int, setup: Setup) -> None:
        self._forker = forker
        self._index = index
        self._setup = setup
        self.pid: int | None = None
        #: Whether nobody can tell any more how it has ended.
        self.is_lost = False
        self._code: int | None = None
        self._watch: Pidfd | None = None

    def start(self) -> None:
        """Has it forked."""
        leave, ours = os.pipe()
        try:
            descriptors = [*(one.fileno() for one in self._setup.shared()), leave]
            self.pid = self._forker.ask("fork", self._index, descriptors=descriptors)
            self._watch = Pidfd(self.pid or 0)
            with contextlib.suppress(BrokenPipeError):  # it has died already
                os.write(ours, _LEAVE)
        finally:
            os.close(leave)
            os.close(ours)

    @property
    def exitcode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, and where that `is_lost`."""
        watch = self._watch
        if self._code is None and not self.is_lost and watch and (watch.descriptor < 0 or watch.has_ended):
            try:
                self._code = self._forker.ask("status", self.pid)
            except OSError:
                if watch.has_ended:
                    self._code = watch.reap()
                    self.is_lost = self._code is None
        return self._code

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when it ends; -1 where the system has none."""
        return -1 if self._watch is None else self._watch.descriptor

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self.exitcode is None and not self.is_lost and self._watch is not None:
            self._watch.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Gives its descriptor back."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self.is_lost = self._code is None


# -- what runs in the forking process ----------------------------------------------------------------------------------


def _serve(own: socket.socket, mains: socket.socket, setups: list[Setup], target: Target, main_pid: int) -> None:
    """The target of the forking process."""
    setups[0].common.signals.leave_to_main()
    mains.close()
    close_inherited_pipes()
    drop_inherited([], setups[0].common.bells.shared)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where main ignores it, no exit code could be had
    forking = _ForkingProcess(own, setups, target)
    main = Pidfd(main_pid).descriptor
    with contextlib.suppress(ConnectionError):
        while _wait(own, main, main_pid) and forking.serve():
            pass
    os._exit(0)  # at once: what it has forked ends with main


class _ForkingProcess:
    """What the forking process has: those that it has forked, and descriptors for the next one."""

    def __init__(self, own: socket.socket, setups: list[Setup], target: Target) -> None:
        self._own = own
        self._setups = setups
        self._target = target
        self._children: dict[int, Any] = {}
        #: The exit codes of those that have ended.
        self._codes: dict[int, int] = {}
        self._descriptors: list[int] = []

    def serve(self) -> bool:
        """Does what is asked; False where nobody asks any more."""
        message, descriptors, _, _ = socket.recv_fds(self._own, _LONGEST, _DESCRIPTORS)
        self._descriptors += descriptors
        request = pickle.loads(message) if message else None
        if request is not None:
            number, what, *content = request
            try:
                reply: Any = self._fork(*content) if what == "fork" else self._status(*content)
            except OSError as error:
                reply = OSError(error.errno, error.strerror)
            self._own.send(pickle.dumps((number, reply)))
        return bool(message)

    def _fork(self, index: int) -> int:
        setup = self._setups[index]
        descriptors, self._descriptors = self._descriptors, []
        arguments = (setup, self._target, descriptors, self._own)
        child = get_context("fork").Process(
            target=_run, args=arguments, name=ChildName(f"torchdata {setup.name}"), daemon=True
        )
        try:
            with interrupts_blocked():
                child.start()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        assert child.pid is not None
        self._children[child.pid] = child
        self._codes.pop(child.pid, None)
        return child.pid

    def _status(self, pid: int) -> int | None:
        """The exit code of a child; None while it runs.

        Asked twice where threads ask side by side, or where Ctrl-C has cut off the wait for the reply.
        """
        child = self._children.get(pid)
        if child is None:
            return self._codes[pid]
        code: int | None = child.exitcode
        if code is not None:
            self._codes[pid] = code
            self._children.pop(pid).close()
        return code


def _wait(own: socket.socket, main: int, main_pid: int) -> bool:
    """Waits for a request; False where main is gone."""
    poll = select.poll()
    poll.register(own, select.POLLIN)
    if main >= 0:
        poll.register(main, select.POLLIN)
    while os.getppid() == main_pid:
        ready = [descriptor for descriptor, _ in poll.poll(None if main >= 0 else 1000)]
        if ready:
            return main not in ready
    return False


def _run(setup: Setup, target: Target, descriptors: list[int], own: socket.socket) -> None:
    """The target of a process that takes the place of a child."""
    own.close()
    *shared, leave = descriptors
    if os.read(leave, 1) != _LEAVE:
        os._exit(0)
    os.close(leave)
    target(setup.attached(shared, replace(setup.common, is_child_of_main=False)))
