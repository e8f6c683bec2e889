"""Finding the pipes that a pipe reads from, without serialising anything.

Role: one pass over the attributes of a pipe, used by the graph tools and by state. A pipe is found where
it is an attribute or lies in (nested) containers of an attribute. Containers longer than
`LARGEST_STRUCTURE` are taken for data and not searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

#: Longest container that is searched for pipes; longer ones hold data, and reading them would cost time.
LARGEST_STRUCTURE = 4096

_SEQUENCES = (list, tuple, set, frozenset, deque)

#: Types that are a pipe or may hold one. All else is data, which must not be looked into.
_SEARCHED = (IterDataPipe, MapDataPipe, dict, *_SEQUENCES)


def is_pipe(obj: Any) -> bool:
    """Whether `obj` is a pipe of either kind."""
    return isinstance(obj, (IterDataPipe, MapDataPipe))


def _pipes_in(obj: Any, open_containers: set[int]) -> Iterator[Any]:
    if is_pipe(obj):
        yield obj
    elif isinstance(obj, (dict, *_SEQUENCES)):
        if not 0 < len(obj) <= LARGEST_STRUCTURE or id(obj) in open_containers:
            return
        members = [*obj.keys(), *obj.values()] if isinstance(obj, dict) else obj
        kinds = {kind for kind in set(map(type, members)) if issubclass(kind, _SEARCHED)}
        if not kinds:  # data, told by its types
            return
        open_containers.add(id(obj))
        for member in members:
            if type(member) in kinds:
                yield from _pipes_in(member, open_containers)
        open_containers.discard(id(obj))


def sources_of(datapipe: Any) -> list[Any]:
    """The pipes that `datapipe` reads from directly, in the order of its attributes, each once."""
    found: dict[int, Any] = {}
    skipped = getattr(type(datapipe), "item_attributes", ())
    for name, value in list(vars(datapipe).items()):
        if name in skipped or not issubclass(type(value), _SEARCHED):
            continue
        for source in _pipes_in(value, set()):
            if source is not datapipe:
                found.setdefault(id(source), source)
    return list(found.values())


def walk(datapipe: Any) -> list[Any]:
    """All pipes of the graph that ends in `datapipe`, sources before those that read them, each once."""
    done: dict[int, Any] = {}
    opened: set[int] = set()

    stack: list[tuple[Any, bool]] = [(datapipe, False)]
    while stack:
        pipe, expanded = stack.pop()
        if expanded:
            done.setdefault(id(pipe), pipe)
        elif id(pipe) not in opened:
            opened.add(id(pipe))
            stack.append((pipe, True))
            stack.extend((source, False) for source in reversed(sources_of(pipe)))
    return list(done.values())
