"""Finding the pipes that a pipe reads from, without serialising anything.

Role: one pass over the attributes of a pipe, used by the graph tools and by state. A pipe is found where
it is an attribute or lies in (nested) containers of an attribute. The search inspects `LARGEST_STRUCTURE` members per
attribute, including those of nested containers. Further members count as data. Its cost is therefore
limited for any pipe.
"""

from __future__ import annotations

from abc import get_cache_token
from collections import deque
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal

#: How many members of containers are looked at in one attribute; an entry of a dictionary is one. A
#: container with more members than are left holds data, and is not looked into.
LARGEST_STRUCTURE = 4096

#: As how many members looking into one more nested container counts, because it takes that much longer.
OPENING = 8

#: The bases of all pipes. They register themselves, because this module must not import them.
_pipes: tuple[type, ...] = ()

#: Whether a class was registered with a class of pipes, rather than derived from it.
_has_virtual = False

#: The token of `abc`, which changes whenever a class is registered with an abstract one.
_registered: object = None

Role = Literal["pipe", "container"]

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def know_bases(*bases: type) -> None:
    """Tells what is a pipe: an instance of one of `bases`."""
    global _pipes
    _pipes = bases
    _role.cache_clear()


def know_virtual() -> None:
    """Tells that a class is registered with a class of pipes."""
    global _has_virtual
    _has_virtual = True


def iter_base() -> Any:
    """The base of all pipes that are read by iterating."""
    return _pipes[0]


def is_iter_pipe(obj: Any) -> bool:
    """Whether `obj` is a pipe that is read by iterating."""
    return isinstance(obj, _pipes[0])


def is_pipe(obj: Any) -> bool:
    """Whether `obj` is a pipe of either kind."""
    return isinstance(obj, _pipes)


@lru_cache(maxsize=1024)  # graphs are searched several times an epoch, and bases of pipes are slow to ask
def _role(kind: type) -> Role | None:
    """The part that objects of the type play in the search. All but pipes and containers is data: not looked into."""
    if _is_pipe_class(kind):
        return "pipe"
    return "container" if issubclass(kind, _CONTAINERS) else None


def _is_pipe_class(kind: type) -> bool:
    """Whether objects of the type are pipes; `issubclass` would ask all classes of pipes, and notes it with each."""
    for base in _pipes:
        if base in kind.__mro__ or base.__subclasshook__(kind) is True:
            return True
    return _has_virtual and issubclass(kind, _pipes)


def _forget_old_roles() -> None:
    """A class may be registered with the bases after objects of it were met."""
    global _registered
    if _registered != (registered := get_cache_token()):
        _registered = registered
        _role.cache_clear()


def _role_of(value: Any) -> Role | None:
    kind: Any = type(value)
    return _role(kind)


def pipes_in(value: Any) -> list[Any]:
    """The pipes in the value of one attribute, from left to right; one that lies there twice may come twice.

    Looks at narrow branches of the structure first, so that data in it does not hide the pipes next to it.
    """
    _forget_old_roles()
    role = _role_of(value)
    if role != "container":
        return [value] if role else []
    if not len(value):
        return []
    roles: dict[type, Role | None] = {type(value): role}  # asking once per type is what keeps the search cheap
    opened: dict[int, list[Any]] = {}
    left = LARGEST_STRUCTURE + OPENING
    holds_pipes = False
    numbers = count()  # keeps groups of equal width in order
    # Containers that lie side by side, each group after the width of its branch: the containers on the way to it.
    groups = [(1, next(numbers), [value])]
    while groups:
        width, _, group = heappop(groups)
        for container in group:
            if not 0 < len(container) <= left - OPENING or id(container) in opened:
                continue
            left -= len(container) + OPENING
            members = [*container.keys(), *container.values()] if isinstance(container, dict) else container
            kinds = set(map(type, members))
            for kind in kinds - roles.keys():
                roles[kind] = _role(kind)
            if not any(map(roles.__getitem__, kinds)):  # data, told by its types
                continue
            opened[id(container)] = candidates = [member for member in members if roles.get(type(member))]
            inner = [member for member in candidates if roles[type(member)] == "container"]
            holds_pipes = holds_pipes or len(inner) < len(candidates)
            if inner:
                heappush(groups, (width + len(inner), next(numbers), inner))
    return _in_order(value, opened) if holds_pipes else []


def _in_order(value: Any, opened: dict[int, list[Any]]) -> list[Any]:
    """The pipes of the opened containers as they are met from left to right, depth first."""
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
    """The pipes that `datapipe` reads from directly, in the order of its attributes, each once."""
    _forget_old_roles()
    found: dict[int, Any] = {}
    skipped = getattr(type(datapipe), "item_attributes", ())
    for name, value in list(vars(datapipe).items()):
        kind: Any = type(value)
        if name in skipped or _role(kind) is None:
            continue
        for source in pipes_in(value):
            if source is not datapipe:
                found.setdefault(id(source), source)
    return list(found.values())


def walk(datapipe: Any, known: dict[int, list[Any]] | None = None) -> list[Any]:
    """All pipes of the graph that ends in `datapipe`, sources before those that read them, each once.

    Args:
        datapipe: the last pipe.
        known: by id, the sources of pipes that were searched already; the sources of other pipes are added.
    """
    known = {} if known is None else known
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
            sources = known.get(id(pipe))
            if sources is None:
                sources = known[id(pipe)] = sources_of(pipe)
            stack.extend((source, False) for source in reversed(sources))
    return list(done.values())
