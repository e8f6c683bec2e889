"""Functions that wait for a condition or a forked child with a time limit, and a function that keeps a core busy."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.002)


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def check_in_forked_child(check: Callable[[], object], seconds: float = 120.0) -> None:
    """The check fails if the function raises, or does not return in time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    try:
        wait_for(has_ended, seconds)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == [0], "the child failed: see its output"
