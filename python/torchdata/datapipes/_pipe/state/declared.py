"""Declares which attributes form the iteration state of a pipe.

The class of a pipe declares each attribute of its iteration state, such as `_left: int = state(0)`. From the
declarations, `IterDataPipe` derives `reset`, `item_attributes`, `state_dict` and `load_state_dict`, and determines
which attributes are copied and pickled. A pipe without state sets `iteration_state = ()`.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import Any

from torchdata.datapipes._pipe.state.chunked_list import ChunkedList

_MISSING: Any = object()

#: The types that `random.seed` accepts.
_SEEDS = (int | float | str | bytes | bytearray | None,)

#: The forms of loaded values (see `fits`), by the type of the value when an iteration begins.
_FORMS: dict[Any, Any] = {bool: (bool,), int: (int,), dict: (dict,), **dict.fromkeys((list, deque, set), (list,))}

#: The largest number of items that a loaded state may mention. A state with a larger number is rejected.
MOST_ITEMS = 1 << 62


def state(
    begins: Any = None, *, items: bool = False, copied: bool = False, lasts: bool = False, saved: bool = True
) -> Any:
    """Declares an attribute to be part of the iteration state of a pipe.

    Args:
        begins: the value of the attribute when an iteration begins; for a mutable value, a function without arguments
            that returns the value, such as `list`.
        items: whether the value contains items of the pipeline; pipes in the value are then items, and not sources of
            this pipe; False by default.
        copied: whether copies and pickles of the pipe include the attribute; False by default.
        lasts: whether the value is kept from one iteration to the next; False by default. The pipe must assign a new
            value instead of modifying the old value, because a saved state may contain the old value. Only a dict may
            be modified, because saved states contain a copy of the dict.
        saved: whether saved states include the attribute; True by default.

    Returns:
        The declaration, which the class body assigns to the attribute.

    Raises:
        ValueError: `begins` is a list, a dict or another mutable value.

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
    return DeclaredState(begins, items=items, copied=copied, lasts=lasts, saved=saved)


def random_state(*, lasts: bool = False) -> Any:
    """Declares that an attribute that the constructor sets to a `random.Random` is part of the iteration state.

    Args:
        lasts: whether the random generator keeps its state from one iteration to the next. If `lasts` is False (the
            default), the pipe's `reset` must seed the random generator for each iteration.

    Returns:
        The declaration, which the class body assigns to the attribute.

    Example:
        >>> import random
        >>> from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
        >>> from torchdata.datapipes.state import load_state, random_state, save_state
        >>> class Noisy(IterDataPipe):
        ...     generator: random.Random = random_state(lasts=True)
        ...     def __init__(self, source_datapipe):
        ...         self.source_datapipe, self.generator = source_datapipe, random.Random(0)
        ...     def __iter__(self):
        ...         for item in self.source_datapipe:
        ...             yield item + self.generator.random()
        >>> pipe, other = Noisy(IterableWrapper(range(3))), Noisy(IterableWrapper(range(3)))
        >>> iterator = iter(pipe)
        >>> first = next(iterator)
        >>> load_state(other, save_state(pipe))
        >>> list(other) == list(iterator)
        True
    """
    return RandomState(copied=True, lasts=lasts)


def fits(value: Any, *forms: Any) -> bool:
    """Returns whether a loaded value has one of the forms: a type, None, a range, a function that returns whether the
    value is valid, a list with the form of all members, or a dict, tuple or list with the form of each member. The form
    `int` means a number of items."""
    return any(_fits(value, form) for form in forms)


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, FunctionType):
        return bool(form(value))
    if isinstance(form, dict):
        return type(value) is dict and value.keys() == form.keys() and all(_fits(value[key], form[key]) for key in form)
    if isinstance(form, list) and len(form) == 1:
        return type(value) is list and all(_fits(member, form[0]) for member in value)
    if isinstance(form, (list, tuple)):
        return type(value) is type(form) and len(value) == len(form) and all(map(_fits, value, form))
    form = range(MOST_ITEMS) if form is int else form
    return type(value) is int and value in form if isinstance(form, range) else isinstance(value, form or NoneType)


