"""How objects of a type are pickled: users' ways first, then ours for tensors and arrays, else their own.

Role: used by the codec (codec.py) for each item that is pickled, and asked by the extension which types users pickle in
a way of their own.
"""

from __future__ import annotations

import copyreg
import io
import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any

from torchdata import _native
from torchdata._engine.items.mapped_files import reduce_memmap
from torchdata._engine.items.tensors import Departing

__all__ = ["Tables", "has_own_reducer", "program_table"]

#: The function that a pickler calls for an object of a type.
Reducer = Callable[[Any], Any]

#: The default of a pickler, for a type without an entry in its table, as such an entry: it runs no Python frame.
_ITS_OWN_WAY: Reducer = operator.methodcaller("__reduce_ex__", 5)


def _users_reducers() -> dict[type, Reducer]:
    """The reducers that users registered with the pickler of multiprocessing, which torch.multiprocessing uses, too.

    Reducers that the two registered themselves are left out: they send descriptors and handles by other ways.
    """
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return {}
    libraries, public = ("multiprocessing", "torch"), copyreg.dispatch_table
    return {
        cls: reduce
        for cls, reduce in reduction.ForkingPickler(io.BytesIO()).dispatch_table.items()
        if public.get(cls) is not reduce
        and (getattr(reduce, "__module__", None) or "").partition(".")[0] not in libraries
    }


def has_own_reducer(cls: type) -> bool:
    """Whether users said how objects of exactly this type are to be pickled."""
    return cls in copyreg.dispatch_table or cls in _users_reducers()


class Reducers(dict[type, Reducer]):
    """A pickler's table: the reducer of each exact type, found when an object of the type is met for the first time.

    A pickler asks its table for every object. A table that lacks the type, or a method that the pickler calls instead
    (`reducer_override`), costs more than pickling a small object does.
    """

    def __init__(self, base: Any, users: dict[type, Reducer]) -> None:
        super().__init__(users)
        #: Where classes of picklers, and users by `copyreg`, say how they want types pickled.
        self.base = base
        #: Which registrations of users' it knows, if it may be used again.
        self.made_for: object = None
        #: The tensors of what is being pickled.
        self.tensors = Departing()

    def __missing__(self, cls: type) -> Reducer:
        reduce: Reducer | None = self.base.get(cls)
        if reduce is None and "torch" in sys.modules:
            reduce = self.tensors.reducer(cls)
        if reduce is None and cls is getattr(sys.modules.get("numpy"), "ndarray", None):
            reduce = _reduce_array
        if reduce is None:
            if issubclass(cls, type):
                raise KeyError(cls)  # classes go by their names, which is the pickler's own business
            reduce = _ITS_OWN_WAY
        self[cls] = reduce
        return reduce


class Tables:
    """Tables that are used from item to item; each by one pickler at a time, of any thread.

    They are made anew when a type is registered with `copyreg`, and when a module is imported. The pickler of
    multiprocessing shows a copy of its registrations, which takes too long to make for each item; so one of a type that
    was met before counts from the next import on.
    """

    #: A table of more types is not used again: it would keep them, and users may make new ones all the time.
    _MOST_TYPES = 500

    def __init__(self) -> None:
        self._free: list[Reducers] = []
        #: What was registered, and how many modules there were, when the tables were made.
        self._seen: tuple[dict[type, Any], int] = ({}, 0)

    def take(self, pickling: Any) -> Reducers:
        """A table for a pickler that is used once."""
        if type(pickling) is not pickle.Pickler:  # a class that may have reducers of its own
            return Reducers(pickling.dispatch_table, _users_reducers())
        if self._seen != (copyreg.dispatch_table, len(sys.modules)):
            self._seen = dict(copyreg.dispatch_table), len(sys.modules)
            self._free = []
        try:
            return self._free.pop()
        except IndexError:
            table = Reducers(copyreg.dispatch_table, _users_reducers())
            table.made_for = self._seen
            return table

    def give_back(self, table: Reducers) -> None:
        """The pickler of the table has done its work."""
        if table.made_for is self._seen and len(table) <= self._MOST_TYPES:
            self._free.append(table)


def program_table(pickling: Any) -> Reducers:
    """Returns the table for a pickler of a program, in which read-only memory-mapped arrays stay mapped."""
    table = Reducers(getattr(pickling, "dispatch_table", copyreg.dispatch_table), _users_reducers())
    numpy = sys.modules.get("numpy")
    if numpy is not None and numpy.memmap not in table.base:
        table.setdefault(numpy.memmap, reduce_memmap)
    return table


def _reduce_array(array: Any) -> Any:
    """Arrays that NumPy would put into the pickle, element by element, as such that go next to it."""
    copy = _native.contiguous_copy(array)
    if copy is not None:
        array = copy
    if array.dtype.kind in "mM" and array.dtype.isnative:
        return _as_dtype, (array.view("i8"), array.dtype)
    return array.__reduce_ex__(5)


def _as_dtype(array: Any, dtype: Any) -> Any:
    return array.view(dtype)
