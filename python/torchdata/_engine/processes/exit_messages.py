"""Explains in words why a child process exited unexpectedly, and what the user can do."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

from torchdata._threads import AFTER_FORK, AT_HANGS

#: The exit code of a child that could not start the thread that monitors the main process.
CANNOT_WATCH = os.EX_OSERR
#: The exit code of a child that tried to start its own children while it imported the user's program.
NO_GUARD = os.EX_CONFIG
UNGUARDED = (
    "the program starts worker processes while it is imported, but each worker imports the program (start methods "
    "'spawn' and 'forkserver', the default from Python 3.14 on): put the code that creates and reads the loader under "
    '`if __name__ == "__main__":`'
)

_LIMITS = (
    "the limit of processes and threads (ulimit -u, or pids.max of the container) or of open files (ulimit -n) is "
    "reached: raise this limit, or use fewer workers"
)

_BY_SIGNAL = {
    "SIGKILL": "the kernel kills processes when memory runs out (see dmesg): use fewer workers, smaller prefetch "
    "counts or, in DataLoader2, a memory_budget",
    "SIGSEGV": "a native library in its pipes crashed: run with PYTHONFAULTHANDLER=1 to see where",
    "SIGABRT": "a native library aborted the process, as this package does when memory runs out (ulimit -v, or the "
    "container's limit): see the output above, use fewer workers or smaller items; PYTHONFAULTHANDLER=1 "
    "shows where",
    "SIGBUS": "there is no memory or disk space left for a mapping",
    "SIGTERM": "code in this process has sent the signal, because a SIGTERM from another process does not end a child",
}


def exit_message(child: Any) -> str:
    """`child` is a `ChildProcess`."""
    how, advice = how_it_exited(child)
    sent = ". The items that it had sent were delivered, unless an earlier item is missing."
    return f"{how}; {advice}{sent if child.exitcode != NO_GUARD else ''}"


def how_it_exited(child: Any) -> tuple[str, str]:
    code = child.exitcode
    if child.exit_reason is not None:
        how, advice = "exited", child.exit_reason
    elif code is None:
        how = "exited"
        advice = f"the cause is not known, because {_why_unknown(child)}"
    elif code < 0:
        try:
            signal_name = signal.Signals(-code).name
        except ValueError:
            signal_name = f"signal {-code}"
        how = f"was killed by {signal_name}"
        advice = _BY_SIGNAL.get(signal_name, "find out which process sent the signal")
        if child.is_copy_of_main and signal_name in ("SIGSEGV", "SIGTERM"):
            advice += f"; {AFTER_FORK}. If such a library hangs, {AT_HANGS}"
    elif code == CANNOT_WATCH:
        how = f"exited with code {code}"
        advice = (
            "a child exits with this code if the system does not let it start the thread that monitors the main "
            f"process (see its output above): {_LIMITS}"
        )
    elif code == NO_GUARD:
        how, advice = "did not start", UNGUARDED
    else:
        how = f"exited with code {code}"
        advice = "code in its pipes called os._exit, or it failed to start: see its output above, if there is any"
    return f"{child.called} {how}", advice


def _why_unknown(child: Any) -> str:
    look = "see its output above, and the system's log (dmesg)"
    if child.is_orphan:
        return (
            "the process that forked it, and would report its exit code, has exited, too: it was killed, or "
            f"{_LIMITS}; {look}"
        )
    handler = signal.getsignal(signal.SIGCHLD)
    if handler == signal.SIG_IGN:
        cause = "this program ignores SIGCHLD"
    elif callable(handler):
        cause = "this program's handler of SIGCHLD waits for all children, and receives their exit codes"
    else:
        cause = "other code in this program has waited for it, and received its exit code"
    return f"{cause}: {look}, or run with signal.signal(signal.SIGCHLD, signal.SIG_DFL) to get the exit code"


def why_not_started(name: str, error: OSError) -> OSError:
    text = f"{name} could not be started: {error.strerror or error}"
    if error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE):
        text += f"; {_LIMITS}"
    elif error.errno == errno.ENOMEM:
        text += "; there is not enough memory for a copy of this process: use multiprocessing_context='forkserver'"
    return OSError(error.errno, text)
