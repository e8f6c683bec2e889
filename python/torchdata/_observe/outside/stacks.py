"""Where a process stands: its Python stack, asked for by a signal, and what the kernel says of it.

Role: each process of a loader answers a real-time signal by writing the stack of its main thread into anonymous memory
of its own; signal and descriptor stand on its page, and whoever may signal it reads the memory through `/proc`. The
answer is given by `faulthandler` in the signal's handler, in C and without the interpreter's lock, so a process
answers that hangs in native code, too. Only the main thread's own stack is looked at there, which stands still
meanwhile: those of other threads move, and may be freed under whoever reads them. Children answer another signal in
Python, with the stacks of their other threads. That is done with the interpreter's lock, so that all stand still, once
the main thread runs Python code or looks for signals: as it does where it waits for a thread that hangs.

A process that is signalled before it answers, or after, would be ended by the signal. So a page says nothing before the
handler stands, who asks looks whether it does, and the signal is ignored whenever it does not: for good, from a
process's first loader on. Ignoring it is the main thread's to do. If another thread has made the first loader, the
handler and its memory stay.
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

if TYPE_CHECKING:
    from torchdata._native import StatsBoard

__all__ = [
    "answer_for_stacks",
    "answer_no_more",
    "ask_for_stack",
    "is_stopped",
    "kernel_state",
    "own_stack",
    "tidy",
    "where_it_stands",
]

#: Bytes of answers that are kept; a process that has written more begins anew with its next epoch.
MOST = 1 << 20
#: Seconds between two looks at whether an answer is complete.
LOOK = 0.005

#: How `faulthandler` begins a stack.
_HEAD = "Stack (most recent call first):"
#: The end of the stacks of other threads, and how long those are waited for.
_END, OTHERS = "\0", 0.5
#: On a page the number of their signal stands behind that of the main thread's.
_OTHERS_AT, _FIRST = 8, 0xFF

#: The folder of a child's own frames.
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
    """How this process answers."""

    def __init__(self, inherited: _Answering | None = None) -> None:
        self.signal: int = 0 if inherited is None else inherited.signal
        #: The signal upon which a child tells the stacks of its other threads; 0: it does not.
        self.others: int = 0
        #: Whether the signal is ignored if the handler does not stand.
        self.ignored: bool = inherited is not None and inherited.ignored
        #: The memory's descriptor and inode, in one value: a fork in another thread's midst sees both or neither.
        self.opened: tuple[int, int] = (-1, 0)
        #: The same of the process that this one was forked from, as long as it is not closed here.
        self.inherited: tuple[int, int] = (-1, 0)
        if inherited is not None:
            self.inherited = inherited.opened if inherited.opened[0] >= 0 else inherited.inherited
        #: The pages that say so: those of all loaders of this process.
        self.pages: set[tuple[int, int]] = set()
        #: Threads begin and end loaders at once; and a loader that is collected ends in the midst of anything.
        self.lock = threading.RLock()


_answering = _Answering()


def _in_forked_child() -> None:
    """The open files are the parent's, and the lock may be held by a thread that is not here."""
    global _answering
    _answering = _Answering(_answering)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def _free_signal() -> int:
    """A real-time signal that nobody handles."""
    for number in range(signal.SIGRTMAX - 3, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0


def answer_for_stacks(board: StatsBoard, page: int) -> None:
    """Makes this process answer, and says how on its page, which goes on saying nothing if the system refuses."""
    now = _answering
    if not hasattr(os, "memfd_create") or not hasattr(signal, "SIGRTMAX"):
        return
    with now.lock, contextlib.suppress(OSError):
        now.pages.add((id(board), page))  # first, so that no other loader's end closes what this one is to use
        if not _is_open(now.opened) and not _open(now):
            now.pages.discard((id(board), page))
            return
        if page != 0:
            _answer_for_others(now)
        board.set_stack(page, now.signal | now.others << _OTHERS_AT, now.opened[0])


def _open(now: _Answering) -> bool:
    """Opens the memory and has the handler write to it; False if no signal is free."""
    if not now.signal or (now.ignored and signal.getsignal(now.signal) != signal.SIG_IGN):  # the program took it since
        now.signal, now.ignored = _free_signal(), False
    if not now.signal:
        return False
    descriptor = os.memfd_create("torchdata-stacks")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    if not now.ignored and threading.current_thread() is threading.main_thread():
        faulthandler.unregister(now.signal)  # a parent's, which another thread of it had made
        signal.signal(now.signal, signal.SIG_IGN)  # what is left when the handler is taken away
        now.ignored = True
    faulthandler.register(now.signal, file=descriptor, all_threads=False, chain=False)
    now.opened = (descriptor, os.fstat(descriptor).st_ino)
    _close(now.inherited)
    now.inherited = (-1, 0)
    return True


def _answer_for_others(now: _Answering) -> None:
    """Has a child answer for its other threads, too, from its main thread."""
    if now.others or threading.current_thread() is not threading.main_thread():
        return
    number = _free_signal()
    if number:
        signal.signal(number, lambda *_: _tell_others())
        signal.siginterrupt(number, False)
        atexit.register(_ignore_others, now)  # before the interpreter takes its handler away
        now.others = number


def _ignore_others(now: _Answering) -> None:
    """Lets late questions do no harm."""
    if now is _answering and now.others and threading.current_thread() is threading.main_thread():
        signal.signal(now.others, signal.SIG_IGN)
        now.others = 0


def _tell_others() -> None:
    """Writes the stacks of all threads but the main one, which runs this."""
    descriptor, _ = opened = _answering.opened
    if not _is_open(opened):
        return
    own, known = threading.get_ident(), getattr(threading, "_active", {})  # without its lock, which may be held here
    told = [
        f"Thread {getattr(known.get(ident), 'name', ident)}, {_listed(frame)}\n"
        for ident, frame in sys._current_frames().items()
        if ident != own
    ]
    with contextlib.suppress(OSError):
        os.write(descriptor, ("".join(told) + _END).encode(errors="replace"))


def _close(opened: tuple[int, int]) -> None:
    """Closes the memory, if it is open."""
    with contextlib.suppress(OSError):
        if _is_open(opened):
            os.close(opened[0])


def _is_open(opened: tuple[int, int]) -> bool:
    """Whether the descriptor still leads to the memory: a thread of the parent, or the program, may have closed it."""
    descriptor, inode = opened
    try:
        return descriptor >= 0 and os.fstat(descriptor).st_ino == inode and _is_ours(descriptor)
    except OSError:
        return False


def _is_ours(descriptor: int) -> bool:
    """Whether a descriptor of this process is memory that answers are written to."""
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:torchdata-stacks")


def answer_no_more(board: StatsBoard, page: int) -> None:
    """Removes from a page that this process answers, if it has been noted there."""
    now = _answering
    with now.lock:
        if (id(board), page) not in now.pages:
            return
        board.set_stack(page, 0, 0)
        now.pages.discard((id(board), page))
        # The handler runs in the main thread: seen from another one it may be at work on a late question.
        if now.pages or not now.ignored or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(now.signal) != signal.SIG_IGN:  # the program has taken the signal, and is to keep it
            return
        _ignore_others(now)
        faulthandler.unregister(now.signal)
        _close(now.opened)
        now.opened = (-1, 0)  # last: a child that is forked meanwhile closes what it has inherited


def tidy() -> None:
    """Forgets answers that nobody needs any more, once there are many."""
    opened = _answering.opened
    with contextlib.suppress(OSError):  # another thread may be ending the last loader
        if opened[0] >= 0 and os.fstat(opened[0]).st_size > MOST and _is_open(opened):
            os.ftruncate(opened[0], 0)


def ask_for_stack(pid: int, number: int, descriptor: int, seconds: float = 1.0, wakes: bool = False) -> str | None:
    """The Python stacks of another process, the innermost call first; None if it does not answer.

    That of its main thread comes first. Those of its other threads follow, if it is a child whose main thread comes
    to that.

    Args:
        pid: the process.
        number: the signals, as its page has them.
        descriptor: the descriptor that it writes to.
        seconds: how long to wait. A process that is stopped, or stuck in the kernel, answers when it goes on.
        wakes: whether it is made to go on, to answer first.

    Raises:
        PermissionError: it is another user's.
        ProcessLookupError: it has ended.
    """
    try:
        answers = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if not _is_ours(answers):
            return None  # it has ended, and the number is another process's
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
            time.sleep(LOOK)
            last, size = size, os.fstat(answers).st_size
            if size == last > before:
                answer = os.pread(answers, min(size - before, MOST), before).decode(errors="replace")
                if _HEAD in answer:  # or else it is the rest of what another one has asked for
                    return f"{_trimmed(answer)}\n{_others_of(pid, others, answers, size)}".rstrip()
        return None
    finally:
        os.close(answers)


def _others_of(pid: int, number: int, answers: int, size: int) -> str:
    """The stacks of a process's other threads, if they come in time; its answers have been read up to `size`."""
    if not _handles(pid, number):
        return ""
    os.kill(pid, number)
    deadline = time.monotonic() + OTHERS
    told = ""
    while _END not in told and time.monotonic() < deadline:
        time.sleep(LOOK)
        told = os.pread(answers, min(max(0, os.fstat(answers).st_size - size), MOST), size).decode(errors="replace")
    told, ended, _ = told.partition(_END)
    begins = told.find("Thread ")  # what another one has asked for may stand before
    return told[begins:] if ended and begins >= 0 else ""


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for the real-time signal, and so is not ended by it."""
    if not signal.SIGRTMIN < number < signal.SIGRTMAX:
        return False
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def _trimmed(answer: str) -> str:
    """The first stack of an answer, as others may ask at once; without what runs the graph in a child."""
    stack = answer[answer.index(_HEAD) :].strip()
    head, *calls = stack.splitlines()
    calls = calls[: calls.index(head)] if head in calls else calls
    lines = [head, *calls]
    ours = next((index for index, line in enumerate(lines) if _CHILD in line), len(lines))
    return "\n".join(lines[: max(ours, 2)])


def own_stack(thread: int | None = None) -> str:
    """The stack of a thread of this process, the innermost call first, as `ask_for_stack` has it."""
    # No name is bound to the frames: that of this call among them would be a circle that only the collector ends.
    return _from_top(sys._current_frames().get(thread if thread is not None else _main_thread()))


def _from_top(frame: Any) -> str:
    return "" if frame is None else f"S{_listed(frame)[1:]}"


def _listed(frame: Any) -> str:
    """A stack as `faulthandler` writes it."""
    lines = ["stack (most recent call first):"]
    while frame is not None:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def where_it_stands(pid: int, number: int, descriptor: int, wakes: bool = False) -> tuple[str, str]:
    """Where a process stands: the kernel's word on it, and its Python stacks, or why there are none.

    Args:
        pid: the process.
        number: the signals, as its page has them.
        descriptor: the descriptor that it writes to.
        wakes: whether it is stopped, and may go on so that it can answer.
    """
    where = kernel_state(pid)
    stack = None
    with contextlib.suppress(OSError):
        stack = ask_for_stack(pid, number, descriptor, wakes=wakes)
    return where, stack or "It gives no Python stack: it does not answer the signal that asks for it."


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    return _letter_of(pid) in ("T", "t")


def _letter_of(pid: int) -> str:
    """The kernel's letter for what a process's main thread does; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def kernel_state(pid: int) -> str:
    """The kernel's word on a process's main thread: "running", or "asleep in futex_wait"."""
    state = _letter_of(pid)
    if not state:
        return "ended"
    words = _STATES.get(state, f"in state {state}")
    if state in "SD":
        with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
            where = file.read().strip()
            if where not in ("", "0"):
                words += f", in {where}"
    return words
