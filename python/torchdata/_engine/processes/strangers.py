"""Ends processes that user code forks inside a child process of the engine.

If user code in a child calls `os.fork`, the new process must not use the child's links and other resources of the
engine. When the user's function returns in the new process, `leave` ends the new process, so that it does not run the
child's loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

# In a child of the engine, the process id of this child; otherwise None. A process that user code forks inside the
# child inherits `_child`, but has a different process id.
_child: int | None = None


def note_child() -> None:
    global _child
    _child = os.getpid()


def leave(error: BaseException | None = None) -> None:
    """Ends this process, without the exit handlers, if user code has forked it inside a child."""
    if _child is None or _child == os.getpid():
        return
    code = 0 if error is None else 1
    with contextlib.suppress(BaseException):
        if error is not None:
            code = _exit_code(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)
    else:
        traceback.print_exception(error)
    return 1
