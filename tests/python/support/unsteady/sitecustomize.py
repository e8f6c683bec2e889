"""Imported by every interpreter that `unsteady` starts. The module delays some interpreters, and some of the processes
that they fork.
"""

from __future__ import annotations

import os
import time

#: How many of 256 new processes are delayed, and the maximum delay in seconds.
_RESTING, _LONGEST = 100, 0.4


def _rest() -> None:
    chance, share = os.urandom(2)  # the program's random generators must not be used
    if chance < _RESTING:
        time.sleep(_LONGEST * (share / 255) ** 2)


os.register_at_fork(after_in_child=_rest)
_rest()
