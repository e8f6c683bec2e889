"""States on their way from a worker: bytes, which nothing changes any more and nobody has to unpack.

Role: a worker freezes its place, main keeps the bytes, and thaws those that a user asks for, once.
"""

from __future__ import annotations

import pickle
from typing import Any

from torchdata._stateful import copied

__all__ = ["copied", "freeze", "is_same", "thaw"]


def freeze(state: Any) -> bytes:
    """The state as it is now.

    Raises:
        TypeError: something in it does not pickle.
    """
    try:
        return pickle.dumps(state, protocol=5)
    except Exception:
        from torchdata._by_value import dumps

        return dumps(state)


def thaw(frozen: bytes) -> Any:
    """A state like the one that was frozen."""
    return pickle.loads(frozen)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal; states that cannot be compared by `==` are compared as bytes."""
    try:
        return bool(one == other)
    except Exception:  # of arrays
        return freeze(copied(one)) == freeze(copied(other))
