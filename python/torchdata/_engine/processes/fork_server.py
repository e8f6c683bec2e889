"""A fork server of the loaders' own, whose children see no signal before they leave it to main.

Role: start method "forkserver" forks every child from one small process. What that has blocked, its children have
blocked from their first moment; nothing else could protect them until code of ours runs there. The server that
multiprocessing keeps for the whole program cannot be had like that: processes of the user's own come out of it too, and
must be interruptible. So the loaders have one to themselves, which preloads the same modules. It ends with main.

Main waits for a child's process number, and the server may first import the program's main module for seconds. A
signal that main handles, Ctrl-C most of all, then ends a server that has not served anybody yet, and with it all that
was asked of it.

Where the server dies, its children live on: main watches them itself then, and does not learn how they end.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection, context, forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any

from torchdata._engine.processes.interrupts import StartGivenUp, interrupt_waits, interrupts_blocked
from torchdata._engine.processes.pidfd import Pidfd
from torchdata._threads import OUT_OF_TASKS

__all__ = ["ForkServerProcess"]

#: Seconds between two looks at whether a signal has come.
LOOK = 0.02
_GONE = (
    "the fork server has ended: see its output above. Either the program's main module has failed there, or "
    f"{OUT_OF_TASKS}"
)


class _Awaited(connection.Connection):
    """One whose words are waited for by a function.

    Args:
        descriptor: of a socket, which stays its owner's.
        wait: called with it before each message.
    """

    def __init__(self, descriptor: int, wait: Callable[[int], None]) -> None:
        super().__init__(descriptor)
        self._wait = wait

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        self._wait(self.fileno())
        return super().recv_bytes(maxlength)


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these."""
    read, write = os.pipe()
    reading.callback(os.close, read)
    writing.callback(os.close, write)
    return read, write


class _Server(forkserver.ForkServer):
    """multiprocessing's, started where signals are blocked."""

    #: How long one may take to come up where a signal waits: longer after each that was ended, as a handler may go on.
    patience = LOOK

    def __init__(self) -> None:
        super().__init__()
        self._owner = os.getpid()
        self.has_served = False
        #: Those who wait for a child, in any thread.
        self._waiting: set[object] = set()

    def ensure_running(self) -> None:
        self._preload_modules = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
        with interrupts_blocked():
            super().ensure_running()

    def child(self, status: int) -> int:
        """The number of the process that was asked for.

        Args:
            status: the descriptor from which the server tells it.
        """
        try:
            self._wait_for(status)
            number: int = forkserver.read_signed(status)
        except EOFError as error:
            self._kill()  # it may take a while to end, and the next child needs another one
            raise ConnectionResetError(errno.ECONNRESET, _GONE) from error
        self.has_served = True
        _Server.patience = LOOK
        return number

    def _wait_for(self, words: int) -> None:
        """Waits until it says something, or has ended.

        Args:
            words: the descriptor from which that is read.

        Raises:
            StartGivenUp: a signal has come, and it has served nobody yet: it was ended.
        """
        me = object()
        self._waiting.add(me)
        until = time.monotonic() + self.patience
        try:
            while not connection.wait([words], LOOK):
                is_let = self.has_served or time.monotonic() < until
                if interrupt_waits() and not is_let and self._waiting == {me}:
                    _Server.patience *= 2
                    self._kill()
                    raise StartGivenUp
        finally:
            self._waiting.discard(me)

    def connection(self, descriptors: list[int]) -> tuple[int, int]:
        """Asks for a child; the descriptors of what is told of it, and of its orders."""
        try:
            status, orders = self.connect_to_new_process(descriptors)
        except (ConnectionError, EOFError) as error:  # it has ended, or is about to
            self._kill()
            raise ConnectionResetError(errno.ECONNRESET, _GONE) from error
        return status, orders

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        """multiprocessing's, which from Python 3.14 on waits in it: both sides show first that they have the key."""
        self.ensure_running()
        if (key := getattr(self, "_forkserver_authkey", None)) is None:
            return super().connect_to_new_process(fds)
        if len(fds) + 4 >= forkserver.MAXFDS_TO_SEND:
            raise ValueError("too many fds")
        with socket.socket(socket.AF_UNIX) as client, contextlib.ExitStack() as kept, contextlib.ExitStack() as passed:
            client.connect(self._forkserver_address)  # type: ignore[attr-defined]
            status, status_of_child = _pipe(kept, passed)
            orders_of_child, orders = _pipe(passed, kept)
            speaking = _Awaited(client.fileno(), self._wait_for)
            try:
                connection.answer_challenge(speaking, key)
                connection.deliver_challenge(speaking, key)
            finally:
                speaking._detach()  # type: ignore[attr-defined]
            alive = self._forkserver_alive_fd  # type: ignore[attr-defined]
            told = [orders_of_child, status_of_child, alive, resource_tracker.getfd(), *fds]
            reduction.sendfds(client, told)
            kept.pop_all()
            return status, orders

    def _kill(self) -> None:
        global _server
        if _server is self:
            _server = None
        with self._lock:  # type: ignore[attr-defined]
            if self._forkserver_pid is None:  # type: ignore[has-type]
                return
            os.close(self._forkserver_alive_fd)  # type: ignore[attr-defined]
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # one whom SIGCHLD does not reach
                os.kill(self._forkserver_pid, signal.SIGKILL)  # type: ignore[has-type]
                os.waitpid(self._forkserver_pid, 0)  # type: ignore[has-type]
            self._forkserver_pid = None
            address = self._forkserver_address  # type: ignore[attr-defined]
            if not util.is_abstract_socket_namespace(address):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)


