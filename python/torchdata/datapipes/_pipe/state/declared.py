"""The declaration of a pipe's iteration state: what it is made of, said once.

Role: a pipe declares each attribute of its iteration state in its class, `_left: int = state(0)`, and `IterDataPipe`
derives `reset`, what copies take along, `item_attributes`, `state_dict` and `load_state_dict`. The number of yielded
items does not belong to it, because the token contains it. A pipe that keeps no state says `iteration_state = ()`. A
declaration is made with the class and never changes.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

__all__ = ["DERIVED", "MOST_ITEMS", "RandomState", "State", "declare", "random_state", "state"]

_MISSING: Any = object()

#: A number of items that no iteration reaches.
MOST_ITEMS = 1 << 62


def state(
    begins: Any = None, *, items: bool = False, copied: bool = False, lasts: bool = False, saved: bool = True
) -> Any:
    """Declares an attribute to be part of the iteration state of a pipe.

    Args:
        begins: its value when an iteration begins; for a mutable value, a function without arguments that returns it,
            such as `list`.
        items: whether it holds items. Pipes among them are not taken for sources of this pipe.
        copied: whether copies and pickles of the pipe take it along.
        lasts: whether it outlives an iteration. The next one continues with it then. Such a value is never changed in
            place, but replaced (a dict may be changed).
        saved: whether it is part of saved states.

    Raises:
        ValueError: `begins` is a list, a dict or another value that can be changed in place.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
        >>> from torchdata.datapipes.state import load_state, save_state, state
        >>> class Pairs(IterDataPipe):
        ...     _first: list = state(list, items=True)
        ...     def __init__(self, source_datapipe):
        ...         self.source_datapipe = source_datapipe
        ...     def __iter__(self):
        ...         for item in self.source_datapipe:
        ...             self._first.append(item)
        ...             if len(self._first) == 2:
        ...                 pair, self._first = tuple(self._first), []
        ...                 yield pair
        >>> pipe, other = Pairs(IterableWrapper(range(6))), Pairs(IterableWrapper(range(6)))
        >>> next(iter(pipe))
        (0, 1)
        >>> load_state(other, save_state(pipe))
        >>> list(other)
        [(2, 3), (4, 5)]
    """
    if type(begins) in (list, dict, set, bytearray, deque):
        kind = type(begins).__name__
        made = f"state({kind})" if not begins else f"state(lambda: {begins!r})"
        raise ValueError(
            f"state({begins!r}): all pipes of the class, and all their epochs, would share this one {kind}; give a "
            f"function that makes it, {made}"
        )
    return State(begins, items=items, copied=copied, lasts=lasts, saved=saved)


def random_state(*, lasts: bool = False) -> Any:
    """Declares that an attribute, which the constructor sets to a `random.Random`, is part of the iteration state.

    Args:
        lasts: whether the generator continues from one iteration to the next. If False (the default), `reset` must seed
            it.
    """
    return RandomState(lasts=lasts)


class State:
    """One attribute that is part of the iteration state of a pipe. The arguments are those of `state`."""

    __slots__ = ("begins", "copied", "items", "key", "lasts", "name", "saved")

    def __init__(
        self,
        begins: Any = None,
        *,
        items: bool = False,
        copied: bool = False,
        lasts: bool = False,
        saved: bool = True,
    ) -> None:
        self.name = self.key = ""
        self.begins = begins
        self.items = items
        self.copied = copied
        self.lasts = lasts
        self.saved = saved

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.key = name, name.lstrip("_")

    def beginning(self) -> Any:
        """The value of the attribute when an iteration begins."""
        return self.begins() if callable(self.begins) else self.begins

    def reset(self, datapipe: Any) -> None:
        """Sets the attribute as an iteration begins with it."""
        setattr(datapipe, self.name, self.beginning())

    def dump(self, datapipe: Any) -> Any:
        """The value as a state holds it."""
        value = datapipe.__dict__.get(self.name, _MISSING)
        if value is _MISSING:
            value = self.beginning()
        if isinstance(value, (deque, set)):
            return list(value)
        return value.copy() if type(value) is dict else value

    def load(self, datapipe: Any, value: Any) -> None:
        """Sets the attribute to a value that a state held."""
        setattr(datapipe, self.name, self.begins(value) if self.begins in (deque, set) else value)

    def check(self, value: Any) -> None:
        """Checks whether a value in a state has the type of the attribute's first value; an integer is a count.

        Nothing is known about an attribute whose first value is None, a tuple, or the result of a function.

        Raises:
            TypeError: it is of another type.
            LookupError: it is not a count.
        """
        kind = self.begins if isinstance(self.begins, type) else type(self.begins)
        kind = list if kind in (deque, set) else kind
        if kind in (bool, int, list, dict) and not isinstance(value, kind):
            raise TypeError(f"{self.key} is of type {type(value).__name__} instead of {kind.__name__}")
        if kind is int and not 0 <= value < MOST_ITEMS:
            raise LookupError(f"{self.key} is {value}, which is no number of items")


class RandomState(State):
    """A `random.Random`: an attribute that the constructor sets."""

    __slots__ = ()

    def __init__(self, *, lasts: bool = False) -> None:
        super().__init__(copied=True, lasts=lasts)

    def reset(self, datapipe: Any) -> None:
        pass

    def dump(self, datapipe: Any) -> Any:
        generator: random.Random = getattr(datapipe, self.name)
        return generator.getstate()

    def load(self, datapipe: Any, value: Any) -> None:
        getattr(datapipe, self.name).setstate(value)


def declare(cls: Any) -> tuple[State, ...]:
    """All that a class of pipes and its bases declare; what a class says goes before what its bases say.

    The first values of the attributes replace the declarations in the class.
    """
    own = _of(cls)
    if own or any(not hasattr(base, "_own_state") and _of(base) for base in cls.__bases__):
        # It speaks for the mixins among its bases, too.
        cls.iteration_state = tuple(state.name for state in own)
    cls._own_state = own
    found: dict[str, State] = {}
    for base in reversed(cls.__mro__):
        for each in base.__dict__.get("_own_state") or _of(base):
            found[each.name] = each
    for each in found.values():
        if isinstance(getattr(cls, each.name, None), State):
            setattr(cls, each.name, None if callable(each.begins) else each.begins)
    return tuple(found.values())


def _of(cls: type) -> tuple[State, ...]:
    """The states that the body of a class declares."""
    return tuple(value for value in cls.__dict__.values() if isinstance(value, State))


def _state_dict(self: Any) -> dict[str, Any]:
    """The iteration state that the pipe declares, as of the last item that it yielded."""
    declared: dict[str, Any] = self._declared_state()
    return declared


def _load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
    """Takes a saved iteration state over, which is this pipe's from then on."""
    self._load_declared(state_dict)


_state_dict.__name__ = _state_dict.__qualname__ = "state_dict"
_load_state_dict.__name__ = _load_state_dict.__qualname__ = "load_state_dict"

#: The methods that a class which declares its state has, unless it or a base of it defines them.
DERIVED = {"state_dict": _state_dict, "load_state_dict": _load_state_dict}
