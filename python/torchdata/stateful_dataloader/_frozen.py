"""Transports states from a worker as bytes, which cannot be modified and are not unpickled on the way.

Role: a worker freezes its snapshot. The main process stores the bytes, and thaws them once if the user requests a
state.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["freeze", "thaw"]


def freeze(state: Any) -> bytes:
    """Returns the state as bytes.

    Raises:
        TypeError: the state contains an object that cannot be pickled.
    """
    try:
        return pickle.dumps(state, protocol=5)
    except Exception:
        from torchdata._by_value import dumps

        return dumps(state)


def thaw(frozen: bytes) -> Any:
    """Returns a new object equal to the state that was frozen."""
    return pickle.loads(frozen)