_server: _Server | None = None


def _running() -> _Server:
    global _server
    # One that was inherited through a fork is the parent's child, which this process cannot look after.
    if _server is None or _server._owner != os.getpid():
        _server = _Server()
    return _server


class _Popen(popen_forkserver.Popen):
    """A child that the loaders' own server forks."""

    def __init__(self, process_obj: Any) -> None:
        self._watch: Pidfd | None = None
        #: Whether the server, which would tell how it ends, has ended.
        self._is_orphan = False
        #: Whether nobody can tell any more how it has ended.
        self.is_lost = False
        # What the server tells can be read once. Nobody waits for it, so a fork may copy it held.
        self._reading = threading.RLock()
        super().__init__(process_obj)

    def _launch(self, process_obj: Any) -> None:
        orders = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), orders)
            reduction.dump(process_obj, orders)  # descriptors in it go into `_fds`
        finally:
            set_spawning_popen(None)
        try:
            self._ask(_running(), orders.getbuffer())
        except _Unheard:
            self._ask(_running(), orders.getbuffer())

    def _ask(self, server: _Server, orders: memoryview) -> None:
        """Has one server fork the child, and gives the child its orders.

        Raises:
            _Unheard: the server was ending, and nobody has the orders: another one may be asked.
        """
        try:
            status, orders_to = server.connection(self._fds)  # type: ignore[attr-defined]
        except ConnectionError as error:
            raise _Unheard(*error.args) from error
        self.sentinel = status
        # The child takes main for alive as long as somebody could write to it.
        alive = os.dup(orders_to)
        self.finalizer = util.Finalize(self, util.close_fds, (alive, status))  # type: ignore[attr-defined]
        try:
            # Where nobody reads on, the server has ended or the child has: `status` says which.
            with contextlib.suppress(BrokenPipeError), open(orders_to, "wb") as file:
                file.write(orders)
            self.pid = server.child(status)
            self._watch = Pidfd(self.pid)
        except BaseException as error:
            is_unheard = isinstance(error, ConnectionResetError) and server.has_served and not _is_read(alive)
            self.finalizer()
            if is_unheard:
                raise _Unheard(*error.args) from error
            raise

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Its exit code; None while it runs, and where that `is_lost`. Waits for its end without that flag."""
        while self.returncode is None and not self.is_lost:
            if self._reading.acquire(blocking=False):
                try:
                    self._look()
                finally:
                    self._reading.release()
            if flag == os.WNOHANG:
                break
            connection.wait([self.sentinel] if self.sentinel >= 0 else [], LOOK)
        code: int | None = self.returncode
        return code

    def _look(self) -> None:
        assert self._watch is not None
        if not self._is_orphan:
            if not connection.wait([self.sentinel], 0):
                return
            try:
                self.returncode = forkserver.read_signed(self.sentinel)
                return
            except (OSError, EOFError):
                self._is_orphan = True
                self.sentinel = self._watch.descriptor
        if self._watch.has_ended:
            self.returncode = self._watch.reap()
            self.is_lost = self.returncode is None

    def _send_signal(self, sig: int) -> None:
        if self.returncode is None and self._watch is not None:
            self._watch.send_signal(sig)

    def close(self) -> None:
        """Gives its descriptors back."""
        super().close()
        if self._watch is not None:
            self._watch.close()


class _Unheard(ConnectionResetError):
    """A fork server that others had been served by has ended, and no process has what was asked of it."""


def _is_read(descriptor: int) -> bool:
    """Whether anybody holds the other end of a pipe that is written to."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(0)  # an error, which alone is asked for, says that nobody does


class ForkServerProcess(context.ForkServerProcess):
    """A process under start method "forkserver", for one child of a loader."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)
