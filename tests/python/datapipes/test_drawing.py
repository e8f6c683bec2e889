"""Drawings of a graph in the DOT language contain the pipes of the graph and their connections."""

import re
from typing import Any

import pytest

from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import to_graph

BLUE, GREEN, WHITE = "#d2e3f6", "#dae9d3", "#ffffff"


class MirrorIterDataPipe(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source


def drawn(pipe: Any, **options: Any) -> tuple[dict[str, str], set[tuple[str, str]]]:
    source = to_graph(pipe, **options).source
    found = re.findall(r'^\t\t(\d+) \[label="?(\w+).*? fillcolor="(#\w+)"\]$', source, re.M)
    titles = {key: title for key, title, _ in found}
    arrows = re.findall(r"^\t(\d+) -> (\d+)", source, re.M)
    colors = {title: color for _, title, color in found}
    assert len(colors) == len(found)
    assert len(arrows) == source.count(" -> ")
    return colors, {(titles[tail], titles[head]) for tail, head in arrows}


def test_a_chain_is_drawn_from_the_blue_source_to_the_green_end() -> None:
    nodes, arrows = drawn(IterableWrapper(range(3)).map(str).batch(2))
    assert nodes == {"IterableWrapper": BLUE, "Mapper": WHITE, "Batcher": GREEN}
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
    assert nodes == {"IterableWrapper": BLUE, label: WHITE, "Mapper": WHITE, "Filter": WHITE, "Zipper": GREEN}
    assert arrows == {
        ("IterableWrapper", label),
        (label, "Mapper"),
        (label, "Filter"),
        ("Mapper", "Zipper"),
        ("Filter", "Zipper"),
    }
    source = to_graph(pipe, debug=True).source
    assert source.count('label="Child') == 2
    assert source.count(" -> ") == 7


def test_pipes_of_both_kinds_and_of_users_are_drawn_by_their_names() -> None:
    pipe = MirrorIterDataPipe(IterableWrapper("ab")).zip_with_map(SequenceWrapper("ab"), ord)
    nodes, arrows = drawn(pipe)
    assert nodes == {"IterableWrapper": BLUE, "SequenceWrapper": BLUE, "Mirror": WHITE, "MapKeyZipper": GREEN}
    assert ("Mirror", "MapKeyZipper") in arrows
    assert ("SequenceWrapper", "MapKeyZipper") in arrows


def test_a_pipe_with_several_readers_is_drawn_once() -> None:
    source = IterableWrapper(range(3))
    _, arrows = drawn(source.map(str).concat(source.filter(bool)))
    assert {head for tail, head in arrows if tail == "IterableWrapper"} == {"Mapper", "Filter"}


def test_objects_that_are_not_pipes_are_not_drawn() -> None:
    with pytest.raises(TypeError, match="to_graph: dp must be an IterDataPipe or a MapDataPipe"):
        to_graph([1, 2])
