"""Asks the children of a loader to stop, kills the children that do not stop, and reaps all children.

`Shutdown` may be called any number of times and from any thread. If a call of `Shutdown` was interrupted, the next call
continues the shutdown. `OwnsChildren` calls `Shutdown` when the owner of the children is deleted, or when the program
exits.

A child that does not stop on request is killed by SIGKILL. Children ignore SIGTERM, because clusters send SIGTERM to
all processes of a program (`interrupts.py`).
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import warnings
from collections.abc import Callable

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.processes.process import ChildProcess, Closes, wait_for_all
from torchdata._handlers import FailuresSuppressed
from torchdata._native import BellBoard, Finalized, HeldLock, Link, Sender, order_of

ASKED = 3.0
#: The number of seconds that a child may take to exit after SIGKILL; only the kernel can delay this exit.
KILLED = 5.0
#: The command that stops a child, and the number that announces this command in the shared memory of the control link.
_STOP, _STOP_ORDER = ("stop", 0, 0), order_of("stop", 0)


class Shutdown:
    """Stops the children of a loader. In a forked child, the methods of an inherited `Shutdown` do nothing. The
    children are woken through `bells`, which must exist as long as the children.
    """

    def __init__(self, children: list[ChildProcess], controls: list[Link], bells: BellBoard) -> None:
        self._owner_pid = os.getpid()
        self._running = threading.RLock()
        self._children = children
        self._controls = controls
        self.has_begun = False
        self.is_over = False
        self.forker: Closes | None = None
        self._bells = bells
        #: A function that ends the epoch before the children are asked to stop, so that no child waits for the main
        #: process.
        self.beforehand: Callable[[], None] | None = None
        self.afterwards: Callable[[], None] | None = None
        #: For each child, the object that sends the command to stop. `commanders` is empty until all children can
        #: receive commands.
        self.commanders: list[Sender] = []
        _to_end.add(self)  # last, because Ctrl-C may interrupt this constructor

    def replace(self, index: int, child: ChildProcess, control: Link, commander: Sender) -> None:
        """Replaces an exited child by a child that is not started yet.

        After the caller has started the new child, the caller must check `has_begun`, and stop the new child if the
        shutdown has already begun.
        """
        if self.has_begun:
            return
        self._children[index].close()
        self._children[index], self._controls[index], self.commanders[index] = child, control, commander

    def run(self) -> None:
        """Ctrl-C shortens the wait, and is delivered once all children have exited.

        If several threads call this method, all calls return when the shutdown is complete.
        """
        if os.getpid() != self._owner_pid:
            return self._set_over()
        if self.beforehand is not None:
            self.has_begun = True  # readers that `beforehand` interrupts read this attribute
            with FailuresSuppressed(RuntimeError):  # this thread itself may be reading
                self.beforehand()
        with HeldLock(self._running), InterruptsDeferred() as deferred:
            if self.is_over:
                return
            self.has_begun = True
            children = list(self._children)
            for child, control in zip(children, self._controls, strict=True):
                # a child that is still importing the program is killed without waiting
                if not control.has_consumer():
                    child.kill()
            self._ask(deferred)
            for child in children:
                child.kill()
            if not wait_for_all(children, KILLED):
                stuck = ", ".join(f"{child.name} (pid {child.pid})" for child in children if not child.ended)
                warnings.warn(
                    f"{stuck} did not end within {KILLED:.0f} s of SIGKILL: it is stuck in the kernel, most often in "
                    "a file system that does not respond",
                    RuntimeWarning,
                    stacklevel=2,
                )
            _late.update(children)
            _close_ended()
            self._children.clear()
            self._controls.clear()
            self.commanders.clear()
            if self.forker is not None:
                self.forker.close()
            if self.afterwards is not None:
                self.afterwards()
            self._set_over()

    def _set_over(self) -> None:
        self.is_over = True
        _to_end.discard(self)

    def _ask(self, deferred: InterruptsDeferred) -> None:
        if len(self.commanders) != len(self._children):
            return
        deadline = time.monotonic() + ASKED
        self.ask(deadline)
        wait_for_all(list(self._children), deadline - time.monotonic(), lambda: deferred.noted)

    def ask(self, deadline: float = math.inf) -> None:
        """Asks the children to stop, and does not wait for their exit."""
        for commander in list(self.commanders):
            with FailuresSuppressed():
                commander.send_message(_STOP, min(0.1, max(0.0, deadline - time.monotonic())), _STOP_ORDER)


#: Children that outlived the shutdown of their loader; the next shutdown of any loader reaps them.
_late: set[ChildProcess] = set()


def _close_ended() -> None:
    for child in list(_late):
        if child.ended:
            child.close()
            _late.discard(child)


_to_end: set[Shutdown] = set()


@atexit.register
def _end_all() -> None:
    with InterruptsDeferred():
        for shutdown in list(_to_end):
            shutdown.run()


def end_before_others() -> None:
    """Registers the exit handler again. Python calls exit handlers in reverse order, so the children are stopped before
    libraries that were imported in the meantime run their own exit handlers."""
    atexit.unregister(_end_all)
    atexit.register(_end_all)


class OwnsChildren(Finalized):
    """A base class for objects that stop their children on `shutdown`, on deletion, and at interpreter exit."""

    # `_finalize` stops the children. `_finalize` is used instead of `weakref.finalize`, because a KeyboardInterrupt in
    # the callback of `weakref.finalize` would be lost.
    _shutdown: Shutdown
    #: If this attribute is True, the base class `Finalized` does not call `_finalize`.
    _ended = False

    def _own(self, children: list[ChildProcess], controls: list[Link], bells: BellBoard) -> None:
        self._shutdown = Shutdown(children, controls, bells)

    def shutdown(self) -> None:
        """`shutdown` may be called at any time; if a call was interrupted, the next call continues the shutdown."""
        self._shutdown.run()
        self._ended = self._shutdown.is_over

    def _finalize(self, interrupted: bool) -> None:
        """Stops the children when this object is deleted. If `interrupted` is True, Ctrl-C was pressed, and
        KeyboardInterrupt is raised after the finalizer."""
        shutdown = self.__dict__.get("_shutdown")
        if interrupted or (shutdown is not None and not shutdown.is_over):
            with InterruptsDeferred(later=True, noted=interrupted):
                if shutdown is not None:
                    shutdown.run()
