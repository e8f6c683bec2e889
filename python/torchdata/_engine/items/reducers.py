"""Chooses the function that pickles objects of a type: the user's reducer if one is registered, otherwise this
package's reducer for tensors and arrays, otherwise pickle's default.

Role: the codec (codec.py) uses this module for each pickled item. The extension also queries this module for the types
with reducers that users have registered.
"""

from __future__ import annotations

import copyreg
import io
import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any

from torchdata._engine.items.mapped_files import reduce_memmap
from torchdata._engine.items.tensors import DepartingTensors

#: A function that a pickler calls to reduce an object of a type.
Reducer = Callable[[Any], Any]

#: A reducer that pickles an object in the default way, for use in a pickler's table. The reducer is a C function, so it
#: creates no Python frame.
_ITS_OWN_WAY: Reducer = operator.methodcaller("__reduce_ex__", 5)


def _users_reducers() -> dict[type, Reducer]:
    """Returns the reducers that users registered with the pickler of multiprocessing, which torch.multiprocessing also
    uses.

    Reducers that multiprocessing and torch registered themselves are excluded, because they send descriptors and
    handles differently.
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
    return cls in copyreg.dispatch_table or cls in _users_reducers()


class Reducers(dict[type, Reducer]):
    """A pickler's table: the reducer of each exact type, determined when an object of the type is first pickled.

    A pickler looks up every object in its table. The table also gets entries for types without a special reducer,
    because a failing lookup takes longer than pickling a small object.
    """

    def __init__(self, base: Any, users: dict[type, Reducer]) -> None:
        super().__init__(users)
        #: The registered reducers, from the table of a pickler class or from `copyreg`.
        self.base = base
        #: The value of `Tables._seen` when this table was created; None if this table must not be reused.
        self.made_for: object = None
        #: The tensors of the object that is being pickled.
        self.tensors = DepartingTensors()

    def __missing__(self, cls: type) -> Reducer:
        reduce: Reducer | None = self.base.get(cls)
        if reduce is None and "torch" in sys.modules:
            reduce = self.tensors.reducer(cls)
        if reduce is None and cls is getattr(sys.modules.get("numpy"), "ndarray", None):
            reduce = _reduce_array
        if reduce is None:
            if issubclass(cls, type):
                raise KeyError(cls)  # the pickler itself pickles classes by name
            reduce = _ITS_OWN_WAY
        self[cls] = reduce
        return reduce


class Tables:
    """Reducer tables that are used for several items. Only one pickler at a time uses a table.

    The tables are rebuilt when a type is registered with `copyreg`, and when a module is imported. The tables are not
    rebuilt when users register reducers with the pickler of multiprocessing, because checking these registrations for
    each item would copy them. If a table already contains a type, its new reducer takes effect at the next import.
    """

    #: A larger table is not reused, because it would keep its types alive, and users may create types repeatedly.
    _MOST_TYPES = 500

    def __init__(self) -> None:
        self._free: list[Reducers] = []
        #: The reducers in `copyreg` and the number of imported modules at the time when the tables were created.
        self._seen: tuple[dict[type, Any], int] = ({}, 0)

    def take(self, pickling: Any) -> Reducers:
        """Returns a table for a pickler, which must be returned with `give_back`."""
        if type(pickling) is not pickle.Pickler:  # the class may have its own reducers
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
        """Makes a table available to other picklers. Call this method after the pickler has finished."""
        if table.made_for is self._seen and len(table) <= self._MOST_TYPES:
            self._free.append(table)


def program_table(pickling: Any) -> Reducers:
    """Returns the reducer table for pickling a program. With this table, the pickle refers to the files of read-only
    memory-mapped arrays instead of containing the arrays.
    """
    table = Reducers(getattr(pickling, "dispatch_table", copyreg.dispatch_table), _users_reducers())
    numpy = sys.modules.get("numpy")
    if numpy is not None and numpy.memmap not in table.base:
        table.setdefault(numpy.memmap, reduce_memmap)
    return table


def _reduce_array(array: Any) -> Any:
    """Stores an array out of band if NumPy would put the array into the pickle element by element."""
    if not array.flags.forc:
        array = array.copy()
    if array.dtype.kind in "mM" and array.dtype.isnative:
        return _as_dtype, (array.view("i8"), array.dtype)
    return array.__reduce_ex__(5)


def _as_dtype(array: Any, dtype: Any) -> Any:
    return array.view(dtype)
