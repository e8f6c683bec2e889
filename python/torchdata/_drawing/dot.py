"""Converts a graph to an object of the package graphviz, for `to_graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdata._drawing.graph import DrawnGraph
from torchdata._drawing.picture import color_of
from torchdata._optional import optional_import

if TYPE_CHECKING:
    import graphviz

_NODES = {"fontname": "monospace", "fontsize": "10", "height": "0.2", "shape": "box", "style": "filled"}


def as_digraph(graph: DrawnGraph) -> graphviz.Digraph:
    library = optional_import("graphviz", extra="graph", needed_by="to_graph")
    drawing: graphviz.Digraph = library.Digraph(
        graph_attr={"size": "14,14", "fontname": "monospace", "fontsize": "10"},
        node_attr=_NODES,
        edge_attr={"fontname": "monospace", "fontsize": "9"},
    )
    for number, group in enumerate(graph.groups):
        with drawing.subgraph(name=f"cluster_{number}") as cluster:
            cluster.attr(label=library.escape(group.title), color="gray")
            for node in group.nodes:
                label = "\\n".join(library.escape(line) for line in [node.title, *node.lines])
                cluster.node(str(node.key), label=label, fillcolor=color_of(node))
    for arrow in graph.arrows:
        style = "dashed" if arrow.crosses else None
        drawing.edge(str(arrow.tail), str(arrow.head), label=library.escape(arrow.label) or None, style=style)
    return drawing
