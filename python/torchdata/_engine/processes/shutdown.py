"""Ending the children of one loader: asked, killed, reaped, whatever happens meanwhile.

Role: main's side of a child's end. `Shutdown` ends all of them, from wherever it is called first and as often as it is
called: it continues where it was cut off. `OwnsChildren` calls it at the end of the object that the children belong to,
or of the program.

A child that does not stop when it is asked is killed. SIGTERM would not end it: clusters send that to all processes of
a program, and children take no notice of it (`interrupts.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
import warnings
from collections.abc import Callable

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._engine.processes.process import ChildProcess, Closes, wait_for_all
from torchdata._native import BellBoard, Finalized, Link, Sender, order_of

__all__ = ["OwnsChildren", "Shutdown", "end_before_others"]

#: How long a child may take to finish what it does after it was asked to stop.
ASKED = 3.0
#: How long it may take after SIGKILL, which nothing but the kernel can hold up.
KILLED = 5.0
#: The command to end, and the word that is ordered with it.
_STOP, _STOP_ORDER = ("stop", 0, 0), order_of("stop", 0)


class Shutdown:
    """Ends the children of a loader; harmless in a forked child that inherited the object.

    Args:
        children: the children, some of which may not be started. Owned by this object from now on.
        controls: the link over which each takes its commands, once it is up.
        bells: what is to live as long as they do.
    """

    def __init__(self, children: list[ChildProcess], controls: list[Link], bells: BellBoard) -> None:
        self._owner_pid = os.getpid()
        #: Held by the thread that ends them; another one that wants to finds them ended.
        self._running = threading.RLock()
        self._children = children
        self._controls = controls
        #: Whether somebody has begun to end them.
        self.has_begun = False
        #: Whether nothing is left to do.
        self.is_over = False
        #: Forks replacements of children that exit; ends after all children.
        self.forker: Closes | None = None
        self._bells = bells
        #: Called before the children are asked to stop, so that those that wait for the main process obey.
        self.beforehand: Callable[[], None] | None = None
        #: Called once they have ended.
        self.afterwards: Callable[[], None] | None = None
        #: Over which each child is asked to stop, once they all can be.
        self.commanders: list[Sender] = []
        _to_end.add(self)  # last: Ctrl-C may come before

    def replace(self, index: int, child: ChildProcess, control: Link, commander: Sender) -> None:
        """Takes a child over in place of another one, which has ended, before it is started.

        Once it has started, `has_begun` tells whether it is the caller's to end.
        """
        if self.has_begun:
            return
        self._children[index].close()
        self._children[index], self._controls[index], self.commanders[index] = child, control, commander

    def run(self) -> None:
        """Asks, waits, kills, reaps. Ctrl-C hurries it up, and is delivered when nothing is left.

        Of several threads that call it all return once that is done.
        """
        if os.getpid() != self._owner_pid:
            return self._set_over()
        if self.beforehand is not None:
            self.has_begun = True  # for who reads, before it is told that nothing comes any more
            with contextlib.suppress(RuntimeError):  # somebody reads, in this very thread
                self.beforehand()
        with self._running, InterruptsDeferred() as deferred:
            if self.is_over:
                return
            self.has_begun = True
            children = list(self._children)
            for child, control in zip(children, self._controls, strict=True):
                if not control.has_consumer():  # it still imports the program: nothing in it is to be finished
                    child.kill()
            self._ask(deferred)
            for child in children:
                child.kill()
            if not wait_for_all(children, KILLED):
                stuck = ", ".join(f"{child.name} (pid {child.pid})" for child in children if not child.ended)
                warnings.warn(
                    f"{stuck} did not end within {KILLED:.0f} s of SIGKILL: it is stuck in the kernel, most often in "
                    "a file system that does not answer",
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
        """Asks all children to stop, and waits until they have, if they all can be asked."""
        if len(self.commanders) != len(self._children):
            return
        deadline = time.monotonic() + ASKED
        self.ask(deadline)
        wait_for_all(list(self._children), deadline - time.monotonic(), lambda: deferred.noted)

    def ask(self, deadline: float = math.inf) -> None:
        """Asks all children to stop, as far as that can be done before the deadline, and does not wait for them."""
        for commander in list(self.commanders):
            with contextlib.suppress(Exception):
                commander.send_message(_STOP, min(0.1, max(0.0, deadline - time.monotonic())), _STOP_ORDER)


#: Children that had not ended when their loader was done with them: the next one that ends reaps them.
_late: set[ChildProcess] = set()


def _close_ended() -> None:
    for child in list(_late):
        if child.ended:
            child.close()
            _late.discard(child)


#: Those of this process that were not run to their end.
_to_end: set[Shutdown] = set()


@atexit.register
def _end_all() -> None:
    # All of them, whatever a handler raises.
    with InterruptsDeferred():
        for shutdown in list(_to_end):
            shutdown.run()


def end_before_others() -> None:
    """Lets the end of this program end children before libraries end that were imported since."""
    atexit.unregister(_end_all)
    atexit.register(_end_all)


class OwnsChildren(Finalized):
    """A base of what has children, which end with it: when it is shut down, dropped, or at interpreter exit."""

    # No weak reference may call Python code when it exits: what Ctrl-C raises there is lost.
    _shutdown: Shutdown
    #: Whether nothing is left to finish (see `Finalized`).
    _ended = False

    def _own(self, children: list[ChildProcess], controls: list[Link], bells: BellBoard) -> None:
        """Takes the children over before they are started; the arguments are those of `Shutdown`."""
        self._shutdown = Shutdown(children, controls, bells)

    def shutdown(self) -> None:
        """Ends all children: asks, waits, kills, reaps. Safe to call at any time, any number of times.

        If it was cut off, the next call continues.
        """
        self._shutdown.run()
        self._ended = self._shutdown.is_over

    def _finalize(self, interrupted: bool) -> None:
        """Does the work of `__del__`. Ctrl-C that cuts it off, or did so before, is delivered afterwards."""
        shutdown = self.__dict__.get("_shutdown")
        if interrupted or (shutdown is not None and not shutdown.is_over):
            with InterruptsDeferred(later=True, noted=interrupted):
                if shutdown is not None:
                    shutdown.run()
