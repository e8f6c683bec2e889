"""Converts states to plain data, which is safe to load, and marks the parts that require pickle.

Role: pure functions that convert the result of a pipe's `state_dict` to a value that the pipe cannot change later, and
back. `None`, `bool`, `int`, `float`, `str`, `bytes`, flat lists and tuples of these types, and dicts of all these types
remain unchanged. All other values, above all items, are stored as bytes under one key. A single key holds all bytes of
a pipe's state, so that an item in two queues of the pipe is still a single object after loading. Under `NESTED`, the
bytes are a pickle that refers to no class, so loading the bytes runs no code. Items with classes are stored under
`PICKLED`, which is loaded only if the caller trusts the state.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from types import NoneType
from typing import Any

from torchdata._bounded_pickles import pickle_file
from torchdata._plain_pickles import dumps_plain, loads_plain

__all__ = ["NESTED", "PICKLED", "from_plain", "refuse_pickled", "to_plain"]

#: The key of bytes that require unpickling, which may run code.
PICKLED = "__pickled__"

#: The key of bytes that contain nested containers of plain data.
NESTED = "__nested__"

#: The key that holds the whole state if the state is not a dict with string keys.
_WHOLE = "__state__"

#: Keys that mark a dict as the representation of another value.
_RESERVED = frozenset({PICKLED, NESTED})

_ATOMS = frozenset({NoneType, bool, int, float, str, bytes})

#: The result of `_copied` for values that are not plain.
_OTHER: Any = object()


def to_plain(state: Any, owner: str) -> dict[str, Any]:
    """Returns the state as plain data, which shares no mutable object with the original. Raises TypeError if the state
    contains an object that cannot be pickled."""
    if type(state) is not dict or not _RESERVED.isdisjoint(state) or not all(type(key) is str for key in state):
        state = {_WHOLE: state}
    plain, others = {}, {}
    for name, value in state.items():
        copied = _copied(value)
        if copied is _OTHER:
            others[name] = value
        else:
            plain[name] = copied
    if others:
        nested = dumps_plain(others)
        plain |= {PICKLED: _pickled(others, owner)} if nested is None else {NESTED: nested}
    return plain


def from_plain(plain: dict[str, Any], owner: str) -> Any:
    """Returns a new state that is equal to the argument of `to_plain`. Raises ValueError if the state is damaged, or
    cannot be unpickled in this process."""
    copies: dict[int, Any] = {}
    try:
        state = {name: _taken(value, copies) for name, value in plain.items() if name not in _RESERVED}
        if NESTED in plain:
            state |= loads_plain(plain[NESTED])
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the state of {owner} is damaged: {error}") from error
    if PICKLED in plain:
        try:
            state |= pickle.loads(plain[PICKLED])
        except Exception as error:
            raise ValueError(
                f"the state of {owner} cannot be unpickled here ({type(error).__name__}: {error}); load it where the "
                "same modules can be imported as where it was saved"
            ) from error
    return state.get(_WHOLE) if _WHOLE in state else state


def refuse_pickled(plain: Any, owner: str) -> None:
    """Raises ValueError if a part of a state requires unpickling, which may run code."""
    if isinstance(plain, dict) and PICKLED in plain:
        raise ValueError(
            f"the state of {owner} contains values that need pickle, which allow_pickle=False does not load, "
            f"because unpickling may run any code. Load the state with allow_pickle=True if you trust its author; "
            f"or save a state of pipes that hold only plain data (numbers, texts, bytes, and containers)"
        )


def _taken(value: Any, copies: dict[int, Any]) -> Any:
    """Returns a value of a state with copied dicts and lists, which the pipe may modify. Other objects are shared."""
    kind = type(value)
    if kind is list:
        return list(value)
    if kind is not dict:
        return value
    if id(value) not in copies:
        copy: dict[Any, Any] = {}
        copies[id(value)] = copy
        copy.update((name, _taken(member, copies)) for name, member in value.items())
    return copies[id(value)]


def _copied(value: Any) -> Any:
    """Returns a copy of a plain value, or `_OTHER` for a value that is not plain."""
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
        # a dict of plain values, for example the position that a library reports
        copied = {name: _copied(member) for name, member in value.items()}
        return _OTHER if any(member is _OTHER for member in copied.values()) else copied
    return _OTHER


def _frozen(value: Any) -> Any:
    """Returns an atom or a nested tuple of atoms unchanged, and `_OTHER` for all other values."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is not tuple:
        return _OTHER
    if not _ATOMS.issuperset(map(type, value)) and any(_frozen(member) is _OTHER for member in value):
        return _OTHER
    return value


def _pickled(values: dict[str, Any], owner: str) -> bytes:
    if not any(map(_holds_error, values.values())):
        with suppress(Exception):
            with pickle_file() as file:
                pickle.Pickler(file, protocol=5).dump(values)
            return file.getvalue()
    from torchdata._by_value import dumps  # this pickler supports errors, lambdas and local classes

    try:
        return dumps(values)
    except Exception as error:
        culprit = next((name for name, value in values.items() if not _pickles(value)), None)
        raise TypeError(
            f"the state of {owner} cannot be saved, because what it holds under {culprit!r} cannot be pickled "
            f"({type(error).__name__}: {error}); use items that can be pickled"
        ) from error


def _holds_error(value: Any) -> bool:
    """Returns whether a value is an error that a pipe has stored, or a list of pairs that contains a stored error."""
    if type(value) is list:
        return any(type(one) is tuple and len(one) == 2 and isinstance(one[1], BaseException) for one in value)
    return isinstance(value, BaseException)


def _pickles(value: Any) -> bool:
    from torchdata._by_value import dumps

    try:
        dumps(value)
    except Exception:
        return False
    return True
