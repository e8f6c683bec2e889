"""Imported by every interpreter that `unsteady` starts, in order to delay some of them and the processes that they
fork.
"""

from __future__ import annotations

import os
import time

#: How many of 256 new processes are delayed, and the maximum delay in seconds.
_RESTING, _LONGEST = 100, 0.4


def _rest() -> None:
    chance, share = os.urandom(2)  # does not use generators of the program
    if chance < _RESTING:
        time.sleep(_LONGEST * (share / 255) ** 2)


os.register_at_fork(after_in_child=_rest)
_rest()
