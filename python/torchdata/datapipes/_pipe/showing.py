"""Describes the graph of a pipeline for pictures, and creates the table with a picture that notebooks display."""

from __future__ import annotations

from typing import Any

from torchdata._drawing.graph import Arrow, DrawnGraph, DrawnGroup, Node
from torchdata._drawing.html import page, picture_in, table
from torchdata.datapipes._pipe.chain import parameters, short_name
from torchdata.datapipes._pipe.graph.graph import Graph as PipeGraph


def graph_of_pipe(datapipe: Any, *, debug: bool = False) -> DrawnGraph:
    """If `debug` is False, the graph shows a split such as `fork` as one pipe, without its children."""
    whole = PipeGraph(datapipe)
    pipes = [pipe for pipe in whole if debug or not getattr(type(pipe), "_is_child_datapipe", False)]
    keys = {id(pipe): number for number, pipe in enumerate(pipes)}
    graph, arrows = DrawnGraph(), dict[Arrow, None]()
    graph.add(DrawnGroup("", [Node(short_name(pipe), [*map("=".join, parameters(pipe))][:4]) for pipe in pipes]))
    for head, pipe in enumerate(pipes):
        for source in whole.sources(pipe):
            for drawn in [source] if id(source) in keys else whole.sources(source):
                arrows[Arrow(keys[id(drawn)], head)] = None
    graph.arrows = [*arrows]
    graph.mark_ends()
    return graph


def html_of_pipe(datapipe: Any) -> str:
    rows = [["", "pipe", "parameters"]]
    for number, pipe in enumerate(PipeGraph(datapipe), 1):
        values = ", ".join(f"{name}={value}" for name, value in parameters(pipe))
        rows.append([str(number), short_name(pipe), values])
    return page("pipe", table(rows, left=3), picture_in(graph_of_pipe(datapipe)))
