"""Describes a pipeline by text that is equal in every process, so that loading a state of another pipeline is detected.

A fingerprint has an entry for each pipe, sources first, with the pipe's class, sources and arguments, but without the
iteration state. A value that may be a secret is replaced by a few digits of its hash, which show whether the value has
changed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping, Sized
from itertools import zip_longest
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import HIDDEN, digest, is_private, is_secret, redacted
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.graph.graph import graph_of
from torchdata.datapipes._pipe.graph.traversal import is_pipe

#: For each pipe, its `class`, the indices of its sources (`reads`), and its arguments as text by name (`parameters`).
Fingerprint = list[dict[str, Any]]

_KEYS = "class", "reads", "parameters"

_LONGEST = 200

#: The class `Batcher` and its argument `batch_size`, which may change between two epochs.
_BATCHER, _SIZE = "torchdata.datapipes.iter.Batcher", "batch_size"

#: Arguments that may differ when a state is loaded: the loader sets them, or they do not affect the items.
_CHANGED = frozenset({"groups", "num_of_instances", "instance_id", "timeout", "patience"})


class DescribedPipe(NamedTuple):
    kind: str
    reads: list[int]
    parameters: dict[str, str]

    @property
    def short_name(self) -> str:
        return self.kind.rpartition(".")[2]


def parse_fingerprint(saved: Any) -> list[DescribedPipe]:
    pipes = saved if isinstance(saved, list) else [saved]
    found = [DescribedPipe._make(map(pipe.get, _KEYS)) for pipe in pipes if isinstance(pipe, dict)]
    types = {tuple(map(type, pipe)) for pipe in found}
    if saved is not pipes or len(found) < len(saved) or not types <= {(str, list, dict)}:
        raise ValueError("its fingerprint does not contain the class, sources and parameters of each pipe")
    if not {str}.issuperset(type(text) for pipe in found for text in pipe.parameters.values()):
        raise ValueError("its fingerprint contains parameters that are not texts")
    return found


def fingerprint(datapipe: Any, *, begun: bool = False) -> Fingerprint:
    """Returns the fingerprint of the graph that ends in `datapipe`. With `begun=True`, values that an iteration may
    change, such as the declared state, are left out."""
    graph = graph_of(datapipe)
    return [
        {
            "class": _name_of(type(pipe)),
            "reads": [graph.index(source) for source in graph.sources(pipe)],
            "parameters": _parameters(pipe, begun),
        }
        for pipe in graph
    ]


def difference(saved: Fingerprint, found: Fingerprint, here: str, *, between_epochs: bool = False) -> str:
    if saved == found:
        return ""
    for index, (other, mine) in enumerate(zip_longest(*map(parse_fingerprint, (saved, found))), 1):
        if other == mine:
            continue
        where = f"pipe {index} (counted from the source)"
        if other is None or mine is None or other.kind != mine.kind:
            names = [one.short_name if one else "none" for one in (other, mine)]
            return f"{where} is {names[0]} in the state and {names[1]} in {here}"
        if other.reads != mine.reads:
            return f"{where}, {mine.short_name}, reads other pipes"
        for name, words in mine.parameters.items():
            was = other.parameters.get(name, words)
            # Settings of adapters have names with a dot, such as `ShardingPolicy.block`, and may always change.
            may_change = between_epochs and ("." in name or (mine.kind == _BATCHER and name == _SIZE))
            if was != words and not may_change:
                return f"{where}, {mine.short_name}, has {name}={was} in the state and {words} in {here}"
    return ""


def require_arguments(datapipe: Any) -> None:
    """Raises an error if a pipe was pickled by an older release and lacks an argument of this release."""
    for pipe in graph_of(datapipe) if is_pipe(datapipe) else ():
        kind = type(pipe)
        if kind.__module__.partition(".")[0] != "torchdata":
            continue
        for name, attributes in _arguments_of(kind):
            if name != "self" and vars(pipe).keys().isdisjoint(attributes):
                raise ValueError(f"{kind.__name__} lacks its argument {name!r}")


#: For each class: the constructor's arguments, each with two possible names of the attribute that stores it.
_arguments: WeakKeyDictionary[type, list[tuple[str, tuple[str, str]]]] = WeakKeyDictionary()


def _arguments_of(kind: type) -> list[tuple[str, tuple[str, str]]]:
    found = _arguments.get(kind)
    if found is None:
        try:
            names = signature_of(kind.__init__).parameters  # type: ignore[misc]
        except (TypeError, ValueError):
            names = {}  # type: ignore[assignment]
        # The fingerprint leaves out the arguments that a class lists in `tuning`, because they do not affect the items.
        tuning = _CHANGED.union(*(vars(base).get("tuning", ()) for base in kind.__mro__))
        found = [(name, (name, f"_{name}")) for name in names if name not in tuning]
        _arguments[kind] = found
    return found


def _parameters(pipe: Any, begun: bool) -> dict[str, str]:
    kind, attributes = type(pipe), vars(pipe)
    own = kind.__module__.partition(".")[0] == "torchdata"
    iterating = {state.key for state in getattr(kind, "_declared", ())} if begun else ()
    found = {}
    for name, keys in _arguments_of(kind):
        value = next((attributes[key] for key in keys if key in attributes), pipe)
        if _holds_pipes(value) or name in iterating or (begun and not own and not inspect.isroutine(value)):
            continue
        found[name] = _without_secrets(name, value)[:_LONGEST]
    for name, attribute in getattr(kind, "set_by_adapters", {}).items():
        found[name] = _words(getattr(pipe, attribute))
    return found


def _holds_pipes(value: Any) -> bool:
    return is_pipe(value) or (isinstance(value, (tuple, list)) and bool(value) and is_pipe(value[0]))


def _without_secrets(name: str, value: Any, depth: int = 0) -> str:
    words = _words(value, depth)
    if is_private(name, value) and value is not None:
        return f"{HIDDEN}{digest(name, _whole(value, words))}"
    if not isinstance(value, (str, bytes)):
        return words
    whole = _whole(value, words)
    if is_secret(whole):
        return f"{HIDDEN}{digest(name, whole)}"
    open_part = redacted(words)
    return words if open_part == words else f"{open_part}{HIDDEN}{digest(name, whole)}"


def _whole(value: Any, words: str) -> str:
    return repr(value) if isinstance(value, (str, bytes)) else words


def _words(value: Any, depth: int = 0) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{type(value).__name__} of length {len(value)}"  # type: ignore[arg-type]
    if isinstance(value, type):
        return _name_of(value)
    if isinstance(value, functools.partial):
        inside = [_without_secrets("", part, depth + 1) for part in (value.func, *value.args)]
        inside += [f"{key}={_without_secrets(key, part, depth + 1)}" for key, part in value.keywords.items()]
        return f"partial({', '.join(inside)})"
    if isinstance(value, MethodType):
        return f"{_name_of(type(value.__self__))}.{value.__func__.__qualname__}"
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return _name_of(value)
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, (tuple, list)) and len(value) <= 8 and depth < 2:
        return f"{type(value).__name__}({', '.join(_without_secrets('', part, depth + 1) for part in value)})"
    return _shape(value)


def _shape(value: Any) -> str:
    kind = _name_of(type(value))
    shape = getattr(value, "shape", None)
    if shape is not None and not isinstance(value, Mapping):
        return f"{kind} of shape {tuple(shape)} and {getattr(value, 'dtype', 'no dtype')}"
    if isinstance(value, Sized):
        with FailuresSuppressed():  # a property of a user's class may raise any error
            return f"{kind} of length {len(value)}"
    return kind


def _name_of(value: Any) -> str:
    """Returns the qualified name of a class or function. In spawned workers, the name `__mp_main__` is replaced by
    `__main__`."""
    module = getattr(value, "__module__", None) or "builtins"
    if module == "__mp_main__":
        module = "__main__"
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"__main__.{name}" if module == "__main__" and "__main__" in sys.modules else f"{module}.{name}"
