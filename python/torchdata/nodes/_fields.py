"""Reading the fields of a saved state: a field that is missing or out of range is an error that names it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["Fields"]

#: Stands for no default: the field must be there.
_REQUIRED: Any = object()


class Fields:
    """The fields of a node's state.

    Args:
        node: the node that is reset to the state, in messages.
        state: what `get_state` of such a node returned.

    Raises:
        ValueError: `state` is no dict.
    """

    def __init__(self, node: str, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise ValueError(f"{node}: a state must be a dict, but got {_shown(state)}")
        self._node = node
        self._state = state

    def __contains__(self, key: str) -> bool:
        return key in self._state

    def __getitem__(self, key: str) -> Any:
        """The value of a field.

        Raises:
            ValueError: there is no such field.
        """
        if key not in self._state:
            raise ValueError(f"{self._node}: the state has no {key!r}; it is damaged, or that of another kind of node")
        return self._state[key]

    def get(self, key: str) -> Any:
        """The value of a field; None if there is none."""
        return self._state.get(key)

    def integer(self, key: str, default: int = _REQUIRED, *, least: int, most: int = sys.maxsize) -> int:
        """The value of a field that holds an integer.

        Args:
            key: the name of the field.
            default: what an absent field stands for.
            least: the smallest value that it can have.
            most: the greatest one.

        Raises:
            ValueError: the field is missing, no integer, or out of range.
        """
        value = self._state.get(key, default) if default is not _REQUIRED else self[key]
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            raise self.wrong(key, "must be an integer") from None
        if isinstance(value, bool) or not least <= number <= most:
            upper = "" if most == sys.maxsize else f" and at most {most}"
            raise self.wrong(key, f"must be an integer of at least {least}{upper}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """The value of a field that holds True or False.

        Raises:
            ValueError: it holds something else.
        """
        value = self._state.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be True or False")
        return value

    def list_of(self, key: str) -> list[Any]:
        """The value of a field that holds a list; an absent one is empty.

        Raises:
            ValueError: it holds something else.
        """
        value = self._state.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list")
        return value

    def state(self, key: str) -> Mapping[str, Any]:
        """The value of a field that holds a state of a part of this node.

        Raises:
            ValueError: it holds something else.
        """
        value = self[key]
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be a dict")
        return value

    def by_name(self, key: str, names: list[str]) -> Mapping[str, Any]:
        """The value of a field that holds a dict with these keys.

        Raises:
            ValueError: it holds something else, or lacks a key.
        """
        value = self.state(key)
        missing = [name for name in names if name not in value]
        if missing:
            raise self.wrong(key, f"must have the keys {names}")
        return value

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error for a field with a wrong value.

        Args:
            key: the name of the field.
            wanted: what the value must be.
        """
        return ValueError(f"{self._node}: {key!r} in the state {wanted}, but is {_shown(self._state.get(key))}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
