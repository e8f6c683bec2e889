"""Drawings of a graph in the DOT language contain the pipes of the graph and their connections."""

import re
from typing import Any

import pytest

from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import to_graph


class MirrorIterDataPipe(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source


def drawn(pipe: Any, **options: Any) -> tuple[dict[str, str | None], set[tuple[str, str]]]:
    """Parses a drawing, and returns the color of each label and the arrows between labels."""
    graph = to_graph(pipe, **options)
    nodes, labels = {}, {}
    for match in re.finditer(r"^\t\"(.+?)\" \[label=(\w+)(?: fillcolor=(\w+))?\]$", graph.source, re.M):
        labels[match[1]] = match[2]
        assert match[2] not in nodes, f"{match[2]} is there twice"
        nodes[match[2]] = match[3]
    arrows = re.findall(r"^\t\"(.+?)\" -> \"(.+?)\"$", graph.source, re.M)
    assert len(graph.body) == len(nodes) + len(arrows)
    return nodes, {(labels[tail], labels[head]) for tail, head in arrows}


def test_a_chain_goes_from_the_blue_source_to_the_green_end() -> None:
    nodes, arrows = drawn(IterableWrapper(range(3)).map(str).batch(2))
    assert nodes == {"IterableWrapper": "lightblue", "Mapper": None, "Batcher": "darkolivegreen1"}
    assert arrows == {("IterableWrapper", "Mapper"), ("Mapper", "Batcher")}


SPLITS = {
    "Forker": lambda pipe: pipe.fork(2),
    "Demultiplexer": lambda pipe: pipe.demux(2, bool),
    "UnZipper": lambda pipe: pipe.unzip(2),
    "RoundRobinDemultiplexer": lambda pipe: pipe.round_robin_demux(2),
    "RandomSplitter": lambda pipe: pipe.random_split({"a": 1, "b": 1}, 0),
}


@pytest.mark.parametrize("label", SPLITS)
def test_a_split_pipe_is_one_node_unless_its_children_are_requested(label: str) -> None:
    left, right = SPLITS[label](IterableWrapper(range(4)))
    pipe = left.map(str).zip(right.filter(bool))
    nodes, arrows = drawn(pipe)
    assert nodes == {
        "IterableWrapper": "lightblue",
        label: None,
        "Mapper": None,
        "Filter": None,
        "Zipper": "darkolivegreen1",
    }
    assert arrows == {
        ("IterableWrapper", label),
        (label, "Mapper"),
        (label, "Filter"),
        ("Mapper", "Zipper"),
        ("Filter", "Zipper"),
    }
    source = to_graph(pipe, debug=True).source
    assert source.count("label=Child") == 2
    assert source.count(" -> ") == 7


def test_pipes_of_both_kinds_and_of_users_are_drawn_by_their_names() -> None:
    pipe = MirrorIterDataPipe(IterableWrapper("ab")).zip_with_map(SequenceWrapper("ab"), ord)
    nodes, arrows = drawn(pipe)
    assert nodes == {
        "IterableWrapper": "lightblue",
        "SequenceWrapper": "lightblue",
        "Mirror": None,
        "MapKeyZipper": "darkolivegreen1",
    }
    assert ("Mirror", "MapKeyZipper") in arrows
    assert ("SequenceWrapper", "MapKeyZipper") in arrows


def test_a_pipe_with_several_readers_is_drawn_once() -> None:
    source = IterableWrapper(range(3))
    _, arrows = drawn(source.map(str).concat(source.filter(bool)))
    assert {head for tail, head in arrows if tail == "IterableWrapper"} == {"Mapper", "Filter"}


def test_objects_that_are_not_pipes_are_not_drawn() -> None:
    with pytest.raises(TypeError, match="to_graph: dp must be an IterDataPipe or a MapDataPipe"):
        to_graph([1, 2])
