"""Requests the Python stacks of another process by a signal, and reads the process's state from the kernel.

Each process of a loader has a handler for a real-time signal. An observer sends the signal to request the stack of the
process's main thread. The signal handler writes the stack to anonymous memory of the process, and the observer reads
this memory through `/proc`. The loader's counters (`StatsBoard`) contain the number of the signal and the file
descriptor of the memory.

`faulthandler` writes the stack in C and without the GIL, which works even if the process hangs in native code.
`faulthandler` writes only the main thread's stack, because the stacks of other threads could change during the write.
The stacks of all other threads are written by a Python function, which a worker installs as the handler of a second
real-time signal. The Python handler runs only when the main thread runs Python code.

A real-time signal ends a process that lacks a handler for it. A process installs the handler before it publishes the
number of the signal, and an observer checks that the handler exists. After the shutdown of its last loader, the process
ignores the signal, because an observer may send the signal late. Only the main thread can make a process ignore a
signal. If another thread has created the first loader, the process keeps the handler until it exits.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from torchdata._handlers import FailuresSuppressed
from torchdata._machine import caught_signals, read
from torchdata._native import HeldLock

if TYPE_CHECKING:
    from torchdata._native import StatsBoard

#: If the written stacks take more than `MOST` bytes, the process deletes them at the beginning of an epoch.
MOST = 1 << 20
POLL_INTERVAL = 0.005

_HEAD = "Stack (most recent call first):"
#: `_END` marks the end of the stacks of the threads other than the main thread. `OTHERS` is the maximum time in seconds
#: to wait for `_END`.
_END, OTHERS = "\0", 0.5
#: One integer in the counters contains two signal numbers. The lower 8 bits of this integer are the signal that
#: requests the main thread's stack, and its higher bits are the signal that requests the stacks of all other threads.
_OTHERS_AT, _FIRST = 8, 0xFF

#: Frames in this folder are removed from the stack of a worker.
_CHILD = os.path.join("_engine", "workers", "")

_STATES = {
    "R": "running",
    "S": "asleep",
    "D": "stuck in the kernel, where no signal reaches it",
    "T": "stopped (by SIGSTOP, or in a terminal)",
    "t": "stopped by a debugger",
    "Z": "dead",
    "I": "idle",
}


class _Answering:
    def __init__(self, inherited: _Answering | None = None) -> None:
        self.signal: int = 0 if inherited is None else inherited.signal
        #: The signal that requests the stacks of all threads of a worker except the main thread; 0 if the process does
        #: not handle such a signal.
        self.others: int = 0
        self.ignored: bool = inherited is not None and inherited.ignored
        #: The file descriptor and the inode of the memory into which this process writes stacks. The descriptor and the
        #: inode are assigned together, because a child that another thread forks must not inherit only one of them.
        self.opened: tuple[int, int] = (-1, 0)
        #: The file descriptor and the inode of the memory into which the parent process writes stacks, until this
        #: process closes the descriptor.
        self.inherited: tuple[int, int] = (-1, 0)
        if inherited is not None:
            self.inherited = inherited.opened if inherited.opened[0] >= 0 else inherited.inherited
        self.pages: set[tuple[int, int]] = set()
        #: The lock is reentrant, because garbage collection may end a loader at any point.
        self.lock = threading.RLock()


_answering = _Answering()


def _in_forked_child() -> None:
    """Creates a new state in a forked child, because the open file belongs to the parent, and a thread of the parent
    may hold the lock."""
    global _answering
    _answering = _Answering(_answering)


os.register_at_fork(after_in_child=_in_forked_child)


def _free_signal() -> int:
    numbers = range(signal.SIGRTMAX - 3, signal.SIGRTMIN, -1)
    return next((number for number in numbers if signal.getsignal(number) == signal.SIG_DFL), 0)


def answer_for_stacks(board: StatsBoard, page: int) -> None:
    """Makes this process write its stacks when an observer requests them. Does nothing on systems without real-time
    signals or anonymous memory."""
    now = _answering
    if not hasattr(os, "memfd_create") or not hasattr(signal, "SIGRTMAX"):
        return
    with HeldLock(now.lock), FailuresSuppressed(OSError):
        # The page is added before `_open` is called, because a loader that ends in another thread could otherwise close
        # the memory for stacks.
        now.pages.add((id(board), page))
        if not _is_open(now.opened) and not _open(now):
            now.pages.discard((id(board), page))
            return
        if page != 0:
            _answer_for_others(now)
        board.set_stack(page, now.signal | now.others << _OTHERS_AT, now.opened[0])


def _open(now: _Answering) -> bool:
    """Opens the memory for answers. Returns False if all real-time signals are in use."""
    # If the program has installed its own handler for the chosen signal, another signal is chosen.
    if not now.signal or (now.ignored and signal.getsignal(now.signal) != signal.SIG_IGN):
        now.signal, now.ignored = _free_signal(), False
    if not now.signal:
        return False
    descriptor = os.memfd_create("torchdata-stacks")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    if not now.ignored and threading.current_thread() is threading.main_thread():
        faulthandler.unregister(now.signal)
        signal.signal(now.signal, signal.SIG_IGN)
        now.ignored = True
    faulthandler.register(now.signal, file=descriptor, all_threads=False, chain=False)
    now.opened = (descriptor, os.fstat(descriptor).st_ino)
    _close(now.inherited)
    now.inherited = (-1, 0)
    return True


def _answer_for_others(now: _Answering) -> None:
    if now.others or threading.current_thread() is not threading.main_thread():
        return
    number = _free_signal()
    if number:
        signal.signal(number, lambda *_: _inform_others())
        signal.siginterrupt(number, False)
        atexit.register(_ignore_others, now)  # called before the interpreter removes the handler
        now.others = number


def _ignore_others(now: _Answering) -> None:
    if now is _answering and now.others and threading.current_thread() is threading.main_thread():
        signal.signal(now.others, signal.SIG_IGN)
        now.others = 0


def _inform_others() -> None:
    """Writes the stacks of all threads except the main thread, which runs this function."""
    descriptor, _ = opened = _answering.opened
    if not _is_open(opened):
        return
    # `_active` is read without `threading`'s lock, because the main thread may already hold this lock when the signal
    # arrives.
    own, known = threading.get_ident(), getattr(threading, "_active", {})
    lines = [
        f"Thread {getattr(known.get(ident), 'name', ident)}, s{_listed(frame)[1:]}\n"
        for ident, frame in sys._current_frames().items()
        if ident != own
    ]
    with contextlib.suppress(OSError):
        os.write(descriptor, ("".join(lines) + _END).encode(errors="replace"))


def _close(opened: tuple[int, int]) -> None:
    with FailuresSuppressed(OSError):
        if _is_open(opened):
            os.close(opened[0])


def _is_open(opened: tuple[int, int]) -> bool:
    """Returns False if other code has closed the file descriptor."""
    descriptor, inode = opened
    with FailuresSuppressed(OSError):
        return descriptor >= 0 and os.fstat(descriptor).st_ino == inode and _is_ours(descriptor)
    return False


def _is_ours(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:torchdata-stacks")


def stop_answering(board: StatsBoard, page: int) -> None:
    now = _answering
    with HeldLock(now.lock):
        if (id(board), page) not in now.pages:
            return
        board.set_stack(page, 0, 0)
        now.pages.discard((id(board), page))
        # Only the main thread may close the memory for stacks. If another thread closed the memory, the signal handler
        # in the main thread could still be writing a stack to it.
        if now.pages or not now.ignored or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(now.signal) != signal.SIG_IGN:
            return
        _ignore_others(now)
        faulthandler.unregister(now.signal)
        _close(now.opened)
        # `opened` is reset last, because a child that is forked before the reset must close the descriptor that it
        # inherits
        now.opened = (-1, 0)


def tidy() -> None:
    opened = _answering.opened
    with contextlib.suppress(OSError):  # another thread may be ending the last loader
        if opened[0] >= 0 and os.fstat(opened[0]).st_size > MOST and _is_open(opened):
            os.ftruncate(opened[0], 0)


def ask_for_stack(pid: int, number: int, descriptor: int, seconds: float = 1.0, wakes: bool = False) -> str | None:
    """Returns the Python stacks of another process, main thread first; None if the process does not answer. For a
    worker with a main thread that can run Python code, the result contains the stacks of all threads.

    Args:
        number: an integer from the process's counters, which contains two signal numbers (see `_OTHERS_AT`).
        seconds: the time to wait for a process that is suspended or blocked.
        wakes: whether to resume a suspended process, so that it can answer.
    """
    try:
        answers = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if not _is_ours(answers):
            return None  # another process has the id of the exited process
        before = os.fstat(answers).st_size
        first, others = number & _FIRST, number >> _OTHERS_AT
        if not _handles(pid, first):
            return None
        os.kill(pid, first)
        if wakes:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + seconds
        size = before
        while time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
            last, size = size, os.fstat(answers).st_size
            if size == last > before:
                answer = os.pread(answers, min(size - before, MOST), before).decode(errors="replace")
                if _HEAD in answer:  # a text without this line is the end of an answer to another observer
                    return f"{_trimmed(answer)}\n{_others_of(pid, others, answers, size)}".rstrip()
        return None
    finally:
        os.close(answers)


def _others_of(pid: int, number: int, answers: int, size: int) -> str:
    """Returns the stacks of all threads but the main thread. The process writes these stacks into the memory, after the
    first `size` bytes."""
    if not _handles(pid, number):
        return ""
    os.kill(pid, number)
    deadline = time.monotonic() + OTHERS
    answer = ""
    while _END not in answer and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
        answer = os.pread(answers, min(max(0, os.fstat(answers).st_size - size), MOST), size).decode(errors="replace")
    answer, ended, _ = answer.partition(_END)
    begins = answer.find("Thread ")
    return answer[begins:] if ended and begins >= 0 else ""


def _handles(pid: int, number: int) -> bool:
    """Returns whether the process has a handler for the signal, which would otherwise end the process."""
    return signal.SIGRTMIN < number < signal.SIGRTMAX and bool(caught_signals(pid) >> (number - 1) & 1)


def _trimmed(answer: str) -> str:
    """Returns the first stack in `answer`, which contains more stacks if several observers have sent requests at the
    same time."""
    stack = answer[answer.index(_HEAD) :].strip()
    head, *calls = stack.splitlines()
    calls = calls[: calls.index(head)] if head in calls else calls
    lines = [head, *calls]
    ours = next((index for index, line in enumerate(lines) if _CHILD in line), len(lines))
    return "\n".join(lines[: max(ours, 2)])


def own_stack(thread: int) -> str:
    # The frames are not stored in a variable, because this function's frame would then form a reference cycle.
    return _listed(sys._current_frames().get(thread))


def _listed(frame: Any) -> str:
    lines = [_HEAD]
    while frame is not None:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)


def current_frame(pid: int, number: int, descriptor: int, wakes: bool = False) -> tuple[str, str]:
    """Returns the kernel's description of a process, and its Python stacks, or the reason why they are missing. If
    `wakes` is True, a suspended process may be resumed, so that it can answer."""
    where = kernel_state(pid)
    stack = None
    with contextlib.suppress(OSError):
        stack = ask_for_stack(pid, number, descriptor, wakes=wakes)
    return where, stack or "Its Python stack is not available: the process ignores the signal that requests it."


def is_stopped(pid: int) -> bool:
    return letter_of(pid) in ("T", "t")


def letter_of(pid: int) -> str:
    """Returns the state letter of a process, or an empty text if the process does not exist."""
    return read(f"/proc/{pid}/stat").rpartition(") ")[2][:1]


def kernel_state(pid: int) -> str:
    """Returns the state of a process: for example, "running", or "asleep, in futex_wait"."""
    state = letter_of(pid)
    if not state:
        return "ended"
    words = _STATES.get(state, f"in state {state}")
    if state in "SD":
        where = read(f"/proc/{pid}/wchan")
        if where not in ("", "0"):
            words += f", in {where}"
    return words
