"""Imported by every interpreter that `unsteady` starts: its process may rest at birth, as do those that it forks."""

from __future__ import annotations

import os
import time

#: Of 256 newborn processes this many rest, and for how many seconds at most.
_RESTING, _LONGEST = 100, 0.4


def _rest() -> None:
    chance, share = os.urandom(2)  # no generator of the program's is touched
    if chance < _RESTING:
        time.sleep(_LONGEST * (share / 255) ** 2)


os.register_at_fork(after_in_child=_rest)
_rest()
