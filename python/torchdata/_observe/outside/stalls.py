"""Warns if no item arrives for a long time, and shows what the responsible process is doing.

A thread of the main process that waits for workers calls this module through the collector. A monitoring thread of the
Rust extension times the calls of `next`, and calls this module if the main process itself hangs. The extension stops
the monitoring thread before each fork, because Python warns if a process with several threads forks.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

from torchdata._native import Delivery, watch_after_fork, watch_before_fork, watch_is_over, watch_with
from torchdata._reporting import PACKAGE
from torchdata._threads import AFTER_FORK, AT_HANGS

#: The default number of seconds without an item before a warning. The signature of `DataLoader2` contains the same
#: number.
STALL = 60.0
_DEBUGGERS = ("bdb", "pydevd")

#: The recorders of monitored loaders, by the number of the loader in the monitoring thread.
_watched: dict[int, weakref.ref[Any]] = {}
_numbers = itertools.count(1)


class StallWarning(RuntimeWarning):
    """Warns that no item has arrived for a long time."""


class WaitWarning(RuntimeWarning):
    """Warns that the program spent much of an epoch waiting for its loader."""


def warn_of_stalls(children: Any, seconds: float | None) -> None:
    """Warns after `seconds` without an item, and whenever the waiting time has doubled."""
    if seconds is None:
        return
    board = weakref.ref(children)

    def on_stall(peer: int | None, waited: float) -> None:
        alive = board()
        if alive is not None:
            words = _words(alive, peer, waited, getattr(alive, "current_frame", None))
            warnings.warn(words, StallWarning, stacklevel=3)

    children.collector.report_stall(seconds, on_stall)


class StallWatch:
    """Warns if threads of the main process wait long for an item, and names the process with the longest delay."""

    def __init__(self, children: Any, seconds: float) -> None:
        self._children, self._seconds = weakref.ref(children), seconds
        self._lock = threading.Lock()
        self.is_awaited: Callable[[], bool] = bool
        #: `arrived` is the number of items that have arrived, and `_seen` is the value of `arrived` at the last check.
        self.arrived = self._seen = 0
        # For each process with a late item, the time when the item became late.
        self._late: dict[int, float] = {}
        self._began, self._next = time.monotonic(), seconds

    def note_item(self, number: int) -> None:
        self.arrived += 1
        if self._late:
            self._late.pop(number, None)

    def look(self, number: int) -> None:
        """Checks for a stall; a thread that waits for a process calls this method repeatedly."""
        now = time.monotonic()
        self._late.setdefault(number, now)
        if self.arrived != self._seen or not self.is_awaited():
            self._seen, self._began, self._next = self.arrived, now, self._seconds
        elif now - self._began >= self._next and self._lock.acquire(blocking=False):
            try:
                self._report(now - self._began)
            finally:
                self._lock.release()

    def _report(self, waited: float) -> None:
        late, children = dict(self._late), self._children()
        if waited < self._next or not late or children is None:
            return
        self._next *= 2
        process = min(late, key=late.__getitem__)
        warn_in_thread(StallWarning(_words(children, process, waited)))


def warn_in_thread(warning: Warning) -> None:
    """Issues a warning. If the user has turned warnings into errors, the error is printed, and the thread continues."""
    try:
        warnings.warn(warning, stacklevel=3)
    except Warning as error:
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, threading.current_thread())))


def _words(
    children: Any, peer: int | None, waited: float, ask: Callable[[dict[str, Any]], tuple[str, str]] | None = None
) -> str:
    from torchdata._observe.outside.stacks import current_frame
    from torchdata._observe.show.table import duration
    from torchdata._observe.stats.diagnosis import blame
    from torchdata._observe.stats.reading import name_of_process, read_board, summarise

    reading = read_board(children.stats)
    stats = summarise(reading)
    processes = {process.name: process for process in stats.processes}
    name = f"worker process {children.first_page - 1 + (peer or 0)}"
    if name not in processes:
        is_far = not all(process.is_up for process in children.members.processes)
        advice = ": `ray status` shows whether the cluster has free resources" if is_far else ""
        return f"no item has come for {duration(waited)}: main waits for {name}, which has not started yet{advice}"
    chain = blame(processes, name)
    fault = chain[-1]
    waits = "main waits for " + ", which waits for ".join(process.called for process in chain)
    runs = f" in {fault.runs}" if fault.runs else ""
    page = next(page for page in reading.pages.values() if name_of_process(page) == fault.name)
    where, answer = current_frame(fault.pid, page["signal"], page["stack"]) if ask is None else ask(page)
    return (
        f"no item has come for {duration(waited)}: {waits}, which is {fault.state}{runs}. "
        f"For the kernel, it (pid {fault.pid}) is {where}. If it hangs, "
        f"{AFTER_FORK + '; ' if children.is_forked else ''}{AT_HANGS}.\n{answer}"
    )


def warn_of_calls(recorder: Any, delivery: Delivery, seconds: float) -> int:
    """Warns if a call of `next` takes `seconds`, and whenever its duration has doubled."""
    number = next(_numbers)
    _watched[number] = weakref.ref(recorder)
    delivery.watch(number, seconds)
    return number


def stop_call_warnings(number: int, delivery: Delivery) -> None:
    delivery.stop_watching()
    _watched.pop(number, None)


def _on_call_stall(number: int, waited: float, thread: int) -> None:
    """The monitoring thread calls this function when `thread` has been in a call of `next` for `waited` seconds, to
    issue a warning."""
    reference = _watched.get(number)
    recorder = reference() if reference is not None else None
    frame = sys._current_frames().get(thread)
    if recorder is None or recorder.board is None or frame is None:
        return
    if any(each.f_globals.get("__name__") in _DEBUGGERS for each, _ in walk_stack(frame)):
        return
    words = _words_of_main(recorder.board, waited, thread)
    if words is None:
        return
    fault = frame
    while _is_ours(fault) and fault.f_back is not None:
        fault = fault.f_back
    module = fault.f_globals.get("__name__", "")
    # The warning names the thread's innermost line outside this package.
    warnings.warn_explicit(words, StallWarning, fault.f_code.co_filename, fault.f_lineno, module)


def _is_ours(frame: Any) -> bool:
    file: str = frame.f_code.co_filename
    return file.startswith(PACKAGE) or frame.f_globals.get("__name__") == "threading"


def _words_of_main(board: Any, waited: float, thread: int) -> str | None:
    """Returns the text of the warning which reports that the main process hangs. Returns None if the main process waits
    for another process, because the code that receives items then issues its own warning."""
    from torchdata._observe.outside.stacks import kernel_state, own_stack
    from torchdata._observe.show.table import duration
    from torchdata._observe.stats.reading import read_board, summarise

    main = summarise(read_board(board)).main
    if main is not None and main.waits_for is not None:
        return None
    known = getattr(threading, "_active", {}).get(thread)
    where = kernel_state(getattr(known, "native_id", None) or os.getpid())
    runs = f", in {main.runs}" if main is not None and main.runs else ""
    stacks = [own_stack(thread)]
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # the frame of this call would form a reference cycle
    for ident, frame in frames.items():
        if ident != thread and any(each.f_code.co_filename.startswith(PACKAGE) for each, _ in walk_stack(frame)):
            name = getattr(getattr(threading, "_active", {}).get(ident), "name", ident)
            stacks.append(f"Thread {name}, {own_stack(ident)[0].lower()}{own_stack(ident)[1:]}")
    return (
        f"no item has come for {duration(waited)}: main itself is computing it{runs}. main (pid {os.getpid()}) is "
        f"{where}.\n" + "\n".join(stacks)
    )


watch_with(_on_call_stall)
atexit.register(watch_is_over)
os.register_at_fork(before=watch_before_fork, after_in_parent=watch_after_fork)
