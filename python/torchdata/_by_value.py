"""Pickling by value, which refuses objects that would lose values on the way.

Role: used for items, states and programs that plain pickle cannot take, in the process that has them. Imported when
something is pickled by value for the first time, because it imports cloudpickle.

cloudpickle takes classes that cannot be imported, which plain pickle refuses. Such a class may be made by a library at
run time, and may have values that the `__reduce__` of its base does not know: `types.SimpleNamespace` returns what lies
in `__dict__`, and not the `__slots__` of a class derived from it. These values would be lost without an error.
"""

from __future__ import annotations

import io
import pickle
from types import MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle

__all__ = ["ByValuePickler", "dumps"]

#: By class: None if its objects lose nothing, else the sets of values at risk of which an object has lost nothing.
_seen: WeakKeyDictionary[type, set[frozenset[str]] | None] = WeakKeyDictionary()


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The pickler of cloudpickle, with the check."""

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`.

        Raises:
            pickle.PicklingError: an object of a class that is pickled by value would arrive without some of its values.
        """
        cls: type = type(obj)
        if cls not in _seen:
            by_value = super().reducer_override(cls) is not NotImplemented
            _seen[cls] = set() if by_value and _way_of(cls) is not object else None
        faithful = _seen[cls]
        if faithful is not None:
            _check(obj, faithful)
        return super().reducer_override(obj)


def dumps(obj: Any) -> bytes:
    """Pickles an object, by value what cannot be imported."""
    file = io.BytesIO()
    ByValuePickler(file, protocol=5).dump(obj)
    return file.getvalue()


def _check(obj: Any, faithful: set[frozenset[str]]) -> None:
    names = frozenset(_values_at_risk(obj))
    if not names or names in faithful:
        return
    received = pickle.loads(cloudpickle.dumps(obj, protocol=5))
    lost = sorted(name for name in names if not hasattr(received, name))
    if lost:
        name = type(obj).__qualname__
        raise pickle.PicklingError(
            f"an object of class {name} would arrive without its values {', '.join(lost)}: the class was made at run "
            f"time, and {_way_of(type(obj)).__qualname__}, which defines how the object is pickled, leaves them out. "
            f"Put the values into a dict or a tuple, or define `__reduce__` in {name}"
        )
    faithful.add(names)


def _way_of(cls: type) -> type:
    """The class that defines how objects of a class are pickled; `object`, whose way is complete, if no other does."""
    ways = ("__reduce_ex__", "__reduce__", "__getstate__")
    return next(base for base in cls.__mro__ if not vars(base).keys().isdisjoint(ways))


def _values_at_risk(obj: Any) -> list[str]:
    """The names of values that the class which defines how the object is pickled may not know.

    These are the values in `__slots__` of classes derived from it; and if it is written in C, all in `__dict__`. A
    class written in Python that leaves out some of `__dict__` does so on purpose.
    """
    cls = type(obj)
    way = _way_of(cls)
    names = [] if way.__flags__ & _MADE_IN_PYTHON else list(getattr(obj, "__dict__", ()))
    for derived in cls.__mro__[: cls.__mro__.index(way)]:
        slots = (name for name, member in vars(derived).items() if type(member) is MemberDescriptorType)
        names += [name for name in slots if hasattr(obj, name)]
    return names


#: The flag `Py_TPFLAGS_HEAPTYPE`.
_MADE_IN_PYTHON = 1 << 9
