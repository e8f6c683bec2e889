"""A fork server of the loaders' own, whose children see no signal before they leave it to main.

Role: start method "forkserver" forks every child from one small process. What that has blocked, its children have
blocked from their first moment; nothing else could protect them until code of ours runs there. The server that
multiprocessing keeps for the whole program cannot be had like that: processes of the user's own come out of it too, and
must be interruptible. So the loaders have one to themselves, which preloads the same modules. It ends with main.

Main waits for a child's process number, and the server may first import the program's main module for seconds. A
signal that main handles, Ctrl-C most of all, then ends a server that has not served anybody yet, and with it all that
was asked of it. That server may have forked the child already, and died before it told its number. So a child gets its
orders once main knows its number: a child that main does not know does nothing, and ends.

Where the server dies, its children live on: main watches them itself then, and does not learn how they end.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import signal
import threading
import time
from multiprocessing import connection, context, forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any

from torchdata._engine.processes.interrupts import StartGivenUp, interrupt_waits, interrupts_blocked
from torchdata._engine.processes.pidfd import Pidfd
from torchdata._threads import OUT_OF_TASKS

__all__ = ["ForkServerProcess"]

#: Seconds between two looks at whether a signal has come.
LOOK = 0.02


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
        me = object()
        gone = (
            "the fork server has ended: see its output above. Either the program's main module has failed there, or "
            f"{OUT_OF_TASKS}"
        )
        self._waiting.add(me)
        until = time.monotonic() + self.patience
        try:
            while not connection.wait([status], LOOK):
                is_let = self.has_served or time.monotonic() < until
                if interrupt_waits() and not is_let and self._waiting == {me}:
                    _Server.patience *= 2
                    self._kill()
                    raise StartGivenUp
            number: int = forkserver.read_signed(status)
            self.has_served = True
            _Server.patience = LOOK
            return number
        except EOFError as error:
            self._kill()  # it may take a while to end, and the next child needs another one
            raise ConnectionResetError(errno.ECONNRESET, gone) from error
        finally:
            self._waiting.discard(me)

    def connection(self, descriptors: list[int]) -> tuple[int, int]:
        """Asks for a child; the descriptors of what is told of it, and of its orders."""
        try:
            status, orders = self.connect_to_new_process(descriptors)
        except ConnectionError:  # it is about to end
            self._kill()
            raise
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
            self.pid = server.child(status)
            self._watch = Pidfd(self.pid)
        except BaseException as error:
            _give(orders_to, _NOTHING_TO_DO)
            self.finalizer()
            if isinstance(error, ConnectionResetError) and server.has_served:
                raise _Unheard(*error.args) from error
            raise
        _give(orders_to, orders)

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


def _give(orders_to: int, orders: bytes | memoryview) -> None:
    """Writes a child's orders, and closes the descriptor."""
    # Where nobody reads, the server has ended or the child has: its status says which.
    with contextlib.suppress(BrokenPipeError), open(orders_to, "wb") as file:
        file.write(orders)


class _Nobody:
    """A process that has nothing to do."""

    def _bootstrap(self, _sentinel: int) -> int:
        return 0


#: The orders of a child of which main does not know the number: how to prepare, and what to run.
_NOTHING_TO_DO = pickle.dumps({}) + pickle.dumps(_Nobody())


class ForkServerProcess(context.ForkServerProcess):
    """A process under start method "forkserver", for one child of a loader."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)
