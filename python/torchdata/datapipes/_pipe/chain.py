"""Describes a pipeline for `str(pipe)`, with one line per pipe. Secrets are hidden. Values that may be large are
described only by their type and size."""

from __future__ import annotations

import enum
import inspect
import reprlib
from functools import partial
from typing import Any

from torchdata._redacting import HIDDEN, is_private, is_secret, redacted
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import pipes_in

_NUMBERS = (int, float, complex, bool, type(None))
_PLAIN = (int, float, complex, str, bytes, bool, type(None), range, slice, enum.Enum)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 40
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 3
_short.maxlevel = 2


def short_name(datapipe: Any) -> str:
    name: str = getattr(type(datapipe), "drawn_as", type(datapipe).__name__)
    return name.removesuffix("IterDataPipe").removesuffix("MapDataPipe") or name


def parameters(datapipe: Any) -> list[tuple[str, str]]:
    try:
        signature = signature_of(type(datapipe).__init__)
    except (TypeError, ValueError):
        return []
    attributes = getattr(datapipe, "__dict__", {})
    found = []
    for name, parameter in list(signature.parameters.items())[1:]:
        value = attributes.get(name, attributes.get(f"_{name}", inspect.Parameter.empty))
        if value is inspect.Parameter.empty or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if _is_same(value, parameter.default) or pipes_in(value):
            continue
        found.append((name, HIDDEN if is_private(name, value) else _in_words(value)))
    return found


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, _PLAIN) and type(value) is type(default) and value == default)


def _in_words(value: Any) -> str:
    if isinstance(value, partial):
        return f"partial({_in_words(value.func)})"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", type(value).__name__)).rpartition("<locals>.")[2]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return HIDDEN if is_secret(text) else _short.repr(type(value)(_hidden_in(value)))
    if isinstance(value, _PLAIN) or _is_plain_container(value):
        return _short.repr(value)
    if type(value) in (list, tuple, dict, set, frozenset):
        return f"<{type(value).__name__} of {len(value)}>"
    size = getattr(value, "shape", None)
    return f"<{type(value).__name__}{f' of {tuple(size)}' if isinstance(size, tuple) else ''}>"


def _hidden_in(value: str | bytes) -> Any:
    return redacted(value) if isinstance(value, str) else redacted(value.decode("latin-1")).encode("latin-1", "replace")


def _is_plain_container(value: Any) -> bool:
    if type(value) not in (list, tuple, set, frozenset):
        return False
    return len(value) < 100_000 and all(isinstance(one, _NUMBERS) for one in value)


def chain(datapipe: Any) -> str:
    """Describes the graph that ends in a pipe, with a number for each pipe. A note on an exception identifies a pipe by
    its number, as in "2nd of 3 pipes"."""
    graph = Graph(datapipe)
    pipes = graph.pipes
    numbers = {id(pipe): number for number, pipe in enumerate(pipes, 1)}
    width = len(str(len(pipes)))
    lines = []
    for number, pipe in enumerate(pipes, 1):
        values = ", ".join(f"{name}={value}" for name, value in parameters(pipe))
        read = [numbers[id(source)] for source in graph.sources(pipe)]
        of = "" if read in ([], [number - 1]) else f" of {', '.join(map(str, read))}"
        lines.append(f"{number:{width}} {short_name(pipe)}({values}){of}")
    return "\n".join(lines)
