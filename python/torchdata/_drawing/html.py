"""Creates HTML tables and pictures that need neither scripts nor the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torchdata._drawing.graph import DrawnGraph
from torchdata._drawing.picture import Picture

_CELL = "padding:2px 8px;border-bottom:1px solid #ddd;text-align:"


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Returns an HTML table. The first row is the heading of the table. The first `left` columns are left-aligned, and
    further columns are right-aligned."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if number < left else "right" for number in range(len(cells)))
        return "<tr>" + "".join(
            f'<{tag} style="{_CELL}{side}">{escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        ) + "</tr>"  # fmt: skip

    body = row(rows[0], "th") + "".join(row(cells, "td") for cells in rows[1:])
    return f'<table style="border-collapse:collapse;font-size:12px">{body}</table>'


def page(name: str, *parts: str) -> str:
    return f'<div class="torchdata-{name}" style="overflow-x:auto">{"".join(parts)}</div>'


def picture_in(graph: DrawnGraph) -> str:
    return f'<div style="margin:8px 0">{Picture(graph).svg()}</div>' if graph.nodes else ""
