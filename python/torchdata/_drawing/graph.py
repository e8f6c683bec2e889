"""The contents of a picture: groups of pipes, the flows of items between them, and each pipe's share of the time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Node:
    """A pipe in a picture. `heat` is the pipe's share of its process's time, from 0 to 1, without the time of the
    pipe's sources. `kind` is "source", "end", "waits", or empty."""

    title: str
    lines: list[str]
    heat: float | None = None
    kind: str = ""
    key: int = 0


@dataclass(frozen=True)
class Arrow:
    """A flow of items. `crosses` is True if the items go to another process."""

    tail: int
    head: int
    label: str = ""
    crosses: bool = False


@dataclass
class DrawnGroup:
    """The pipes of one or several processes. The picture shows groups in the order of `column`, from top to bottom."""

    title: str
    nodes: list[Node]
    column: int = 0


@dataclass
class DrawnGraph:
    groups: list[DrawnGroup] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    def add(self, group: DrawnGroup) -> None:
        first = sum(len(other.nodes) for other in self.groups)
        for number, node in enumerate(group.nodes, first):
            node.key = number
        self.groups.append(group)

    @property
    def nodes(self) -> list[Node]:
        return [node for group in self.groups for node in group.nodes]

    def mark_ends(self) -> None:
        """Marks nodes without incoming arrows as sources, and nodes without outgoing arrows as ends."""
        heads, tails = ({getattr(arrow, end) for arrow in self.arrows} for end in ("head", "tail"))
        for node in self.nodes:
            if node.key not in heads:
                node.kind = node.kind or "source"
            elif node.key not in tails:
                node.kind = node.kind or "end"
