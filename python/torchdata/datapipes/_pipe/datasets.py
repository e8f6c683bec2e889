"""Telling what users give in place of a pipe: datasets that are read by index, iterables, generator functions.

Pure functions, which import nothing: they know PyTorch's classes if other code has loaded them. They run wherever
a pipe is built.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = [
    "UnorderedSet",
    "epoch_of",
    "has_fixed_order",
    "in_fixed_order",
    "is_built_in",
    "is_coordinated",
    "is_generator_function",
    "is_indexed",
    "is_indexed_only",
    "is_iterable_dataset",
    "is_known_to_split",
    "shuffles_itself",
    "splits_among_ranks",
    "splits_itself",
]

#: The module and the name of classes of datasets that yield a worker's share wherever torch says that they are in a
#: worker, if they are PyTorch's `IterableDataset`s.
_SPLITTING = (
    ("datasets.iterable_dataset", "IterableDataset"),
    ("litdata.streaming.combined", "CombinedStreamingDataset"),
    ("litdata.streaming.dataset", "StreamingDataset"),
    ("litdata.streaming.parallel", "ParallelStreamingDataset"),
    ("streaming.base.dataset", "StreamingDataset"),
)

#: Functions that give things a random order.
_SHUFFLING = frozenset({"shuffle", "permutation", "permuted", "randperm", "sample"})

#: The stages of webdataset's pipelines that split, or make each worker draw other shards.
_SPLITTING_STAGES = frozenset({"split_by_worker", "ResampledShards", "ResampledShardList"})

#: Types whose values have a `repr` that is the same in each process.
_PLAIN = frozenset({str, bytes, int, bool, float, complex, type(None)})


def _instance_of(value: Any, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def is_indexed(value: Any) -> bool:
    """Whether the value is a dataset with a length, read by the indices from 0 on: a sequence, PyTorch's `Dataset`, …

    Mappings, whose keys are something else, are none. Nor are PyTorch's `IterableDataset`s, which inherit a
    `__getitem__` that only raises.
    """
    kind = type(value)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not isinstance(value, Mapping)
        and not is_iterable_dataset(value)
    )


def is_indexed_only(value: Any) -> bool:
    """Whether the value is such a dataset and does not say how it is iterated over."""
    return is_indexed(value) and not hasattr(type(value), "__iter__")


def is_iterable_dataset(value: Any) -> bool:
    """Whether the value is one of PyTorch's `IterableDataset`s, which may be its own iterator."""
    return _instance_of(value, "torch.utils.data", "IterableDataset")


def is_built_in(value: Any) -> bool:
    """Whether the value is plain data, of a type of Python's own."""
    return type(value).__module__ == "builtins"


def is_generator_function(value: Any) -> bool:
    """Whether the value is a function, perhaps with some arguments bound, that makes a new generator when called."""
    return inspect.isgeneratorfunction(value)


def splits_itself(iterable: Any) -> bool:
    """Whether an iterable yields a worker's share alone if torch says which worker it is in, as far as can be told.

    That is so of Hugging Face's `IterableDataset` where torch is loaded, of the streaming datasets of litdata and
    mosaicml-streaming, and of webdataset's pipelines with a stage that splits. It is taken to be so of what uses the
    names `get_worker_info` and `num_workers` in its class, or in its generator function. Without the number of workers
    nothing can be divided: such code needs the seed of the worker, or a file that each worker opens.
    """
    if any(_instance_of(iterable, module, name) for module, name in _SPLITTING):
        return is_iterable_dataset(iterable)
    if _instance_of(iterable, "webdataset.pipeline", "DataPipeline"):
        stages = getattr(iterable, "pipeline", ())
        return any(getattr(stage, "__name__", type(stage).__name__) in _SPLITTING_STAGES for stage in stages)
    return _uses(iterable, frozenset({"get_worker_info"})) and _uses(iterable, frozenset({"num_workers"}))


def is_known_to_split(iterable: Any) -> bool:
    """Whether an iterable that splits itself is of a library that is known for it; else its code was looked at."""
    known = (*_SPLITTING, ("webdataset.pipeline", "DataPipeline"))
    return any(_instance_of(iterable, module, name) for module, name in known)


