"""States on their way from a worker: bytes, which nothing changes any more and nobody has to unpack.

Role: a worker freezes its place, main keeps the bytes, and thaws those that a user asks for, once.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["freeze", "thaw"]


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
