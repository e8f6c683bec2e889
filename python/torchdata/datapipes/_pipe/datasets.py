"""Recognizes what users pass instead of a pipe: indexable datasets, iterables and generator functions.

This module does not import PyTorch and `pathlib`. If a module is not imported, no object can be an instance of its
classes.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Mapping
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._signatures import names_in

#: Modules and names of classes with datasets that split their items among PyTorch's workers, provided that the class
#: derives from PyTorch's `IterableDataset`.
_SPLITTING = (
    ("datasets.iterable_dataset", "IterableDataset"),
    ("litdata.streaming.combined", "CombinedStreamingDataset"),
    ("litdata.streaming.dataset", "StreamingDataset"),
    ("litdata.streaming.parallel", "ParallelStreamingDataset"),
    ("streaming.base.dataset", "StreamingDataset"),
)

_SHUFFLING = frozenset({"shuffle", "permutation", "permuted", "randperm", "sample"})

_SPLITTING_STAGES = frozenset({"split_by_worker", "ResampledShards", "ResampledShardList"})

_PLAIN = frozenset({str, bytes, int, bool, float, complex, type(None)})


def instance_of(value: Any, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def is_indexed(value: Any) -> bool:
    """Returns whether the value has a length and integer indices. Returns False for mappings and for PyTorch's
    `IterableDataset`."""
    kind = type(value)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not isinstance(value, Mapping)
        and not is_iterable_dataset(value)
    )


def is_indexed_only(value: Any) -> bool:
    return is_indexed(value) and not hasattr(type(value), "__iter__")


def is_iterable_dataset(value: Any) -> bool:
    return instance_of(value, "torch.utils.data", "IterableDataset")


def is_built_in(value: Any) -> bool:
    return type(value).__module__ == "builtins"


def is_generator_function(value: Any) -> bool:
    return inspect.isgeneratorfunction(value)


def splits_itself(iterable: Any) -> bool:
    """Returns whether an iterable seems to yield only the current worker's share of the data.

    For a class that is not in `_SPLITTING`, the result is True if its code contains the names `get_worker_info` and
    `num_workers`.
    """
    if any(instance_of(iterable, module, name) for module, name in _SPLITTING):
        return is_iterable_dataset(iterable)
    if instance_of(iterable, "webdataset.pipeline", "DataPipeline"):
        stages = getattr(iterable, "pipeline", ())
        return any(getattr(stage, "__name__", type(stage).__name__) in _SPLITTING_STAGES for stage in stages)
    return _uses(iterable, frozenset({"get_worker_info"})) and _uses(iterable, frozenset({"num_workers"}))


def is_known_to_split(iterable: Any) -> bool:
    known = (*_SPLITTING, ("webdataset.pipeline", "DataPipeline"))
    return any(instance_of(iterable, module, name) for module, name in known)


def shuffles_itself(iterable: Any) -> bool:
    return _uses(iterable, _SHUFFLING)


def _uses(iterable: Any, names: frozenset[str]) -> bool:
    functions = [iterable] if is_generator_function(iterable) else []
    for cls in type(iterable).__mro__:
        if cls.__module__ != "builtins" and cls.__module__.partition(".")[0] not in ("torch", "typing", "abc"):
            functions += vars(cls).values()
    return any(_mentions(function, names) for function in functions)


def splits_among_ranks(iterable: Any) -> bool:
    if instance_of(iterable, "webdataset.pipeline", "DataPipeline"):
        return any(getattr(stage, "__name__", "") == "split_by_node" for stage in getattr(iterable, "pipeline", ()))
    libraries = ("litdata", "streaming")
    return any(instance_of(iterable, *each) for each in _SPLITTING if each[0].partition(".")[0] in libraries)


def is_coordinated(iterable: Any) -> bool:
    """Returns whether the workers of a dataset coordinate over shared memory (mosaicml-streaming)."""
    return instance_of(iterable, "streaming.base.dataset", "StreamingDataset")


def epoch_of(dataset: Any) -> int | None:
    if not callable(getattr(type(dataset), "set_epoch", None)):
        return None
    for name in ("epoch", "_epoch"):
        with FailuresSuppressed():  # a user's property may raise anything
            return operator.index(getattr(dataset, name, None))  # type: ignore[arg-type]
    return None


def in_fixed_order(iterable: Any) -> Any:
    """Sorts the members of a set, because their order differs between processes. Returns any other iterable
    unchanged."""
    if not isinstance(iterable, (set, frozenset)):
        return iterable
    kinds = set(map(type, iterable))
    if len(kinds) == 1 and not kinds.isdisjoint((str, bytes, int)):
        return sorted(iterable)
    return sorted(iterable, key=_name_of_member)


def has_fixed_order(iterable: Any) -> bool:
    try:
        in_fixed_order(iterable)
    except UnorderedSet:
        return False
    return True


class UnorderedSet(TypeError):
    """Raised if the members of a set cannot be sorted."""


def _name_of_member(member: Any) -> str:
    """Returns a sort key for a member of a set, unique in the set and equal in every process."""
    kind = type(member)
    if kind in _PLAIN:
        return repr(member)
    if kind is tuple:
        return f"({', '.join(map(_name_of_member, member))})"
    if kind is frozenset:
        return f"{{{', '.join(sorted(map(_name_of_member, member)))}}}"
    class_name = f"{kind.__module__}.{kind.__qualname__}"
    if instance_of(member, "pathlib", "PurePath"):
        return f"{class_name}({str(member)!r})"
    if isinstance(member, Enum):
        return f"{class_name}.{member.name}" if member.name else f"{class_name}({member.value!r})"
    raise UnorderedSet(
        f"a set has a member of type {kind.__name__}, so its order may be another one in each process, and a state or "
        "another process would continue with other items; give a list, or a set of strings, numbers, paths, Enum "
        "members, or tuples and frozensets of these"
    )


def _mentions(function: Any, names: frozenset[str]) -> bool:
    while not isinstance(function, FunctionType):
        inner = getattr(function, "func", None)  # the function of a functools.partial
        function = function.__func__ if isinstance(function, (MethodType, classmethod, staticmethod)) else inner
        if function is None:
            return False
    return not names.isdisjoint(names_in(function.__code__))
