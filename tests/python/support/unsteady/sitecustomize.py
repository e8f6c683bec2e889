"""Delays some interpreters that `unsteady` starts, and some processes that these interpreters fork."""

import os
import time

_RESTING, _LONGEST = 100, 0.4


def _rest() -> None:
    chance, share = os.urandom(2)  # the program's random generators must not be used
    if chance < _RESTING:
        time.sleep(_LONGEST * (share / 255) ** 2)


os.register_at_fork(after_in_child=_rest)
_rest()
