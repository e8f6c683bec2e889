"""Defines `Graph`, an immutable list of the pipes of a graph and their sources.

Creating a `Graph` is slow, because all attributes of each pipe are inspected. Code must create a new `Graph` after a
pipe was modified or iterated, because the sources of the pipe may have changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk


class Graph:
    """The pipes of a graph. `pipes` contains each pipe once, and sources before their readers."""

    __slots__ = ("_indices", "_sources", "end", "pipes")

    def __init__(self, end: Any, known: dict[int, list[Any]] | None = None) -> None:
        self.end = end
        self._sources: dict[int, list[Any]] = {} if known is None else known
        self.pipes: list[Any] = walk(end, self._sources)
        self._indices = {id(pipe): index for index, pipe in enumerate(self.pipes)}

    def __contains__(self, pipe: Any) -> bool:
        return id(pipe) in self._indices

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipes)

    def __len__(self) -> int:
        return len(self.pipes)

    def __repr__(self) -> str:
        return f"<Graph of {', '.join(type(pipe).__name__ for pipe in self.pipes)}>"

    def index(self, pipe: Any) -> int:
        return self._indices[id(pipe)]

    def sources(self, pipe: Any) -> list[Any]:
        return self._sources[id(pipe)]

    def at(self, pipe: Any) -> Graph:
        return self if pipe is self.end else Graph(pipe, self._sources)

    def below(self, pipes: Iterable[Any]) -> set[int]:
        return {id(pipe) for root in pipes for pipe in walk(root, self._sources) if pipe is not root}

    def depth_first(self) -> list[Any]:
        found: dict[int, Any] = {}
        stack = [self.end]
        while stack:
            pipe = stack.pop()
            if id(pipe) not in found:
                found[id(pipe)] = pipe
                stack.extend(reversed(self._sources[id(pipe)]))
        return list(found.values())

    def breadth_first(self, exclude: Iterable[Any] = ()) -> list[Any]:
        """Returns the pipes in breadth-first order, but leaves out the pipes in `exclude` and all their sources."""
        seen = {id(pipe) for root in exclude for pipe in walk(root, self._sources)}
        found: list[Any] = []
        waiting = deque([self.end])
        while waiting:
            pipe = waiting.popleft()
            if id(pipe) not in seen:
                seen.add(id(pipe))
                found.append(pipe)
                waiting.extend(self._sources[id(pipe)])
        return found

    def first(self, wanted: Callable[[Any], bool]) -> Any:
        return next(filter(wanted, self.pipes), None)


def graph_of(end: Any) -> Graph:
    return end if isinstance(end, Graph) else Graph(end)
