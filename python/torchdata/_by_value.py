"""Pickles objects by value with cloudpickle, and refuses objects that would lose attributes.

This module pickles items, states and programs that plain pickle does not support. This module is imported only when
needed, because it imports cloudpickle.

If an object inherits `__reduce__` from a base class, `__reduce__` may omit attributes of the derived class. For
example, `types.SimpleNamespace.__reduce__` omits the `__slots__` of derived classes. Pickling an object raises an error
if the pickle would lack attributes.

Functions keep the name of their file, so that a traceback in a worker shows the source line; cloudpickle 3.1.3 would
replace the name by "<dynamic-code>". Annotations that cannot be evaluated become strings. Modules of `lazy import`
(Python 3.15) are imported before a function that uses them is pickled.
"""

from __future__ import annotations

import copyreg
import operator
import pickle
import sys
import types
import typing
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle

from torchdata._bounded_pickles import pickle_file
from torchdata._handlers import FailuresSuppressed, is_of_handler
from torchdata._signatures import names_in

#: For each class, the sets of attributes that were pickled completely; None if objects of the class cannot lose
#: attributes.
_seen: WeakKeyDictionary[type, set[frozenset[str]] | None] = WeakKeyDictionary()


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`.

        Raises:
            pickle.PicklingError: an object of a class that is pickled by value would lose attributes.
            ImportError: a module of `lazy import` cannot be imported.
        """
        cls: type = type(obj)
        if cls is CodeType:
            return _reduced_code(obj)
        if cls is FunctionType:
            return self._reduced_function(obj)
        if cls is _LAZY_IMPORT:
            return operator.getitem, ((obj.resolve(),), 0)
        if cls is _FORWARD_REFERENCE:
            return cls, (obj.__forward_arg__,)
        if isinstance(obj, BaseException) and (reduced := _reduced_error(obj)) is not NotImplemented:
            return reduced
        if cls not in _seen:
            by_value = super().reducer_override(cls) is not NotImplemented
            _seen[cls] = set() if by_value and _base_of(cls) is not object else None
        faithful = _seen[cls]
        if faithful is not None:
            _check(obj, faithful)
        return super().reducer_override(obj)

    def _reduced_function(self, function: FunctionType) -> Any:
        _import_lazy_modules(function)
        try:
            return super().reducer_override(function)
        except Exception as error:
            if is_of_handler(error) or _can_evaluate_annotations(function):
                raise
        return super().reducer_override(_with_annotations_as_text(function))


def dumps(obj: Any) -> bytes:
    with pickle_file() as file:
        ByValuePickler(file, protocol=5).dump(obj)
    return file.getvalue()


#: The type of an object that `lazy import` binds to a name until the name is used (Python 3.15).
_LAZY_IMPORT = getattr(types, "LazyImportType", None)
#: In Python 3.14, a `ForwardRef` replaces an annotation that cannot be evaluated. A `ForwardRef` may refer to variables
#: that cannot be pickled.
_FORWARD_REFERENCE = typing.ForwardRef if sys.version_info >= (3, 14) else None


def _reduced_code(code: CodeType) -> Any:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if type(one) is str and one == "<dynamic-code>" else one for one in arguments)


def _import_lazy_modules(function: FunctionType) -> None:
    """Imports the lazy modules that the function uses, so that cloudpickle finds their submodules."""
    if _LAZY_IMPORT is None:
        return
    names = function.__globals__
    for name in set(names_in(function.__code__)):
        if type(names.get(name)) is _LAZY_IMPORT:
            try:
                names[name] = names[name].resolve()
            except ImportError:
                continue  # the name may belong to an attribute; if it is a module, pickling raises the error


def _can_evaluate_annotations(function: FunctionType) -> bool:
    with FailuresSuppressed():  # the user's expression may raise any error
        return function.__annotations__ is not None
    return False


def _with_annotations_as_text(function: FunctionType) -> FunctionType:
    """Returns a copy of the function with annotations as strings, as `from __future__ import annotations` creates
    them."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    for name in ("__kwdefaults__", "__module__", "__qualname__", "__doc__"):
        setattr(copy, name, getattr(function, name))
    vars(copy).update(vars(function))
    copy.__annotations__ = _annotations_as_text(function)
    return copy


def _annotations_as_text(function: FunctionType) -> dict[str, str]:
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        with FailuresSuppressed():
            return get_annotations(function, format=Format.STRING)
    return {}


def _reduced_error(error: BaseException) -> Any:
    """Lets an exception be unpickled without calling its constructor, if the constructor is written in Python.

    By default, unpickling calls the constructor with `error.args`, which fails if the constructor has other parameters.
    """
    cls = type(error)
    if (
        cls.__reduce__ is not BaseException.__reduce__
        or cls.__reduce_ex__ is not object.__reduce_ex__
        or not isinstance(cls.__init__, FunctionType)
        or isinstance(cls.__new__, FunctionType)
        or cls in copyreg.dispatch_table
        or getattr(copyreg, "_slotnames")(cls)  # noqa: B009 # private
    ):
        return NotImplemented
    return getattr(copyreg, "__newobj__"), (cls, *error.args), vars(error) or None  # noqa: B009 # missing in typeshed


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
            f"time, and {_base_of(type(obj)).__qualname__}, which defines how the object is pickled, leaves them out. "
            f"Put the values into a dict or a tuple, or define `__reduce__` in {name}"
        )
    faithful.add(names)


def _base_of(cls: type) -> type:
    """Returns the base class of `cls` that defines how to pickle its objects; `object` by default."""
    methods = ("__reduce_ex__", "__reduce__", "__getstate__")
    return next(base for base in cls.__mro__ if not vars(base).keys().isdisjoint(methods))


def _values_at_risk(obj: Any) -> list[str]:
    """Returns the attributes that a pickle may omit.

    A pickling method of a base class may omit the `__slots__` of derived classes. A pickling method in C may also omit
    attributes in `__dict__`. A pickling method in Python is assumed to omit attributes intentionally.
    """
    cls = type(obj)
    owner = _base_of(cls)
    names = [] if owner.__flags__ & _MADE_IN_PYTHON else list(getattr(obj, "__dict__", ()))
    for derived in cls.__mro__[: cls.__mro__.index(owner)]:
        slots = (name for name, member in vars(derived).items() if type(member) is MemberDescriptorType)
        names += [name for name in slots if hasattr(obj, name)]
    return names


_MADE_IN_PYTHON = 1 << 9
