"""Copies the pipes of a graph without copying their data.

A loader runs a copy of the user's graph, because sharding, seeding and iterating modify the pipes.

The data in the graph is not copied, because copying takes memory and time, and because copies of some objects would
lack their contents, their shared memory or their open files.

- Pipes of the graph are copied, and objects that refer to a pipe, such as lists of pipes or methods.
- A container of the standard library, such as a list or a dict, is copied, because pipes store the items of an
  iteration in containers. Containers inside containers are copied, too, up to `LARGEST_STRUCTURE` members in total.
- A random generator is copied.
- Datasets, functions, arrays, open files and all remaining objects are shared with the copy. The same holds for
  attributes that a pipe's class lists in `data_attributes`, if they do not refer to a pipe.
"""

from __future__ import annotations

import copy
import copyreg
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from io import BytesIO, IOBase
from threading import Lock
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType, NoneType
from typing import Any, TypeVar

from torchdata._handlers import FailuresSuppressed
from torchdata._importing import loaded
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import LARGEST_STRUCTURE, is_pipe, pipes_in

T = TypeVar("T")
LockType = type(Lock())

#: Instances of subclasses of these containers are not copied, because they may have more attributes.
_CONTAINERS = frozenset({list, tuple, set, frozenset, deque, bytearray, dict, defaultdict, OrderedDict, Counter})

_ATOMS = frozenset({NoneType, bool, int, float, str, bytes, type, range, FunctionType, BuiltinFunctionType})


def duplicate(obj: T) -> T:
    """Copies a graph. The methods `__deepcopy__`, `__reduce_ex__` and `__getstate__` of a pipe's class determine how
    the pipe is copied.
    """
    if not is_pipe(obj):
        return obj if obj is None else _copied_pipe(obj, {})
    graph = Graph(obj)
    sharing = _Sharing(graph)
    for pipe in graph:
        sharing.pin_attributes(pipe)
    for pipe in graph:  # sources come first, so that a long chain of pipes does not cause deep recursion
        end = _copied_pipe(pipe, sharing.memo)
    result: T = end
    return result


def _copied_pipe(pipe: Any, memo: dict[int, Any]) -> Any:
    """Copies a pipe. For ordinary classes, this function takes a third of the time of `copy.deepcopy`."""
    cls: Any = type(pipe)
    if id(pipe) in memo or hasattr(cls, "__deepcopy__") or hasattr(cls, "__setstate__"):
        return copy.deepcopy(pipe, memo)
    reduced = pipe.__reduce_ex__(4)
    if reduced[:2] != (copyreg.__newobj__, (cls,)) or type(reduced[2]) is not dict or any(reduced[3:]):  # type: ignore[attr-defined]
        return copy.deepcopy(pipe, memo)
    duplicate = memo[id(pipe)] = cls.__new__(cls)
    vars(duplicate).update(
        {name: value if type(value) in _ATOMS else copy.deepcopy(value, memo) for name, value in reduced[2].items()}
    )
    return duplicate


def attribute_copier(obj: Any) -> Callable[[Any], Any]:
    if not is_pipe(obj):
        return copy.deepcopy
    graph = Graph(obj)

    def copied(value: Any) -> Any:
        sharing = _Sharing(graph)
        sharing.pin(value)
        return copy.deepcopy(value, sharing.memo)

    return copied


class _Sharing:
    """The `memo` for `copy.deepcopy` maps the id of each object to the object's replacement in the copy."""

    def __init__(self, graph: Graph) -> None:
        self.memo: dict[int, Any] = {}
        self._pipes = set(map(id, graph))
        self._generators = _generator_types()
        self._left = 0

    def pin_attributes(self, pipe: Any) -> None:
        data = getattr(type(pipe), "data_attributes", ())
        for name, value in list(vars(pipe).items()):
            if name in data and not self._refers(value):
                self.memo[id(value)] = value
            else:
                self.pin(value)

    def pin(self, value: Any) -> None:
        self._left = LARGEST_STRUCTURE
        self._pin(value)

    def _pin(self, value: Any) -> None:
        kind: Any = type(value)
        if kind in _ATOMS or id(value) in self.memo or id(value) in self._pipes:
            return
        if kind in _CONTAINERS:
            if len(value) > self._left:  # larger containers count as data, as in the search for pipes
                self.memo[id(value)] = copy.copy(value)
                return
            self._left -= len(value)
        elif isinstance(value, self._generators):
            self.memo[id(value)] = _copied(value)
            return
        elif not self._refers(value):
            if kind.__module__.partition(".")[0] != "torchdata":  # classes of this package define how they are copied
                self.memo[id(value)] = value
            return
        for part in _parts(value):
            self._pin(part)

    def _refers(self, value: Any, levels: int = 2) -> bool:
        """Returns whether `value` refers to a pipe, directly, in containers or by up to `levels` nested objects."""
        if type(value) in _ATOMS:
            return False
        if id(value) in self._pipes:
            return True
        if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            return any(id(pipe) in self._pipes for pipe in pipes_in(value))
        return levels > 0 and any(self._refers(part, levels - 1) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (type, FunctionType, ModuleType)):
        return []
    attributes = getattr(value, "__dict__", None)
    return list(attributes.values()) if type(attributes) is dict else []


def _generator_types() -> tuple[type, ...]:
    types: list[type] = [random.Random]
    if (numpy_random := loaded("numpy.random")) is not None:
        types += [numpy_random.Generator, numpy_random.RandomState, numpy_random.BitGenerator]
    if (torch := loaded("torch")) is not None:
        types.append(torch.Generator)
    return tuple(types)


def _copied(generator: Any) -> Any:
    if type(generator) is random.Random:  # `copy` would copy 625 numbers individually
        clone = random.Random(0)
        clone.setstate(generator.getstate())
        return clone
    with FailuresSuppressed():  # a generator of the operating system or of a device cannot be copied
        return copy.deepcopy(generator)
    return generator


#: Data with at least `_SHARED_BYTES` bytes are shared by all replicas.
_SHARED_BYTES = 1 << 16
#: Objects of these types are shared between a graph and its copy, because they are immutable or cannot be copied.
_SHARED_TYPES = (type, FunctionType, BuiltinFunctionType, ModuleType, GeneratorType, IOBase, LockType)


def replica(obj: T) -> T:
    """Copies the graph by pickle, but shares large data and objects such as open files, locks and running
    generators.
    """
    shared: list[Any] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            if not _is_shared(part):
                return None
            shared.append(part)
            return len(shared) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: int) -> Any:
            return shared[number]

    written = BytesIO()
    with FailuresSuppressed():
        Pickler(written, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
        written.seek(0)
        clone: T = Unpickler(written).load()
        return clone
    return duplicate(obj)


def _is_shared(part: Any) -> bool:
    if isinstance(part, _SHARED_TYPES):
        return True
    if type(part) in _CONTAINERS:
        return len(part) > LARGEST_STRUCTURE
    size = getattr(part, "nbytes", 0) if not isinstance(part, (int, str)) else 0
    return isinstance(size, int) and size >= _SHARED_BYTES and not is_pipe(part)
