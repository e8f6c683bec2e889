"""Reads and checks the fields of a node's saved state, and requests the states of its sources.

Nodes that read ahead request the state of their source at each item. If the source cannot return its state, the error
is stored, and raised only if the program requests a state.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchdata.nodes.base_node import BaseNode, T, advance_of

_REQUIRED: Any = object()


class StateFields:
    """The fields of a state. If `state` is None, the fields have the values for the beginning of an epoch: the smallest
    allowed integer, the default of a flag, an empty list, or None."""

    def __init__(self, node: str, state: Any, begins: bool = True) -> None:
        if not isinstance(state, Mapping) and (state is not None or not begins):
            raise ValueError(f"{node}: a state must be a dict, but got {_shown(state)}")
        self._node = node
        self._is_beginning = state is None
        self._state = state or {}

    def __contains__(self, key: str) -> bool:
        return key in self._state

    def __getitem__(self, key: str) -> Any:
        if key not in self._state and not self._is_beginning:
            raise ValueError(f"{self._node}: the state has no {key!r}; it is damaged, or from another kind of node")
        return self._state.get(key)

    def get(self, key: str) -> Any:
        return self._state.get(key)

    def integer(self, key: str, default: int = _REQUIRED, *, least: int, most: int = sys.maxsize) -> int:
        value = self._state.get(key, least if self._is_beginning else default)
        value = self[key] if value is _REQUIRED else value
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            raise self.wrong(key, "must be an integer") from None
        if isinstance(value, bool) or not least <= number <= most:
            upper = "" if most == sys.maxsize else f" and at most {most}"
            raise self.wrong(key, f"must be an integer of at least {least}{upper}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self._state.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be True or False")
        return value

    def list_of(self, key: str) -> list[Any]:
        value = self._state.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list")
        return value

    def state(self, key: str) -> Any:
        """Returns the value of a field that contains the state of another object, such as the source."""
        value = self[key]
        if not isinstance(value, Mapping) and not self._is_beginning:
            raise self.wrong(key, "must be a dict")
        return value

    def by_name(self, key: str, names: list[str]) -> Mapping[str, Any]:
        value: Mapping[str, Any] = self.state(key)
        missing = [name for name in names if name not in value]
        if missing:
            raise self.wrong(key, f"must have the keys {names}")
        return value

    def reset(self, source: BaseNode[T], key: str) -> Callable[[], T]:
        source.reset(self[key])
        return advance_of(source)

    def wrong(self, key: str, wanted: str) -> ValueError:
        return ValueError(f"{self._node}: {key!r} in the state {wanted}, but is {_shown(self._state.get(key))}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Unsaved:
    def __init__(self, error: NotImplementedError) -> None:
        self.error = error.with_traceback(None)  # the traceback would keep the variables of its frames alive


def position_of(node: BaseNode[Any]) -> Any:
    try:
        return node.state_dict()
    except NotImplementedError as error:
        return Unsaved(error)


def state_at(position: Any) -> Any:
    if type(position) is Unsaved:
        raise position.error.with_traceback(None)
    return position
