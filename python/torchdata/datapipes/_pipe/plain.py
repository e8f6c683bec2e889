"""States as plain data: what anybody may load, and beside it, marked, what only pickle can hold.

Role: turns what a pipe's `state_dict` returned into a value of its own, which nothing that the pipe does later
changes, and back. `None`, `bool`, `int`, `float`, `str`, `bytes`, flat lists and tuples of them, and dicts of all
these stay what they are. All else, items above all, becomes bytes under the key `PICKLED`: of one pipe all together,
so that an item that waits in two of its queues stays one item. Pure functions.
"""

from __future__ import annotations

import pickle
from types import NoneType
from typing import Any

__all__ = ["PICKLED", "from_plain", "to_plain"]

#: The key under which bytes lie that are to be unpickled.
PICKLED = "__pickled__"

#: The key of a state that is no dict with names as keys.
_WHOLE = "__state__"

_ATOMS = frozenset({NoneType, bool, int, float, str, bytes})

#: What `_copied` returns of values that are not plain.
_OTHER: Any = object()


def to_plain(state: Any, owner: str) -> dict[str, Any]:
    """The state as plain data that shares nothing with it which can be changed.

    Args:
        state: what a pipe's `state_dict` returned.
        owner: the name of the pipe.

    Raises:
        TypeError: something in it cannot be pickled.
    """
    if type(state) is not dict or PICKLED in state or not all(type(key) is str for key in state):
        state = {_WHOLE: state}
    plain, others = {}, {}
    for name, value in state.items():
        copied = _copied(value)
        if copied is _OTHER:
            others[name] = value
        else:
            plain[name] = copied
    if others:
        plain[PICKLED] = _pickled(others, owner)
    return plain


def from_plain(plain: dict[str, Any], owner: str) -> Any:
    """A state of its own, equal to the one of which `to_plain` made this.

    Raises:
        ValueError: it cannot be unpickled here.
    """
    state = {name: _copied(value) for name, value in plain.items() if name != PICKLED}
    if PICKLED in plain:
        try:
            state |= pickle.loads(plain[PICKLED])
        except Exception as error:
            raise ValueError(
                f"the state of {owner} cannot be unpickled here ({type(error).__name__}: {error}); load it where the "
                "same modules can be imported as where it was saved"
            ) from error
    return state.get(_WHOLE) if _WHOLE in state else state


def _copied(value: Any) -> Any:
    """A copy of a plain value; `_OTHER` where it is none."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        if _ATOMS.issuperset(map(type, value)):
            return kind(value)
        return _OTHER if any(_frozen(member) is _OTHER for member in value) else kind(value)
    if kind is dict and _ATOMS.issuperset(map(type, value)):
        if _ATOMS.issuperset(map(type, value.values())):
            return value.copy()
        copied = {name: _copied(member) for name, member in value.items()}  # what a library says of its own place
        return _OTHER if any(member is _OTHER for member in copied.values()) else copied
    return _OTHER


def _frozen(value: Any) -> Any:
    """An atom, or a tuple of nothing else, at any depth: a member that may stand at two places without being one."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple and not any(_frozen(member) is _OTHER for member in value):
        return value
    return _OTHER


def _pickled(values: dict[str, Any], owner: str) -> bytes:
    try:
        return pickle.dumps(values, protocol=5)
    except Exception:
        import cloudpickle  # lambdas, local classes

        try:
            pickled: bytes = cloudpickle.dumps(values, protocol=5)
        except Exception as error:
            culprit = next((name for name, value in values.items() if not _pickles(value)), None)
            raise TypeError(
                f"the state of {owner} cannot be saved, because what it holds under {culprit!r} cannot be pickled "
                f"({type(error).__name__}: {error}); let items that wait in a pipe be such that pickle can hold them"
            ) from error
        return pickled


def _pickles(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception:
        return False
    return True
