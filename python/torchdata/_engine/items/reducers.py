"""Chooses the function that pickles objects of a type: a reducer that the user has registered, this package's reducer
for tensors and arrays, or pickle's default.
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

Reducer = Callable[[Any], Any]

#: Pickles an object by pickle's default in C, without a Python frame.
_DEFAULT_REDUCER: Reducer = operator.methodcaller("__reduce_ex__", 5)


def _users_reducers() -> dict[type, Reducer]:
    """Returns the reducers that users registered with `ForkingPickler`, which torch.multiprocessing also uses.

    The reducers of multiprocessing and torch are excluded, because the engine cannot send their file descriptors and
    handles.
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
    """A pickler's `dispatch_table`, which determines the reducer of a type when the first object of this type is
    pickled.

    For a type without a special reducer, the table stores pickle's default, because a pickler is slow for types that
    its table lacks.
    """

    def __init__(self, base: Any, users: dict[type, Reducer]) -> None:
        super().__init__(users)
        self.base = base
        #: The value of `Tables._seen` when this object was created; None if this object must not be reused.
        self.made_for: object = None
        self.tensors = DepartingTensors()

    def __missing__(self, cls: type) -> Reducer:
        reduce: Reducer | None = self.base.get(cls)
        if reduce is None and "torch" in sys.modules:
            reduce = self.tensors.reducer(cls)
        if reduce is None and cls is getattr(sys.modules.get("numpy"), "ndarray", None):
            reduce = _reduce_array
        if reduce is None:
            if issubclass(cls, type):
                raise KeyError(cls)  # the pickler itself pickles a class by its name
            reduce = _DEFAULT_REDUCER
        self[cls] = reduce
        return reduce


class Tables:
    """Stores unused `Reducers` objects, so that they can be reused for further items.

    Tables of reducers are rebuilt after a registration with `copyreg`, and after an import. A registration with
    `ForkingPickler` takes effect when the tables are next rebuilt, because detecting each registration would be slow.
    """

    #: Tables with more than `_MOST_TYPES` types are not reused. A table keeps its types alive, so the memory of a
    #: program that repeatedly creates types would grow.
    _MOST_TYPES = 500

    def __init__(self) -> None:
        self._free: list[Reducers] = []
        #: The reducers in `copyreg` and the number of imported modules at the time when the tables in `_free` were
        #: created.
        self._seen: tuple[dict[type, Any], int] = ({}, 0)

    def take(self, pickling: Any) -> Reducers:
        if type(pickling) is not pickle.Pickler:  # a subclass of the pickler may have its own reducers
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
        """Stores a table that is no longer used, so that the next pickler can use the table."""
        if table.made_for is self._seen and len(table) <= self._MOST_TYPES:
            self._free.append(table)


def program_table(pickling: Any) -> Reducers:
    """Makes the pickle refer to the files of memory-mapped arrays instead of copying the arrays."""
    table = Reducers(getattr(pickling, "dispatch_table", copyreg.dispatch_table), _users_reducers())
    numpy = sys.modules.get("numpy")
    if numpy is not None and numpy.memmap not in table.base:
        table.setdefault(numpy.memmap, reduce_memmap)
    return table


def _reduce_array(array: Any) -> Any:
    """Converts an array that NumPy would pickle element by element, so that its memory becomes a separate buffer."""
    if not array.flags.forc:
        array = array.copy()
    if array.dtype.kind in "mM" and array.dtype.isnative:
        return _as_dtype, (array.view("i8"), array.dtype)
    return array.__reduce_ex__(5)


def _as_dtype(array: Any, dtype: Any) -> Any:
    return array.view(dtype)
