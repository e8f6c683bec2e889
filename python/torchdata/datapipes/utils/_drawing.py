"""Draws a pipe graph with graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata._optional import optional_import
from torchdata.datapipes._pipe.chain import short_name
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe, sources_of

if TYPE_CHECKING:
    import graphviz

__all__ = ["to_graph"]

_NODES = {
    "align": "left",
    "fontname": "monospace",
    "fontsize": "10",
    "height": "0.2",
    "ranksep": "0.1",
    "shape": "box",
    "style": "filled",
}
_SOURCE_COLOR, _END_COLOR = "lightblue", "darkolivegreen1"


def to_graph(dp: Any, *, debug: bool = False) -> graphviz.Digraph:
    """Draws the graph of pipes that ends in `dp`: an arrow leads from each pipe to its readers.

    For a loader or its statistics, the drawing shows the pipes of each process, with the number of items per second at
    the arrows. If the loader has `stats="full"`, a hotter color means that a pipe takes more of the time of its
    process. The method `picture()` of loaders and statistics draws this graph without the program `dot`.

    Pipes without sources are blue, and the last pipe is green. A pipe such as `fork` or `demux` is one node, with
    arrows to the pipes that read its children.

    Args:
        dp: the last pipe of the graph, a `DataLoader2`, or the result of its `stats()`.
        debug: whether the children of split pipes are separate nodes; False by default.

    Returns:
        The graph, with the DOT text in `.source`. `.render(path)` and `.view()` draw the graph with the program `dot`.

    Raises:
        TypeError: `dp` has another type.
        ModuleNotFoundError: the package graphviz is not installed (extra `graph`).

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.utils import to_graph
        >>> print(to_graph(IterableWrapper(range(3)).map(str)).source.splitlines()[-2].strip())
        "IterableWrapper 0" -> "Mapper 1"
    """
    graph = getattr(dp, "_torchdata_graph", None) if not is_pipe(dp) else None
    if graph is not None:
        from torchdata._drawing.dot import as_digraph

        return as_digraph(graph())
    if not is_pipe(dp):
        raise TypeError(
            "to_graph: dp must be an IterDataPipe or a MapDataPipe, a DataLoader2 or its statistics, but got "
            f"{dp!r} of type {type(dp).__name__}"
        )
    drawing: graphviz.Digraph = optional_import("graphviz", extra="graph", needed_by="to_graph").Digraph(
        graph_attr={"size": "12,12"}, node_attr=_NODES
    )
    pipes = [pipe for pipe in Graph(dp) if debug or not _is_hidden(pipe)]
    names = {id(pipe): f"{short_name(pipe)} {number}" for number, pipe in enumerate(pipes)}
    read = set()
    edges = []
    for pipe in pipes:
        for source in _drawn_sources(pipe, debug):
            read.add(id(source))
            edges.append((names[id(source)], names[id(pipe)]))
    reading = {name for _, name in edges}
    for pipe in pipes:
        name = names[id(pipe)]
        color = _SOURCE_COLOR if name not in reading else _END_COLOR if id(pipe) not in read else None
        drawing.node(name, label=short_name(pipe), fillcolor=color)
    drawing.edges(edges)
    return drawing


def _is_hidden(pipe: Any) -> bool:
    """Returns whether the pipe is a child of a split."""
    return bool(getattr(type(pipe), "_is_child_datapipe", False))


def _drawn_sources(pipe: Any, debug: bool) -> list[Any]:
    """Returns the sources to draw: without `debug`, the main pipe of a split instead of its children."""
    found: dict[int, Any] = {}
    for source in sources_of(pipe):
        drawn = sources_of(source) if _is_hidden(source) and not debug else [source]
        found.update((id(each), each) for each in drawn)
    return list(found.values())
