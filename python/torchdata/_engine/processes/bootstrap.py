"""The first acts of a child that inherits nothing, before its imports: it watches main, and searches no cycles.

Role: under spawn and forkserver a child imports the program's main module before any code of this package runs in it,
which may take long. multiprocessing sends the name of its process ahead of everything else, so the name brings along
what must not wait.
"""

from __future__ import annotations

import gc
import operator
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

__all__ = ["EARLY_THRESHOLD", "PREFIX", "ChildName", "end_early_watch"]

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


class ChildName(str):
    """The name of a child's process, which does the work that must not wait when it is unpickled in the child.

    It is unpickled before the child imports the main module, and with it the imports of the user's program. It uses the
    standard library alone, as the child may not be able to import this package yet. Anywhere else it is pickled as the
    string that it is.

    The child is made to end with main: one that imports for a minute would outlive main for as long. And its threshold
    of collecting cyclic garbage is raised: if the program imports torch, starting two children by spawn takes 2.8 s
    of their processors' time with that and 3.6 s without (medians of 4 alternating runs).
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        start: Any = get_spawning_popen()
        # On its way elsewhere, in a log record perhaps; or with the process object, behind the program's import.
        if start is None or getattr(start, "_was_told", False):
            return str, (str(self),)
        start._was_told = True
        first = (_Call(exec, _WATCH, {"main": os.getpid()}), _Call(gc.set_threshold, EARLY_THRESHOLD), str(self))
        return operator.getitem, (first, -1)


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
