"""Describes the graph of a pipeline for pictures, and creates the table with a picture that notebooks display."""

from __future__ import annotations

from typing import Any

from torchdata._drawing.graph import Arrow, DrawnGraph, DrawnGroup, Node
from torchdata._drawing.html import page, picture_in, table
from torchdata.datapipes._pipe.chain import parameters, short_name
from torchdata.datapipes._pipe.graph.graph import Graph as PipeGraph

__all__ = ["graph_of_pipe", "html_of_pipe"]


def graph_of_pipe(datapipe: Any) -> DrawnGraph:
    whole = PipeGraph(datapipe)
    pipes = whole.pipes
    nodes = [
        Node(short_name(pipe), [f"{name}={value}" for name, value in parameters(pipe)][:4], key=number)
        for number, pipe in enumerate(pipes)
    ]
    keys = {id(pipe): number for number, pipe in enumerate(pipes)}
    graph = DrawnGraph()
    graph.add(DrawnGroup("", nodes))
    for head, pipe in enumerate(pipes):
        for source in whole.sources(pipe):
            graph.arrows.append(Arrow(keys[id(source)], head))
    graph.mark_ends()
    return graph


def html_of_pipe(datapipe: Any) -> str:
    rows = [["", "pipe", "parameters"]]
    for number, pipe in enumerate(PipeGraph(datapipe), 1):
        values = ", ".join(f"{name}={value}" for name, value in parameters(pipe))
        rows.append([str(number), short_name(pipe), values])
    return page("pipe", table(rows, left=3), picture_in(graph_of_pipe(datapipe)))