@dataclass(slots=True, eq=False)
class DeclaredState:
    begins: Any = None
    items: bool = False
    copied: bool = False
    lasts: bool = False
    saved: bool = True
    name: str = ""
    key: str = ""
    #: The allowed forms of a loaded value (see `fits`), or a function that computes them from the pipe. By default, the
    #: forms depend on `begins`.
    of: Any = ()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.key = name, name.lstrip("_")

    def beginning(self) -> Any:
        return self.begins() if callable(self.begins) else self.begins

    def reset(self, datapipe: Any) -> None:
        setattr(datapipe, self.name, self.beginning())

    def dump(self, datapipe: Any) -> Any:
        value = datapipe.__dict__.get(self.name, _MISSING)
        if value is _MISSING:
            value = self.beginning()
        if isinstance(value, (deque, set, ChunkedList)):
            return list(value)
        return value.copy() if type(value) is dict else value

    def load(self, datapipe: Any, value: Any) -> None:
        setattr(datapipe, self.name, self.begins(value) if self.begins in (deque, set) else value)

    def check(self, value: Any, datapipe: Any) -> None:
        """Raises TypeError if a loaded value has no allowed form."""
        kind = self.begins if isinstance(self.begins, type) else type(self.begins)
        forms = self.of(datapipe) if callable(self.of) else self.of
        forms = forms or (_SEEDS if self.key.endswith("seed") else _FORMS.get(kind, (object,)))
        if not fits(value, *forms):
            raise TypeError(f"{self.key} is of type {type(value).__name__}, but this pipe does not save such a value")


def checked_state(of: Any, begins: Any = None, **options: Any) -> Any:
    return DeclaredState(begins, of=of, **options)


class RandomState(DeclaredState):
    def reset(self, datapipe: Any) -> None:
        pass

    def dump(self, datapipe: Any) -> Any:
        generator: random.Random = getattr(datapipe, self.name)
        return generator.getstate()

    def load(self, datapipe: Any, value: Any) -> None:
        getattr(datapipe, self.name).setstate(value)

    def check(self, value: Any, datapipe: Any) -> None:
        try:
            random.Random().setstate(value)
        except ValueError as error:
            raise TypeError(f"{self.key} is not the state of a random generator") from error


def declare(cls: Any) -> tuple[DeclaredState, ...]:
    """Returns the declarations of a class, and replaces each declaration by the initial value of the attribute."""
    own = _of(cls)
    if own or any(not hasattr(base, "_own_state") and _of(base) for base in cls.__bases__):
        # A mixin's `iteration_state` is replaced, too.
        cls.iteration_state = tuple(state.name for state in own)
    cls._own_state = own
    found: dict[str, DeclaredState] = {}
    for base in reversed(cls.__mro__):
        for each in base.__dict__.get("_own_state") or _of(base):
            found[each.name] = each
    for each in found.values():
        if isinstance(getattr(cls, each.name, None), DeclaredState):
            setattr(cls, each.name, None if callable(each.begins) else each.begins)
    return tuple(found.values())


def _of(cls: type) -> tuple[DeclaredState, ...]:
    return tuple(value for value in cls.__dict__.values() if isinstance(value, DeclaredState))


def _state_dict(self: Any) -> dict[str, Any]:
    declared: dict[str, Any] = self._declared_state()
    return declared


def _load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
    self._load_declared(state_dict)


_state_dict.__name__ = _state_dict.__qualname__ = "state_dict"
_load_state_dict.__name__ = _load_state_dict.__qualname__ = "load_state_dict"

DERIVED = {"state_dict": _state_dict, "load_state_dict": _load_state_dict}
