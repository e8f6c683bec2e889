"""States on their way from a worker: bytes, which nothing changes any more and nobody has to unpack.

Role: a worker freezes its place, main keeps the bytes, and thaws those that a user asks for, once.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

from torchdata._stateful import Stateful

__all__ = ["copied", "freeze", "give", "is_same", "thaw"]


def freeze(state: Any) -> bytes:
    """The state as it is now.

    Raises:
        TypeError: something in it does not pickle.
    """
    try:
        return pickle.dumps(state, protocol=5)
    except Exception:
        import cloudpickle

        frozen: bytes = cloudpickle.dumps(state, protocol=5)
        return frozen


def thaw(frozen: bytes) -> Any:
    """A state like the one that was frozen."""
    return pickle.loads(frozen)


def copied(state: Any) -> Any:
    """A state that does not change when the first one does; itself if it cannot be copied."""
    try:
        return copy.deepcopy(state)
    except Exception:  # what cannot be copied is the user's to keep still
        return state


def give(one: Stateful, state: Any) -> None:
    """Loads a copy of a state into an object of the user, which may keep what it is given and change it."""
    one.load_state_dict(copied(state))


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal; states that cannot be compared by `==` are compared as bytes."""
    try:
        return bool(one == other)
    except Exception:  # of arrays
        return freeze(copied(one)) == freeze(copied(other))