def shuffles_itself(iterable: Any) -> bool:
    """Whether an iterable of the user's uses the name of a function that shuffles, so that its order may be its own."""
    return _uses(iterable, _SHUFFLING)


def _uses(iterable: Any, names: frozenset[str]) -> bool:
    """Whether the class of an iterable, or a generator function, uses one of the names."""
    functions = [iterable] if is_generator_function(iterable) else []
    for cls in type(iterable).__mro__:
        if cls.__module__ != "builtins" and cls.__module__.partition(".")[0] not in ("torch", "typing", "abc"):
            functions += vars(cls).values()
    return any(_mentions(function, names) for function in functions)


def splits_among_ranks(iterable: Any) -> bool:
    """Whether it is known of an iterable that splits itself that it does so among ranks, too."""
    if _instance_of(iterable, "webdataset.pipeline", "DataPipeline"):
        return any(getattr(stage, "__name__", "") == "split_by_node" for stage in getattr(iterable, "pipeline", ()))
    libraries = ("litdata", "streaming")
    return any(_instance_of(iterable, *each) for each in _SPLITTING if each[0].partition(".")[0] in libraries)


def is_coordinated(iterable: Any) -> bool:
    """Whether the workers of a dataset that splits itself coordinate over shared memory, as those of
    mosaicml-streaming do: then each worker cannot read all of it."""
    return _instance_of(iterable, "streaming.base.dataset", "StreamingDataset")


def epoch_of(dataset: Any) -> int | None:
    """The epoch of a dataset, or of a sampler, that has `set_epoch` and shows it; None of all others."""
    if not callable(getattr(type(dataset), "set_epoch", None)):
        return None
    for name in ("epoch", "_epoch"):
        try:
            return operator.index(getattr(dataset, name, None))  # type: ignore[arg-type]
        except Exception:  # whatever a property of the user's raises
            continue
    return None


def in_fixed_order(iterable: Any) -> Any:
    """An iterable whose order is the same in each process: the sorted members of a set, anything else as it is.

    Raises:
        UnorderedSet: a member of the set has a type without a stable name, so the set cannot be sorted.
    """
    if not isinstance(iterable, (set, frozenset)):
        return iterable
    kinds = set(map(type, iterable))
    if len(kinds) == 1 and not kinds.isdisjoint((str, bytes, int)):
        return sorted(iterable)
    return sorted(iterable, key=_name_of_member)


def has_fixed_order(iterable: Any) -> bool:
    """Whether the order of an iterable is the same in each process, as far as it is that of a set."""
    try:
        in_fixed_order(iterable)
    except UnorderedSet:
        return False
    return True


class UnorderedSet(TypeError):
    """A set has members that no name sorts, so that its order would be another one in each process."""


def _name_of_member(member: Any) -> str:
    """A name of a member of a set, which is the same in each process, and which no unequal member has.

    Raises:
        UnorderedSet: it has none.
    """
    kind = type(member)
    if kind in _PLAIN:
        return repr(member)
    if kind is tuple:
        return f"({', '.join(map(_name_of_member, member))})"
    if kind is frozenset:
        return f"{{{', '.join(sorted(map(_name_of_member, member)))}}}"
    whose = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(member, PurePath):
        return f"{whose}({str(member)!r})"
    if isinstance(member, Enum):
        return f"{whose}.{member.name}" if member.name else f"{whose}({member.value!r})"
    raise UnorderedSet(
        f"a set has a member of type {kind.__name__}, so its order may be another one in each process, and a state or "
        "another process would continue with other items; give a list, or a set of strings, numbers, paths, Enum "
        "members, or tuples and frozensets of these"
    )


def _mentions(function: Any, names: frozenset[str]) -> bool:
    """Whether a function, or one defined in it, uses one of the names."""
    while not isinstance(function, FunctionType):
        inner = getattr(function, "func", None)  # of functools.partial
        function = function.__func__ if isinstance(function, (MethodType, classmethod, staticmethod)) else inner
        if function is None:
            return False
    codes: list[Any] = [function.__code__]
    while codes:
        code = codes.pop()
        if not names.isdisjoint(code.co_names):
            return True
        codes.extend(inner for inner in code.co_consts if isinstance(inner, CodeType))
    return False
