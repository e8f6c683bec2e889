"""Draws a pipe graph with graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata.datapipes._pipe.checks import wrong_type
from torchdata.datapipes._pipe.graph.traversal import is_pipe

if TYPE_CHECKING:
    import graphviz


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
        0 -> 1
    """
    from torchdata._drawing.dot import as_digraph  # every child process imports this module, but only few programs draw
    from torchdata.datapipes._pipe.showing import graph_of_pipe

    if is_pipe(dp):
        return as_digraph(graph_of_pipe(dp, debug=debug))
    graph = getattr(dp, "_torchdata_graph", None)
    if graph is None:
        raise wrong_type("to_graph", "dp", "an IterDataPipe or a MapDataPipe, a DataLoader2 or its statistics", dp)
    return as_digraph(graph())
