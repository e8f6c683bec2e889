"""Finds the pipes that a pipe reads from, without serializing anything.

The sources of a pipe are the pipes in its attributes, either directly or in (nested) containers. To limit the cost, at
most `LARGEST_STRUCTURE` members of the containers in an attribute are inspected.
"""

from __future__ import annotations

from abc import get_cache_token
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal

#: The maximum number of members that are inspected for one attribute. A container is not inspected if its members would
#: exceed this maximum.
LARGEST_STRUCTURE = 4096

#: Opening a nested container counts as inspecting this number of members, because it takes longer than inspecting one
#: member.
OPENING = 8

#: The classes `IterDataPipe` and `MapDataPipe`. The module `datapipe` sets this variable, because importing `datapipe`
#: here would be a circular import.
_pipes: tuple[type, ...] = ()

_has_virtual = False

#: The last result of `abc.get_cache_token`. Another result of `get_cache_token` means that a virtual subclass was
#: registered, so the cached results of `_role` are dropped.
_registered: object = None

Role = Literal["pipe", "container"]

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def set_bases(*bases: type) -> None:
    global _pipes
    _pipes = bases
    _forget_roles()


def note_virtual() -> None:
    global _has_virtual
    _has_virtual = True


def iter_base() -> Any:
    return _pipes[0]


def is_iter_pipe(obj: Any) -> bool:
    return isinstance(obj, _pipes[0])


def is_pipe(obj: Any) -> bool:
    return isinstance(obj, _pipes)


@lru_cache(maxsize=1024)  # graphs are searched several times per epoch, and `issubclass` of the pipe bases is slow
def _role(kind: type) -> Role | None:
    if _is_pipe_class(kind):
        return "pipe"
    return "container" if issubclass(kind, _CONTAINERS) else None


def _is_pipe_class(kind: type) -> bool:
    """Returns whether a type is a pipe class. If possible, avoids `issubclass`, which checks all subclasses of the pipe
    classes."""
    for base in _pipes:
        if base in kind.__mro__ or base.__subclasshook__(kind) is True:
            return True
    return _has_virtual and issubclass(kind, _pipes)


@lru_cache(maxsize=1024)  # snapshots search graphs often, and the attributes of a pipe usually keep their types
def _parts(kinds: tuple[type, ...]) -> list[tuple[int, Role]]:
    """Returns the indices of pipes and containers, and their roles."""
    return [(index, role) for index, kind in enumerate(kinds) if (role := _role(kind))]


def _forget_roles() -> None:
    _role.cache_clear()
    _parts.cache_clear()


def _clear_roles() -> None:
    global _registered
    if _registered != (registered := get_cache_token()):
        _registered = registered
        _forget_roles()


def _role_of(value: Any) -> Role | None:
    kind: Any = type(value)
    return _role(kind)


def pipes_in(value: Any) -> list[Any]:
    """Returns the pipes in the value of one attribute, from left to right, possibly with duplicates."""
    _clear_roles()
    role = _role_of(value)
    return _within(value) if role == "container" else [value] if role else []


def _within(value: Any) -> list[Any]:
    """Returns the pipes in a container. Small containers are searched first, because searching large data may exhaust
    the limit on inspected members."""
    if _is_small_data(value):
        return []
    roles: dict[type, Role | None] = {type(value): "container"}
    opened: dict[int, list[Any]] = {}
    left = LARGEST_STRUCTURE + OPENING
    holds_pipes = False
    numbers = count()  # preserves the order of groups with equal width
    # An entry of the heap is a group: all containers that are members of one enclosing container. The group with the
    # smallest width is searched next. The width of a group is the number of its containers, plus the width of the group
    # that contains the enclosing container.
    groups = [(1, next(numbers), [value])]
    while groups:
        width, _, group = heappop(groups)
        for container in group:
            if not 0 < len(container) <= left - OPENING or id(container) in opened:
                continue
            left -= len(container) + OPENING
            members = _members(container)
            kinds = set(map(type, members))
            for kind in kinds - roles.keys():
                roles[kind] = _role(kind)
            if not any(map(roles.__getitem__, kinds)):  # the container contains neither pipes nor containers
                continue
            opened[id(container)] = candidates = [member for member in members if roles.get(type(member))]
            inner = [member for member in candidates if roles[type(member)] == "container"]
            holds_pipes = holds_pipes or len(inner) < len(candidates)
            if inner:
                heappush(groups, (width + len(inner), next(numbers), inner))
    return _in_order(value, opened) if holds_pipes else []


def _is_small_data(container: Any, levels: int = 2) -> bool:
    """Returns whether a container has few members, and each member is data or a small container of data. If the result
    is True, the container contains no pipes and need not be searched."""
    if levels == 0 or len(container) > OPENING:
        return False
    roles = [(member, role) for member in _members(container) if (role := _role_of(member)) is not None]
    return all(role == "container" and _is_small_data(member, levels - 1) for member, role in roles)


def _members(container: Any) -> list[Any]:
    """Copies the members of a container to a list, because another thread may change the container during the
    search."""
    return [*container.keys(), *container.values()] if isinstance(container, dict) else [*container]


def _in_order(value: Any, opened: dict[int, list[Any]]) -> list[Any]:
    found = []
    stack = [value]
    while stack:
        obj = stack.pop()
        if is_pipe(obj):
            found.append(obj)
        else:
            stack.extend(reversed(opened.pop(id(obj), [])))
    return found


def sources_of(datapipe: Any) -> list[Any]:
    _clear_roles()
    return _sources_of(datapipe)


def _sources_of(datapipe: Any) -> list[Any]:
    found: dict[int, Any] = {}
    attributes = vars(datapipe).copy()
    if parts := _parts(tuple(map(type, attributes.values()))):
        skipped, pairs = getattr(type(datapipe), "item_attributes", ()), list(attributes.items())
        for index, role in parts:
            name, value = pairs[index]
            for source in () if name in skipped else (value,) if role == "pipe" else _within(value):
                if source is not datapipe:
                    found.setdefault(id(source), source)
    return list(found.values())


def walk(datapipe: Any, known: dict[int, list[Any]] | None = None) -> list[Any]:
    """Returns all pipes of the graph that ends in `datapipe`, sources before their readers. `known` caches the sources
    of pipes, by the pipe's id."""
    _clear_roles()
    known = {} if known is None else known
    found: list[Any] = []
    opened = {id(datapipe)}
    stack = [(datapipe, _known_sources(datapipe, known))]
    while stack:
        pipe, sources = stack[-1]
        for source in sources:
            if id(source) not in opened:
                opened.add(id(source))
                stack.append((source, _known_sources(source, known)))
                break
        else:
            stack.pop()
            found.append(pipe)
    return found


def _known_sources(datapipe: Any, known: dict[int, list[Any]]) -> Iterator[Any]:
    sources = known.get(id(datapipe))
    if sources is None:
        sources = known[id(datapipe)] = _sources_of(datapipe)
    return iter(sources)
