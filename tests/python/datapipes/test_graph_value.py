"""`Graph`: the pipes of a graph at one moment, found once and handed on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.dataloader2.graph.utils import all_dps
from torchdata.datapipes._pipe.graph import traversal
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


def doubled(number: int) -> int:
    return 2 * number


def branched() -> Any:
    first, second = IterableWrapper(range(6)).shuffle().fork(2)
    return first.map(doubled).zip(second.sharding_filter())


class Circle(IterDataPipe[int]):
    """A pipe that refers to its reader."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        return iter(self.source)


def circular() -> Any:
    source: Any = IterableWrapper(range(3))
    inner = Circle(source)
    outer = Circle(inner)
    inner.reader = outer  # type: ignore[attr-defined]
    return outer


def test_its_orders_are_those_of_the_graph_tools() -> None:
    for end in (branched(), circular(), IterableWrapper([1])):
        graph, nested = Graph(end), traverse_dps(end)
        assert list(map(id, graph)) == list(map(id, walk(end)))
        assert list(map(id, graph.depth_first())) == list(map(id, all_dps(nested)))
        assert list(map(id, graph.breadth_first())) == list(map(id, list_dps(nested)))
        for pipe in graph:
            found = graph.breadth_first(exclude=[pipe])
            assert list(map(id, found)) == list(map(id, list_dps(nested, exclude_dps=pipe)))


def test_a_part_of_it_is_the_graph_that_ends_there_and_is_not_searched_again() -> None:
    graph = Graph(branched())
    parts: list[Graph] = []
    assert rounds(lambda: parts.extend(map(graph.at, graph))) == Counter()
    for part in parts:
        assert list(map(id, part)) == list(map(id, walk(part.end)))
        assert all((pipe in part) == (id(pipe) in set(map(id, part))) for pipe in graph)
    assert graph.at(graph.end) is graph is graph_of(graph)


def rounds(function: Callable[[], Any]) -> Counter[str]:
    """By the name of its class, how often a pipe's attributes are searched for pipes while a function runs."""
    found: Counter[str] = Counter()

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code is traversal.sources_of.__code__:
            found[type(frame.f_locals["datapipe"]).__name__] += 1

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_a_service_with_workers_goes_round_the_graph_once_when_it_takes_it_over() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter().map(doubled).batch(2)
    service = MultiProcessingReadingService(num_workers=1)
    found = rounds(lambda: service.initialize(pipe))
    service.finalize()
    assert {found[name] for name in ("IterableWrapper", "Shuffler", "ShardingFilter", "Mapper", "Batcher")} == {1}


def test_a_service_with_a_dispatching_process_goes_round_each_part_twice_at_most() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_round_robin_dispatch().map(doubled).prefetch(2)
    service = MultiProcessingReadingService(num_workers=1)
    found = rounds(lambda: service.initialize(pipe))
    service.finalize()
    assert found["IterableWrapper"] == found["Shuffler"] == 1
    assert max(found.values()) <= 2


def test_a_state_is_taken_in_one_round() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter().map(doubled).batch(2)
    with DataLoader2(pipe, reading_service=InProcessReadingService()) as loader:
        next(iter(loader))
        loader.state_dict()  # the fingerprint is found once
        assert set(rounds(loader.state_dict).values()) == {1}
